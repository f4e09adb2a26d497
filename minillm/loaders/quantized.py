"""Which quantized safetensors checkpoints are read: integers of 8 bits with one scale for each row.

The layout is that of compressed-tensors' "int-quantized": a tensor ``X.weight`` of I8 ``[out, in]`` and
``X.weight_scale`` ``[out, 1]``; value = integer * scale. Any other scheme is refused by name, since
its tensors can look the same and mean something else.
"""

from __future__ import annotations

from typing import Any

from minillm.loaders.files import LoadError
from minillm.loaders.tensors import TensorSource

_WANTED: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}


def check_quantization(source: TensorSource, config: object) -> None:
    """Whether tensors and ``quantization_config`` agree on a scheme that `Weights` reads."""
    integers = [name for name in source if source.info(name).dtype == "I8"]
    if config is None:
        if integers:
            raise LoadError(f"{source.label}: tensor {integers[0]!r} is I8 and config.json has no quantization_config")
        return
    method = config.get("quant_method") if isinstance(config, dict) else None
    layout = config.get("format") if isinstance(config, dict) else None
    if not isinstance(config, dict) or method != "compressed-tensors" or layout != "int-quantized":
        raise LoadError(
            f"{source.label}: quantization is {method!r} in format {layout!r}, this reader has "
            "'compressed-tensors' in format 'int-quantized': use an unquantized checkpoint or a GGUF file"
        )
    groups = config.get("config_groups")
    for name, group in (groups if isinstance(groups, dict) else {}).items():
        scheme = group.get("weights") if isinstance(group, dict) else None
        for field, wanted in _WANTED.items():
            found = scheme.get(field) if isinstance(scheme, dict) else None
            if found != wanted:
                raise LoadError(
                    f"{source.label}: quantization group {name!r} has weights.{field} = {found!r}, this reader "
                    f"has {wanted!r}"
                )
        if isinstance(group, dict) and group.get("input_activations") is not None:
            raise LoadError(f"{source.label}: quantization group {name!r} quantizes activations, this engine does not")
    if not groups:
        raise LoadError(f"{source.label}: quantization_config has no config_groups")
