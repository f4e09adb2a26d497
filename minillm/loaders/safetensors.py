"""Reads safetensors: one file, or a directory with an index of shards; every header field is checked.

Format: https://huggingface.co/docs/safetensors: eight bytes of header length, a JSON header, raw
little-endian data. The official library is compiled and absent in the browser; this reader needs
NumPy alone and is about as fast, since both map the file and copy nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.loaders.files import LoadError, map_file, parse_json, read_json
from minillm.loaders.tensors import TensorInfo, bfloat16_to_float32, check_layout

_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
}
_HEADER_LIMIT_BYTES = 100_000_000  # the format's own limit
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class SafetensorsFile:
    """One ``.safetensors`` file. Raises `LoadError` on opening when anything in the header is wrong."""

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._bytes = map_file(path)
        self._tensors = {info.name: info for info in _parse_header(path, self._bytes)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def info(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def read(self, name: str) -> NDArray[Any]:
        """Float32 (a view of the file for F32 tensors, else a copy), or int8 for I8."""
        info = self._tensors[name]
        dtype = _DTYPES[info.dtype]
        raw: NDArray[Any] = np.frombuffer(self._bytes, dtype, info.elements, info.start if info.elements else 0)
        raw = raw.reshape(info.shape)
        if info.dtype == "BF16":
            return bfloat16_to_float32(raw)
        return raw if info.dtype == "I8" else raw.astype(np.float32, copy=False)


class SafetensorsDirectory:
    """All tensors of a model directory, from ``model.safetensors`` or the shards that its index names."""

    def __init__(self, directory: Path) -> None:
        self.label = str(directory)
        self._file_of: dict[str, SafetensorsFile] = {}
        if (directory / INDEX_NAME).exists():
            self._open_shards(directory)
        elif (directory / SINGLE_NAME).exists():
            file = SafetensorsFile(directory / SINGLE_NAME)
            self._file_of = dict.fromkeys(file, file)
        else:
            raise LoadError(f"{directory}: holds neither {SINGLE_NAME} nor {INDEX_NAME}: is it a model directory?")

    def _open_shards(self, directory: Path) -> None:
        index = read_json(directory / INDEX_NAME).get("weight_map")
        if not isinstance(index, dict):
            raise LoadError(f"{directory / INDEX_NAME}: weight_map is {index!r}, an object is needed")
        files: dict[str, SafetensorsFile] = {}
        for tensor, shard in index.items():
            # A shard lies beside its index: no name may lead elsewhere.
            if not isinstance(shard, str) or not shard.endswith(".safetensors") or Path(shard).name != shard:
                raise LoadError(f"{directory / INDEX_NAME}: tensor {tensor!r} is in {shard!r}, a file name is needed")
            if shard not in files:
                files[shard] = SafetensorsFile(directory / shard)
            if tensor not in files[shard]:
                raise LoadError(f"{directory / shard}: tensor {tensor!r} is missing, {INDEX_NAME} says it is there")
            self._file_of[tensor] = files[shard]
        for shard, file in files.items():
            for tensor in file:
                if index.get(tensor) != shard:
                    raise LoadError(f"{directory / shard}: tensor {tensor!r} is not in {INDEX_NAME}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def info(self, name: str) -> TensorInfo:
        return self._file_of[name].info(name)

    def read(self, name: str) -> NDArray[Any]:
        return self._file_of[name].read(name)


def _parse_header(path: Path, data: memoryview) -> list[TensorInfo]:
    if len(data) < 8:
        raise LoadError(f"{path}: {len(data)} bytes, a safetensors file has at least 8: it is cut off")
    length = int.from_bytes(data[:8], "little")
    if length > min(len(data) - 8, _HEADER_LIMIT_BYTES):
        raise LoadError(
            f"{path}: the header claims {length:,} bytes, the file has {len(data):,} (limit "
            f"{_HEADER_LIMIT_BYTES:,}): it is cut off or no safetensors file"
        )
    header = parse_json(path, bytes(data[8 : 8 + length]))
    header.pop("__metadata__", None)
    first = 8 + length
    tensors = [_entry(path, name, entry, first) for name, entry in header.items()]
    check_layout(path, tensors, first, len(data))
    covered = sum(info.nbytes for info in tensors)
    if covered != len(data) - first:
        raise LoadError(
            f"{path}: tensors cover {covered:,} of {len(data) - first:,} data bytes, a safetensors file has "
            "no gaps: it is broken"
        )
    return tensors


def _entry(path: Path, name: str, entry: object, first: int) -> TensorInfo:
    def fail(what: str) -> LoadError:
        return LoadError(f"{path}: tensor {name!r}: {what}")

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise fail("an object with dtype, shape and data_offsets is needed")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise fail(f"dtype {dtype!r} is not supported, this reader has {', '.join(_DTYPES)}")
    if not _is_sizes(shape) or len(shape) > 8:
        raise fail(f"shape {shape!r} is not a list of at most 8 whole numbers")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fail(f"data_offsets {offsets!r} are not [begin, end]")
    nbytes = math.prod(shape) * _DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != nbytes:
        raise fail(f"{dtype} {shape} takes {nbytes:,} bytes, data_offsets span {offsets[1] - offsets[0]:,}")
    return TensorInfo(name, dtype, tuple(shape), first + offsets[0], nbytes)


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)
