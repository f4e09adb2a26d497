"""In which number format each part of a model's weights lies: as its publisher ships it, or quantized for serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minillm.costs.check import CostError
from minillm.costs.dtypes import number_format

NATIVE = "native"

# Formats in which servers store matrices alone: quantizers leave tables, head, norms and router as they are.
# (ggml's formats are not among them: a GGUF file stores its tables in them, too.)
_MATRICES_ONLY = frozenset({"fp8", "int8", "int4", "int4_g128", "mxfp4", "nvfp4"})


@dataclass(frozen=True)
class WeightFormats:
    """``matrices``: of attention, MLPs and shared experts; ``experts``: of the routed ones; ``rest``: all else.

    The rest is the embedding, the output head, norms, routers and biases.
    """

    rest: str = "bf16"
    matrices: str = "bf16"
    experts: str = "bf16"

    def __post_init__(self) -> None:
        for name in (self.rest, self.matrices, self.experts):
            number_format(name)

    @classmethod
    def stored_as(cls, dtype: str) -> WeightFormats:
        """A checkpoint "in ``dtype``" as it is served."""
        return cls("bf16" if dtype in _MATRICES_ONLY else dtype, dtype, dtype)


def weight_formats(dtype: str, native: WeightFormats | None, experts: str | None = None) -> WeightFormats:
    """The formats meant by ``dtype``, ``"native"`` or a format's name; ``experts`` replaces that of the experts."""
    if dtype != NATIVE:
        found = WeightFormats.stored_as(dtype)
    elif native is not None:
        found = native
    else:
        raise CostError("the formulas do not know the format of the published weights: name one, such as bf16")
    return WeightFormats(found.rest, found.matrices, experts) if experts else found


def native_formats(config_dtype: object, quantization: object) -> WeightFormats | None:
    """What a published config says of its files by its dtype and ``quantization_config``; None if not understood."""
    rest = {"float32": "fp32", "float16": "fp16"}.get(str(config_dtype).removeprefix("torch."), "bf16")
    if not quantization:
        return WeightFormats(rest, rest, rest)
    if not isinstance(quantization, Mapping):
        return None
    match quantization.get("quant_method"):
        case "mxfp4":  # gpt-oss: the experts' matrices alone
            return WeightFormats(rest, rest, "mxfp4")
        case "fp8":
            return WeightFormats(rest, "fp8", "fp8")
        case "gptq" | "awq" if (quantization.get("bits"), quantization.get("group_size")) == (4, 128):
            return WeightFormats(rest, "int4_g128", "int4_g128")
        case "compressed-tensors":
            return _compressed(rest, quantization.get("config_groups"))
    return None


def _compressed(rest: str, groups: object) -> WeightFormats | None:
    """Of one group with 8 bits, floating or whole numbers, for matrices and perhaps for tables."""
    group = next(iter(groups.values())) if isinstance(groups, Mapping) and len(groups) == 1 else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(group, Mapping) or not isinstance(weights, Mapping) or weights.get("num_bits") != 8:
        return None
    name = "fp8" if weights.get("type") == "float" else "int8"
    return WeightFormats(name if "Embedding" in group.get("targets", ()) else rest, name, name)
