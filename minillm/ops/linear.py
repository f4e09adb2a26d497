"""A weight matrix: the noun that owns how its numbers are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Linear:
    """``x W^T + b`` with ``weight [out, in]`` and ``bias [out]``, in one library's arrays."""

    weight: Any
    bias: Any = None
