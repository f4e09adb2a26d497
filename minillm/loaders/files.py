"""A model's files: weights as read-only bytes, memory-mapped where the platform can, JSON, and the error of all."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any


class LoadError(ValueError):
    """A file that cannot be used: the message names the file, the tensor and what was expected."""


def map_file(path: Path) -> memoryview:
    """The bytes of ``path``. Pages are read from disk when they are touched, and shared between processes."""
    try:
        with path.open("rb") as file:
            try:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except (ValueError, OSError):  # an empty file, or a file system without mmap
                return memoryview(file.read())
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise LoadError(f"{path}: cannot be read ({error}): check the path and its rights") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error.strerror or error})") from error
    return parse_json(path, data)


def parse_json(path: Path, data: bytes) -> dict[str, Any]:
    """The JSON object in ``data``, which ``path`` holds. A name that stands there twice is an error."""

    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise LoadError(f"{path}: {name!r} stands there twice: the file is broken")
            found[name] = value
        return found

    try:
        parsed = json.loads(data.decode("utf-8"), object_pairs_hook=no_twins)
    except LoadError:
        raise
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, absurd numbers or nesting
        raise LoadError(f"{path}: not valid JSON ({error}): the file is broken") from None
    if not isinstance(parsed, dict):
        raise LoadError(f"{path}: a JSON object is needed, it holds {type(parsed).__name__}")
    return parsed
