"""A weight file as read-only bytes, memory-mapped where the platform can, and the error of all readers."""

from __future__ import annotations

import mmap
from pathlib import Path


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
