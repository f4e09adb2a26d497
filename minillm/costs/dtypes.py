"""How many bytes a number takes in each format, block formats with their scales included.

A block format stores ``block_values`` numbers in ``block_bytes`` bytes; scales that come once a tensor
are not counted. Sources: ggml's ``ggml-common.h`` for Q*_0, Q*_1 and Q*_K; the OCP Microscaling (MX)
specification 1.0 for MXFP4; NVIDIA's NVFP4 (16 numbers and one FP8 scale).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from minillm.costs.check import CostError


@dataclass(frozen=True)
class NumberFormat:
    """``block_values`` numbers in ``block_bytes`` bytes."""

    name: str
    block_values: int
    block_bytes: int
    note: str

    @property
    def bits_per_value(self) -> float:
        return 8 * self.block_bytes / self.block_values


_FORMATS = (
    NumberFormat("fp32", 1, 4, "IEEE single precision"),
    NumberFormat("fp16", 1, 2, "IEEE half precision"),
    NumberFormat("bf16", 1, 2, "bfloat16"),
    NumberFormat("fp8", 1, 1, "8-bit floating point, scale once a tensor"),
    NumberFormat("int8", 1, 1, "8-bit integer, scale once a tensor or a row"),
    NumberFormat("int4", 2, 1, "4-bit integer without its scales"),
    NumberFormat("int4_g128", 256, 133, "GPTQ and AWQ, groups of 128: 4 bits, an fp16 scale and a 4-bit zero a group"),
    NumberFormat("q8_0", 32, 34, "32 x 8 bits and an fp16 scale"),
    NumberFormat("q6_k", 256, 210, "super-block of 256 x 6 bits, 16 8-bit scales, an fp16 scale"),
    NumberFormat("q5_k", 256, 176, "super-block of 256 x 5 bits, 6-bit scales and minima, two fp16"),
    NumberFormat("q5_0", 32, 22, "32 x 5 bits and an fp16 scale"),
    NumberFormat("q4_k", 256, 144, "super-block of 256 x 4 bits, 6-bit scales and minima, two fp16"),
    NumberFormat("q4_1", 32, 20, "32 x 4 bits, an fp16 scale and an fp16 minimum"),
    NumberFormat("q4_0", 32, 18, "32 x 4 bits and an fp16 scale"),
    NumberFormat("mxfp4", 32, 17, "32 x 4-bit floating point and an 8-bit exponent"),
    NumberFormat("nvfp4", 16, 9, "16 x 4-bit floating point and an FP8 scale"),
)
FORMATS: Mapping[str, NumberFormat] = {f.name: f for f in _FORMATS}


def number_format(dtype: str) -> NumberFormat:
    """The format called ``dtype``. Raises :class:`CostError` with those there are."""
    if dtype not in FORMATS:
        near = get_close_matches(str(dtype).lower(), FORMATS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise CostError(f"dtype {dtype!r} is unknown: {hint}choose from {', '.join(FORMATS)}")
    return FORMATS[dtype]


def bits_per_value(dtype: str) -> float:
    """Bits a number takes in storage, scales included."""
    return number_format(dtype).bits_per_value


def size_bytes(values: Any, dtype: str) -> Any:
    """Bytes of ``values`` numbers; whole for the formats without blocks."""
    found = number_format(dtype)
    if found.block_values == 1:
        return values * found.block_bytes
    return values * found.block_bytes / found.block_values
