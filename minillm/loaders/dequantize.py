"""GGUF's block formats to float32, vectorized: blocks of 32 or 256 weights share scales.

Layouts are those of ggml (``ggml-quants.h``): all little-endian, ``d`` and ``m`` are float16. In the
4-bit formats one byte holds element i (low half) and, half a block or 32 elements later, another (high).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minillm.loaders.tensors import Float32, bfloat16_to_float32

Bytes = NDArray[np.uint8]  # [n, bytes of a block]

# Blocks decoded at once: temporaries stay within some tens of megabytes, however large the tensor.
_SLICE_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class BlockFormat:
    """``elements`` weights are stored in ``nbytes``; ``decode`` makes ``[n, elements]`` of ``[n, nbytes]``."""

    name: str
    elements: int
    nbytes: int
    decode: Callable[[Bytes], Float32]


def dequantize(raw: Bytes, block: BlockFormat) -> Float32:
    """The flat float32 values of ``raw``, whole blocks in a row."""
    blocks = raw.reshape(-1, block.nbytes)
    out = np.empty((len(blocks), block.elements), np.float32)
    step = max(1, _SLICE_ELEMENTS // block.elements)
    for start in range(0, len(blocks), step):
        out[start : start + step] = block.decode(blocks[start : start + step])
    return out.reshape(-1)


def _half(raw: Bytes) -> Float32:
    """Two bytes of each block as its float16, ``[n, 1]``."""
    values: Float32 = np.ascontiguousarray(raw).view("<f2").astype(np.float32)
    return values


def _nibbles(raw: Bytes) -> NDArray[np.uint8]:
    """``[n, k]`` bytes to ``[n, 2 k]``: all low halves, then all high halves."""
    return np.concatenate((raw & 0x0F, raw >> 4), axis=1)


def _f32(b: Bytes) -> Float32:
    return np.ascontiguousarray(b).view("<f4")


def _bf16(b: Bytes) -> Float32:
    return bfloat16_to_float32(np.ascontiguousarray(b).view("<u2"))


def _q8_0(b: Bytes) -> Float32:
    return _half(b[:, :2]) * np.ascontiguousarray(b[:, 2:]).view(np.int8)


def _q4_0(b: Bytes) -> Float32:
    return _half(b[:, :2]) * (_nibbles(b[:, 2:]).view(np.int8) - 8)


def _q4_1(b: Bytes) -> Float32:
    return _half(b[:, :2]) * _nibbles(b[:, 4:]) + _half(b[:, 2:4])


def _fifth_bits(raw: Bytes) -> NDArray[np.uint8]:
    """32 bits in four bytes, ``[n, 4]``, as ``[n, 32]`` values of 0 or 16."""
    return np.unpackbits(raw, axis=1, bitorder="little") * np.uint8(16)


def _q5_0(b: Bytes) -> Float32:
    values = _nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6])
    return _half(b[:, :2]) * (values.view(np.int8) - 16)


def _q5_1(b: Bytes) -> Float32:
    values = _nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])
    return _half(b[:, :2]) * values + _half(b[:, 2:4])


def _k_scales(raw: Bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Eight scales and eight minima of 6 bits each from 12 bytes, ``[n, 8, 1]`` both.

    Bytes 0-3 hold the first four scales and 4-7 the first four minima; their upper two bits belong to
    the last four, whose lower four bits are the halves of bytes 8-11.
    """
    low, middle, high = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    scales = np.concatenate((low & 63, (high & 15) | ((low >> 6) << 4)), axis=1)
    minima = np.concatenate((middle & 63, (high >> 4) | ((middle >> 6) << 4)), axis=1)
    return scales[:, :, None], minima[:, :, None]


def _k_affine(b: Bytes, values: NDArray[np.uint8]) -> Float32:
    """``d * scale * value - dmin * minimum`` for ``values [n, 8, 32]``."""
    scales, minima = _k_scales(b[:, 4:16])
    d, dmin = _half(b[:, 0:2])[:, :, None], _half(b[:, 2:4])[:, :, None]
    result: Float32 = (d * scales) * values - dmin * minima
    return result.reshape(len(b), 256)


def _k_nibbles(raw: Bytes) -> NDArray[np.uint8]:
    """``[n, 128]`` to ``[n, 8, 32]``: 32 bytes hold two groups, low halves first."""
    pairs = raw.reshape(-1, 4, 1, 32)
    return np.concatenate((pairs & 15, pairs >> 4), axis=2).reshape(-1, 8, 32)


def _q4_k(b: Bytes) -> Float32:
    return _k_affine(b, _k_nibbles(b[:, 16:144]))


def _q5_k(b: Bytes) -> Float32:
    # Bit g of byte i is the fifth bit of element i of group g.
    fifth = (b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    return _k_affine(b, _k_nibbles(b[:, 48:176]) | (fifth * np.uint8(16)))


def _q6_k(b: Bytes) -> Float32:
    # Two halves of 128: 64 bytes of low nibbles, 32 bytes with the upper two bits of four elements each.
    packed = b[:, :128].reshape(-1, 2, 64)
    low = np.concatenate((packed & 15, packed >> 4), axis=2).reshape(-1, 2, 4, 32)
    high = b[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    values = (low | ((high & 3) << 4)).view(np.int8) - 32
    scales = np.ascontiguousarray(b[:, 192:208]).view(np.int8)
    result: Float32 = (_half(b[:, 208:210]) * scales)[:, :, None] * values.reshape(-1, 16, 16)
    return result.reshape(len(b), 256)


FORMATS: dict[int, BlockFormat] = {
    0: BlockFormat("F32", 1, 4, _f32),
    1: BlockFormat("F16", 1, 2, _half),
    2: BlockFormat("Q4_0", 32, 18, _q4_0),
    3: BlockFormat("Q4_1", 32, 20, _q4_1),
    6: BlockFormat("Q5_0", 32, 22, _q5_0),
    7: BlockFormat("Q5_1", 32, 24, _q5_1),
    8: BlockFormat("Q8_0", 32, 34, _q8_0),
    12: BlockFormat("Q4_K", 256, 144, _q4_k),
    13: BlockFormat("Q5_K", 256, 176, _q5_k),
    14: BlockFormat("Q6_K", 256, 210, _q6_k),
    30: BlockFormat("BF16", 1, 2, _bf16),
}
# Formats of ggml that are not read, so that a message can name them.
OTHER_FORMATS = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}
