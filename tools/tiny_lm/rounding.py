"""Rounds weights to int8 with one scale for each output channel, the "int-quantized" layout of
compressed-tensors: `X.weight` int8 `[out, in]`, `X.weight_scale` float32 `[out, 1]`, value = product.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .model import Llama


def rounded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as stored: every matrix in int8 with its scales, norms in float32."""
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        if value.dim() == 1:
            tensors[name] = value
            continue
        # Symmetric: the largest value of a row becomes 127, and -128 is not used.
        scale = (value.abs().amax(dim=1, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        tensors[name] = (value / scale).round().to(torch.int8)
        tensors[name + "_scale"] = scale
    return tensors


def read_back(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values that a loader reads from tensors as stored."""
    return {
        name: value * tensors[name + "_scale"] if value.dtype == torch.int8 else value
        for name, value in tensors.items()
        if not name.endswith("_scale")
    }


def restored(model: Llama, tensors: dict[str, Tensor]) -> Llama:
    """A model of the same shape with the values that a loader reads from `tensors`."""
    copy = Llama(model.shape)
    copy.load_state_dict(read_back(tensors))
    copy.eval()
    return copy
