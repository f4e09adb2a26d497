"""The units that the handbook's prose and formulas use, with their scales and dimensions.

A dimension is a map from base unit to exponent: ``{"byte": 1, "s": -1}`` for a bandwidth. Things that
are counted (tokens, requests, blocks, layers) have no dimension: tokens/s is one over seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Dimension = Mapping[str, int]

_PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}

_SPELLED = {"kilo": 1e3, "mega": 1e6, "giga": 1e9, "tera": 1e12, "kibi": 2**10, "mebi": 2**20, "gibi": 2**30}

# Counted things whose round counts set up an example, those that are facts of a model and always want a mark,
# and those that a formula may merely name.
COUNTED = ("token", "sequence", "request", "block", "page", "slot", "step", "GPU", "user", "replica")
COUNTED_FACTS = ("layer", "head", "KV head", "query head", "attention head", "parameter")
NAMED_ONLY = ("row", "sample", "expert", "character", "word", "message", "run", "prompt", "launch", "thread")

# Days, months and years are dates and ages, not quantities of a formula.
_TIMES = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
    **dict.fromkeys(("µs", "μs", "us", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}


@dataclass(frozen=True)
class Unit:
    """``scale`` base units of a dimension."""

    scale: float
    dimension: Dimension


def _build() -> dict[str, Unit]:
    units: dict[str, Unit] = {}
    for prefix, scale in [("", 1.0), *_PREFIXES.items(), *_BINARY.items()]:
        units[f"{prefix}B"] = Unit(scale, {"byte": 1})
        units[f"{prefix}FLOP"] = units[f"{prefix}FLOPs"] = Unit(scale, {"flop": 1})
        units[f"{prefix}FLOPS"] = units[f"{prefix}FLOP/s"] = Unit(scale, {"flop": 1, "s": -1})
        if prefix and not prefix.endswith("i"):
            units[f"{prefix}bit"] = units[f"{prefix}b"] = Unit(scale, {"bit": 1})
            units[f"{prefix}Hz"] = Unit(scale, {"s": -1})
            units[f"{prefix}W"] = Unit(scale, {"watt": 1})
    units |= {name: Unit(1.0, {"byte": 1}) for name in ("byte", "bytes")}
    for prefix, scale in _SPELLED.items():
        units |= {f"{prefix}byte{s}": Unit(scale, {"byte": 1}) for s in ("", "s")}
    units |= {name: Unit(1.0, {"bit": 1}) for name in ("bit", "bits")}
    units |= {"W": Unit(1.0, {"watt": 1}), "watt": Unit(1.0, {"watt": 1}), "watts": Unit(1.0, {"watt": 1})}
    units |= {"Hz": Unit(1.0, {"s": -1}), "J": Unit(1.0, {"watt": 1, "s": 1})}
    units |= {name: Unit(scale, {"s": 1}) for name, scale in _TIMES.items()}
    units |= {f"{name}{s}": Unit(1.0, {}) for name in COUNTED + COUNTED_FACTS + NAMED_ONLY for s in ("", "s")}
    units |= {name: Unit(1.0, {}) for name in ("tok", "req", "params")}
    units |= {"%": Unit(0.01, {}), "percent": Unit(0.01, {}), "per cent": Unit(0.01, {})}
    units |= {name: Unit(1.0, {}) for name in ("x", "×", "times", "-fold", "fold")}
    units |= {"thousand": Unit(1e3, {}), "million": Unit(1e6, {}), "billion": Unit(1e9, {})}
    units |= {"$": Unit(1.0, {"usd": 1})}
    return units


UNITS: Mapping[str, Unit] = _build()

COUNTED_NAMES = frozenset(f"{name}{s}" for name in COUNTED for s in ("", "s"))

# How much more one thing is than another: always the result of something.
RATIOS = frozenset({"x", "×", "times", "-fold", "fold"})

# A number with one of these needs no mark.
UNCHECKED = frozenset({"", "thousand", "million", "billion"} | {f"{n}{s}" for n in NAMED_ONLY for s in ("", "s")})

# The names under which a formula may use units; operators and signs cannot be names.
NAMED_UNITS: Mapping[str, Unit] = {
    name: unit for name, unit in UNITS.items() if name.isidentifier() and name not in ("x", "times", "fold", "b")
} | {"percent": UNITS["%"], "usd": UNITS["$"]}


def parse_unit(text: str) -> tuple[float, Dimension]:
    """Scale and dimension of a unit as printed, such as ``TB/s``. KeyError if unknown."""
    if not text:
        return 1.0, {}
    if text in UNITS:
        return UNITS[text].scale, UNITS[text].dimension
    scale: float = 1.0
    dimension: Dimension = {}
    for position, name in enumerate(re.split(r"/[ ]?|[ ]per[ ]|[ ]a[ ]", text)):
        unit = UNITS[name.strip()]
        sign = -1 if position else 1
        scale *= unit.scale**sign
        dimension = combine(dimension, unit.dimension, sign)
    return scale, dimension


def combine(a: Dimension, b: Dimension, sign: int) -> Dimension:
    """The dimension of a product (``sign`` 1) or a quotient (-1); exponents of zero vanish."""
    total = dict(a)
    for name, exponent in b.items():
        total[name] = total.get(name, 0) + sign * exponent
    return {name: exponent for name, exponent in total.items() if exponent}


def show_dimension(dimension: Dimension) -> str:
    """``byte/s``, ``1/s``, ``a plain number``: for messages."""
    over = [name + (f"^{e}" if e > 1 else "") for name, e in sorted(dimension.items()) if e > 0]
    under = [name + (f"^{-e}" if e < -1 else "") for name, e in sorted(dimension.items()) if e < 0]
    if not over and not under:
        return "a plain number"
    return "/".join(["·".join(over) or "1", *under])


_SHOWN_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def show_value(number: float, dimension: Dimension | None) -> str:
    """A value for a reader, in the prefix that suits it: ``3.35 TB/s``, ``128 KiB``, ``11.9 ms``."""
    over = {name: e for name, e in (dimension or {}).items() if e > 0}
    under = {name: e for name, e in (dimension or {}).items() if e < 0}
    if over == {"byte": 1} or over == {"flop": 1} or over == {"watt": 1}:
        sign = {"byte": "B", "flop": "FLOP", "watt": "W"}[next(iter(over))]
        text = _prefixed(number, sign, binary=sign == "B" and not under)
        rest = "".join(f"/{'B' if name == 'byte' else name}" for name in under)
        return text + rest
    if dimension == {"s": 1}:
        for scale, sign in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(number) >= scale:
                return f"{_digits(number / scale)} {sign}"
        return f"{_digits(number / 1e-9)} ns" if number else "0 s"
    if dimension == {"usd": 1}:
        return f"${_digits(number)}"
    if not dimension:
        return _digits(number)
    return f"{_digits(number)} {show_dimension(dimension)}"


def _prefixed(number: float, sign: str, *, binary: bool) -> str:
    if binary and number == int(number):
        for prefix, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if size <= number < 10_000 * size and number % size == 0:
                return f"{int(number) // size:,} {prefix}{sign}"
    for scale, prefix in _SHOWN_PREFIXES:
        if abs(number) >= scale:
            return f"{_digits(number / scale)} {'K' if prefix == 'k' and sign == 'B' else prefix}{sign}"
    return f"{_digits(number)} {sign}"


def _digits(number: float) -> str:
    """Four significant digits, whole numbers in full, thousands separated."""
    if number == int(number) and abs(number) < 1e15:
        return f"{int(number):,}"
    if 1e-4 <= abs(number) < 1e6:
        decimals = max(0, 3 - int(f"{abs(number):e}".partition("e")[2]))
        text = f"{number:,.{decimals}f}"
        return text.rstrip("0").rstrip(".") if decimals else text
    return f"{number:.4g}"
