"""Tensors of a weight file as NumPy arrays: what a reader offers, whatever the file's format."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from minillm.loaders.files import LoadError

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. ``shape`` is row-major (the last dimension is contiguous), ``start`` in its file."""

    name: str
    dtype: str  # the format's own name, such as BF16 or Q4_K
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    nbytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class TensorSource(Protocol):
    """Named tensors of one model, read one at a time."""

    label: str  # the file or directory, for messages

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, name: object) -> bool: ...

    def info(self, name: str) -> TensorInfo: ...

    def read(self, name: str) -> NDArray[Any]:
        """The values: float32, or int8 for the integers of a quantized safetensors file."""


def check_layout(path: object, tensors: list[TensorInfo], first: int, end: int) -> None:
    """Every tensor lies within ``[first, end)`` bytes and no two share one."""
    reached, before = first, ""
    for info in sorted((t for t in tensors if t.nbytes), key=lambda t: t.start):
        if info.start < reached:
            what = f"overlaps {before!r}" if before else f"starts inside the header, which ends at {first:,}"
            raise LoadError(f"{path}: tensor {info.name!r} at byte {info.start:,} {what}: the file is broken")
        reached, before = info.start + info.nbytes, info.name
        if reached > end:
            raise LoadError(
                f"{path}: tensor {info.name!r} needs bytes {info.start:,} to {reached:,}, the file ends at "
                f"{end:,}: it is cut off, fetch it again"
            )


def bfloat16_to_float32(raw: NDArray[np.uint16]) -> Float32:
    """A bfloat16 is the upper half of a float32."""
    return (raw.astype(np.uint32) << 16).view(np.float32)
