"""Reads GGUF: typed metadata, then tensors in ggml's block formats; every size is checked before use.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. The package
``gguf`` reads it as well, but walks every string of the vocabulary as NumPy arrays (SmolLM2-135M: 3.2 s
against 0.1 s here), trusts the header, and is not made for the browser.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minillm.loaders.dequantize import FORMATS, OTHER_FORMATS, dequantize
from minillm.loaders.files import LoadError, map_file
from minillm.loaders.tensors import Float32, TensorInfo, check_layout

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
# Metadata types of a fixed size, by id: their struct codes.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_ARRAY_DEPTH = 4
# Far above any real vocabulary or template, far below what would fill the memory.
_MAX_ENTRIES = 1 << 24
_MAX_STRING_BYTES = 1 << 26
_MAX_DIMENSIONS = 4
# The smallest entries that the format allows: bounds a count by the bytes that are left.
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8


class GGUFFile:
    """One ``.gguf`` file: ``metadata`` (tokenizer arrays included, as lists) and its tensors."""

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._bytes = map_file(path)
        self.metadata, self._tensors, self._formats = _parse(path, self._bytes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def info(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def read(self, name: str) -> Float32:
        """The tensor as float32, row-major; a view of the file for F32, else decoded."""
        info = self._tensors[name]
        if info.dtype == "F32":
            view: Float32 = np.frombuffer(self._bytes, "<f4", info.elements, info.start if info.elements else 0)
            return view.reshape(info.shape)
        raw = np.frombuffer(self._bytes, np.uint8, info.nbytes, info.start if info.elements else 0)
        return dequantize(raw, FORMATS[self._formats[name]]).reshape(info.shape)


class _Cursor:
    """Reads forward through the header; running over the end is a `LoadError`."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self.data, self.at = path, data, 0

    def fail(self, what: str) -> LoadError:
        return LoadError(f"{self.path}: {what} (at byte {self.at:,} of {len(self.data):,})")

    def need(self, count: int, what: str) -> None:
        if count > len(self.data) - self.at:
            raise self.fail(f"{what} needs {count:,} bytes, {len(self.data) - self.at:,} are left: it is cut off")

    def scalar(self, code: str, what: str) -> Any:
        size = struct.calcsize("<" + code)
        self.need(size, what)
        if code == "?" and self.data[self.at] > 1:
            raise self.fail(f"{what} is {self.data[self.at]}, a truth value is 0 or 1")
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += size
        return value

    def string(self, what: str) -> str:
        length = self.scalar("Q", f"the length of {what}")
        self.need(length, what)
        if length > _MAX_STRING_BYTES:
            raise self.fail(f"{what} has {length:,} bytes, the limit is {_MAX_STRING_BYTES:,}")
        raw = bytes(self.data[self.at : self.at + length])
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8 ({error})") from None

    def count(self, what: str, smallest: int) -> int:
        """A number of entries, of which each takes ``smallest`` bytes or more."""
        count: int = self.scalar("Q", f"the number of {what}")
        self.need(count * smallest, f"a file with {count:,} {what}")
        if count > _MAX_ENTRIES:
            raise self.fail(f"{count:,} {what}, the limit is {_MAX_ENTRIES:,}")
        return count

    def value(self, what: str, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise self.fail(f"{what} has the unknown type {kind}")
            return self.scalar(_SCALARS[kind], what)
        if depth == _MAX_ARRAY_DEPTH:
            raise self.fail(f"{what} nests arrays deeper than {_MAX_ARRAY_DEPTH}")
        inner = self.scalar("I", f"the element type of {what}")
        if inner in _SCALARS and _SCALARS[inner] != "?":  # all numbers of an array in one go
            code = _SCALARS[inner]
            size = struct.calcsize("<" + code)
            count = self.count(f"elements of {what}", size)
            values = struct.unpack_from(f"<{count}{code}", self.data, self.at)
            self.at += count * size
            return list(values)
        smallest = {_STRING: 8, _ARRAY: 12}.get(inner, 1)
        count = self.count(f"elements of {what}", smallest)
        return [self.value(what, inner, depth + 1) for _ in range(count)]


def _parse(path: Path, data: memoryview) -> tuple[dict[str, Any], dict[str, TensorInfo], dict[str, int]]:
    cursor = _Cursor(path, data)
    if bytes(data[:4]) != _MAGIC:
        raise LoadError(f"{path}: begins with {bytes(data[:4])!r}, a GGUF file with {_MAGIC!r}")
    cursor.at = 4
    version = cursor.scalar("I", "the version")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        why = "it is big-endian" if swapped in (2, 3) else "this reader has 2 and 3"
        raise LoadError(f"{path}: GGUF version {version}: {why}")
    tensor_count = cursor.count("tensors", _MIN_TENSOR_BYTES)
    metadata: dict[str, Any] = {}
    for _ in range(cursor.count("metadata entries", _MIN_PAIR_BYTES)):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise cursor.fail(f"metadata {key!r} stands there twice")
        metadata[key] = cursor.value(f"metadata {key!r}", cursor.scalar("I", f"the type of {key!r}"))
    tensors: dict[str, TensorInfo] = {}
    formats: dict[str, int] = {}
    for _ in range(tensor_count):
        info, kind = _tensor(cursor)
        if info.name in tensors:
            raise cursor.fail(f"tensor {info.name!r} stands there twice")
        tensors[info.name], formats[info.name] = info, kind
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= 2**20 or alignment % 8:
        raise LoadError(f"{path}: general.alignment is {alignment!r}, a multiple of 8 is needed")
    first = -(-cursor.at // alignment) * alignment
    placed = {}
    for name, info in tensors.items():
        if info.start % alignment:
            raise LoadError(f"{path}: tensor {name!r} begins at {info.start:,}, not a multiple of {alignment}")
        placed[name] = TensorInfo(name, info.dtype, info.shape, first + info.start, info.nbytes)
    check_layout(path, list(placed.values()), first, len(data))
    return metadata, placed, formats


def _tensor(cursor: _Cursor) -> tuple[TensorInfo, int]:
    """The next tensor's entry; its ``start`` still counts from the beginning of the data."""
    name = cursor.string("a tensor's name")
    dimensions = cursor.scalar("I", f"the rank of {name!r}")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.fail(f"tensor {name!r} has {dimensions} dimensions, 1 to {_MAX_DIMENSIONS} are possible")
    # ggml lists the contiguous dimension first, NumPy last.
    shape = tuple(reversed([cursor.scalar("Q", f"the shape of {name!r}") for _ in range(dimensions)]))
    kind = cursor.scalar("I", f"the format of {name!r}")
    offset = cursor.scalar("Q", f"the offset of {name!r}")
    if kind not in FORMATS:
        label = OTHER_FORMATS.get(kind, f"number {kind}")
        known = ", ".join(f.name for f in FORMATS.values())
        raise cursor.fail(f"tensor {name!r} is in format {label}, this reader has {known}")
    block = FORMATS[kind]
    if math.prod(shape) >= 2**63:
        raise cursor.fail(f"tensor {name!r} has the absurd shape {list(shape)}")
    if shape[-1] % block.elements:
        raise cursor.fail(f"tensor {name!r} {list(shape)}: rows are not whole {block.name} blocks of {block.elements}")
    nbytes = math.prod(shape) // block.elements * block.nbytes
    return TensorInfo(name, block.name, shape, offset, nbytes), kind
