"""Reads and writes safetensors files of torch tensors: a JSON header, then raw little-endian data.

Format: https://huggingface.co/docs/safetensors. Checkpoints use it too, so nothing is pickled.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NAMES = {torch.float32: "F32", torch.int8: "I8"}
_NUMPY: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "I8": np.dtype("i1")}


def save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write `tensors` (float32 or int8) and `metadata`; the file appears whole or not at all."""
    header: dict[str, object] = {"__metadata__": metadata}
    blobs: list[bytes] = []
    start = 0
    # Widest first, so that every tensor is aligned to its element size.
    for name in sorted(tensors, key=lambda n: (-tensors[n].element_size(), n)):
        tensor = tensors[name]
        blob = tensor.detach().contiguous().numpy().tobytes()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, start + len(blob)],
        }
        blobs.append(blob)
        start += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for blob in blobs:
            file.write(blob)
    os.replace(partial, path)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file that `save` wrote."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        array = np.frombuffer(data[start:end], _NUMPY[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = torch.from_numpy(array.copy())
    return tensors, metadata
