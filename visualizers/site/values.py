"""What a formula can hold: a number with its dimension, a group of values, a function; and how names say units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from visualizers.site.units import NAMED_UNITS, Dimension, Unit, combine


class FormulaError(ValueError):
    """The formula cannot be evaluated; the message says where and what would be allowed."""


@dataclass(frozen=True)
class Value:
    """A number in base units (bytes, seconds, FLOP, US dollars) and its dimension, None where unknown."""

    number: float
    dimension: Dimension | None


@dataclass(frozen=True)
class Entry:
    """An object whose public attributes and methods a formula may use.

    ``dimensions`` gives the dimension of an attribute or of a method's result by name.
    """

    name: str
    target: Any
    dimensions: Mapping[str, Dimension]


@dataclass(frozen=True)
class Function:
    """A function that a formula may call. ``dimension`` is that of its result, None where unknown."""

    name: str
    call: Callable[..., Any]
    dimension: Dimension | None = None


Namespace = Mapping[str, Value | Entry | Function]

# Units that a name ends in: the value is converted to base units.
_SUFFIXES: Mapping[str, Unit] = {
    name: NAMED_UNITS[unit]
    for name, unit in {
        "bytes": "B", "kib": "KiB", "mib": "MiB", "gib": "GiB", "mb": "MB", "gb": "GB", "tb": "TB",
        "s": "s", "seconds": "s", "ms": "ms", "us": "us", "bits": "bits", "percent": "percent", "usd": "usd",
        "token": "tokens", "tokens": "tokens", "blocks": "tokens", "layers": "tokens", "heads": "tokens",
        "params": "tokens", "parameters": "tokens", "ratio": "tokens", "fraction": "tokens",
    }.items()
}  # fmt: skip


def unit_of_name(name: str) -> Unit | None:
    """The unit that a name says: ``weight_bytes``, ``bytes_per_token``, ``ttft_ms``; None where none."""
    over, *under = name.lower().split("_per_")
    unit = _SUFFIXES.get(over.rpartition("_")[2])
    for part in under:
        below = _SUFFIXES.get(part.partition("_")[0])
        if unit is None or below is None:
            return None
        unit = Unit(unit.scale / below.scale, combine(unit.dimension, below.dimension, -1))
    return unit


def wrap(raw: Any, name: str, dimension: Dimension | None) -> Any:
    """``raw`` as something that a formula can hold: a value in base units, a function, or an entry."""
    if isinstance(raw, (Value, Entry, Function, str, bool)):
        return raw
    if isinstance(raw, (int, float)) or hasattr(raw, "__float__"):
        if not math.isfinite(float(raw)):
            raise FormulaError(f"`{name}` is {raw}, not a finite number")
        number = raw if isinstance(raw, int) else float(raw)
        if dimension is not None:
            return Value(number, dimension)
        unit = unit_of_name(name)
        if unit is None:
            return Value(number, None)
        return Value(number * unit.scale if unit.scale != 1 else number, unit.dimension)
    if callable(raw):
        return Function(name, raw, dimension)
    return Entry(name, raw, {})


def plain(value: Any) -> Any:
    """What a function outside the formulas gets for an argument."""
    if isinstance(value, Value):
        return value.number
    return value.target if isinstance(value, Entry) else value


def what(value: Any) -> str:
    kinds = {
        Value: "a number",
        Entry: "a group of values",
        Function: "a function",
        str: "a text",
        bool: "a yes or no",
    }
    return kinds.get(type(value), type(value).__name__)
