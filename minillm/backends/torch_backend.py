"""The torch backend: the CPU, or a CUDA device where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minillm.backends.numeric import NumericBackend
from minillm.core.plan import StepPlan, StepResult
from minillm.loaders.tensors import Float32
from minillm.models.load import LoadedModel
from minillm.ops import torch_ops
from minillm.ops.paging import Reads

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
_CUDA_SHARE = 0.85  # of what is free once the weights are there; a step's activations need the rest


class TorchBackend(NumericBackend):
    """Runs a model with `minillm.ops.torch_ops`; see `minillm.backends.create` for the arguments."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        dtype: str = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        debug_poison: bool = False,
        available_bytes: int | None = None,
    ) -> None:
        super().__init__(model, torch_ops, max_model_len, debug_poison, available_bytes)
        self.device = _choose_device(device)
        self.dtype = _choose_dtype(dtype, self.device, model.bundled)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def device_name(self) -> str:
        return str(self.device)

    @property
    def _itemsize(self) -> int:
        return int(self.dtype.itemsize)

    def run(self, plan: StepPlan) -> StepResult:
        """Write K/V of the plan's tokens, attend, sample."""
        with torch.inference_mode():
            return super().run(plan)

    def logits(self, plan: StepPlan) -> Float32:
        """``[S, V]`` of the plan's ``logits_indices`` as NumPy: ``run`` without the sampling."""
        with torch.inference_mode():
            logits: Float32 = self._forward(plan).to(torch.promote_types(self.dtype, torch.float32)).cpu().numpy()
        return logits

    def close(self) -> None:
        """Drop weights and K/V; ``load`` makes them again."""
        super().close()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _budget_bytes(self, one_sequence_bytes: int) -> int:
        if self.device.type != "cuda":
            return super()._budget_bytes(one_sequence_bytes)
        free = torch.cuda.mem_get_info(self.device)[0]
        return int((free if self._available_bytes is None else self._available_bytes) * _CUDA_SHARE)

    def matrix(self, parts: Sequence[Float32]) -> Tensor:
        # Converted part by part: the float32 copy of a whole joined matrix never exists.
        converted = [self.array(part).to(self.dtype) for part in parts]
        return converted[0] if len(converted) == 1 else torch.cat(converted)

    def _zeros(self, shape: tuple[int, ...]) -> Tensor:
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        return self._host_zeros(shape)

    def _host_zeros(self, shape: tuple[int, ...]) -> Tensor:
        if not shape[0]:
            return torch.zeros(shape, dtype=self.dtype)
        if self.device.type == "cuda":  # pinned: the device copies from it without a detour
            return torch.zeros(shape, dtype=self.dtype, pin_memory=True)
        # NumPy's zeros are pages that cost nothing until they are written; torch writes them at once.
        raw = np.zeros((*shape, self.dtype.itemsize), np.uint8)
        return torch.from_numpy(raw).view(self.dtype).squeeze(-1)

    def vector(self, values: NDArray[np.floating]) -> Tensor:
        return self.array(values).to(torch.promote_types(self.dtype, torch.float32))

    def _host(self, values: Tensor) -> NDArray[Any]:
        if values.dtype == torch.bfloat16:  # which NumPy lacks
            values = values.float()
        host: NDArray[Any] = values.cpu().numpy()
        return host

    def _reads(self, reads: Reads) -> Reads:
        return torch_ops.to_device(reads, self.device)

    def _to_bytes(self, values: Tensor) -> bytes:
        raw: bytes = values.cpu().contiguous().view(torch.uint8).numpy().tobytes()  # NumPy has no bfloat16
        return raw

    def _from_bytes(self, data: bytes, shape: tuple[int, ...]) -> Tensor:
        return torch.frombuffer(bytearray(data), dtype=self.dtype).view(shape).to(self.device)

    def _beside(self, values: NDArray[Any] | Tensor, cache: Tensor) -> Tensor:
        return torch.as_tensor(values).to(cache.device)

    def array(self, values: np.ndarray) -> Tensor:
        # A read-only view of a mapped file is copied: torch has no read-only tensors.
        writable = values if values.flags.writeable and values.flags.aligned else values.copy()
        return torch.from_numpy(writable).to(self.device)


def _choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is unknown: choose auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported: choose auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        sees = f"sees {count} CUDA devices" if torch.version.cuda else "is a build for the CPU alone"
        raise ValueError(f"device {name!r}: torch {torch.__version__} {sees}, use cpu")
    return device


def _choose_dtype(name: str, device: torch.device, bundled: bool) -> torch.dtype:
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" and not bundled else "float32"
    if name not in _DTYPES:
        raise ValueError(f"dtype {name!r} is unknown: choose from auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]
