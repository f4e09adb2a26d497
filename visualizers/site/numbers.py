"""Compares what the text of a page says with what its formula gives, and finds numbers that say nothing.

A quantity is compared at the text's own precision: the value must round to the printed digits, where a
value half-way between two of them may go either way. "about 200 ms" takes the zeros at the end as rounding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from visualizers.site.formulas import Result
from visualizers.site.quantities import Quantity, find, find_words
from visualizers.site.scan import Token
from visualizers.site.units import COUNTED_NAMES, UNCHECKED, Dimension, show_dimension, show_value
from visualizers.site.values import Value

_ABOUT = re.compile(r"\b(about|around|roughly|nearly|almost|over|under)\b|[~≈]", re.IGNORECASE)
# Half a digit, and the few last bits that a division in binary may lose.
_HALF = 0.5 * (1 + 1e-9)
_LARGE = 1000  # a number without a unit that is smaller may be a section, a version, a list of four things


def disagreement(text: str, result: Result) -> str:
    """Why ``text`` does not say what ``result`` gives; an empty string where it does."""
    found = list(find(text))
    if not found:
        return f"[{text}] has no number to compare with the formula"
    printed = [
        (value, place, quantity.dimension)
        for quantity in found
        for value, place in zip(quantity.values, quantity.places, strict=True)
    ]
    if len(printed) != len(result.values):
        return (
            f"[{text}] has {_count(len(printed))}, `{result.formula}` gives {_count(len(result.values))}: "
            "mark each number by itself; a range needs a formula (low, high)"
        )
    for (number, place, dimension), value in zip(printed, result.values, strict=True):
        rounding = _rounded_place(number, place) if _ABOUT.search(text) else place
        if problem := _one(text, number, rounding, dimension, value, result.formula):
            return problem
    return ""


def _one(text: str, printed: float, place: float, dimension: Dimension, value: Value, formula: str) -> str:
    if value.dimension is not None and dict(value.dimension) != dict(dimension):
        return (
            f"[{text}] reads as {show_dimension(dimension)}, `{formula}` gives "
            f"{show_dimension(value.dimension)}: mind the unit"
        )
    if abs(value.number - printed) > _HALF * place + 1e-12 * abs(printed):
        gives = show_value(value.number, value.dimension or dimension)
        return (
            f"[{text}] says {show_value(printed, dimension)}, `{formula}` gives {gives} "
            f"({value.number:.10g} in base units)"
        )
    return ""


def _count(n: int) -> str:
    return "one value" if n == 1 else f"{n} values"


def _rounded_place(value: float, place: float) -> float:
    """The place of the last digit that is not zero: 200 ms known to 1 ms becomes known to 100 ms."""
    digits = round(abs(value) / place)
    while digits and digits % 10 == 0:
        digits //= 10
        place *= 10
    return place


def unmarked(tokens: Iterable[Token]) -> Iterator[tuple[int, Quantity]]:
    """Quantities in the prose that carry neither a formula nor a source: (line, quantity).

    Exempt: code, mathematics, headings, links and addresses, figures, HTML; small numbers without a unit (section
    numbers, versions) and years; names such as 8B or H100; and a round count of things ("16 tokens",
    "2,048 requests": at most two digits that are not zero, or a power of two), which sets up an example. Counts of
    a model's layers, heads and parameters are facts, and want a mark however round they are. Numbers in words
    ("three times as fast") count as in digits.
    """
    for token in tokens:
        if token.kind != "text" or token.heading:
            continue
        for quantity in sorted([*find(token.raw), *find_words(token.raw)], key=lambda q: q.start):
            if not _is_exempt(quantity):
                yield token.line + token.raw.count("\n", 0, quantity.start), quantity


def _is_exempt(quantity: Quantity) -> bool:
    if quantity.unit in COUNTED_NAMES:
        return all(_is_round(value) for value in quantity.values)
    if quantity.unit:
        return quantity.unit in UNCHECKED
    # Without a unit: what has this many digits is a result or a fact, a year alone excepted.
    is_year = re.fullmatch(r"(19|20)\d\d(?:-\d\d?)?", quantity.text.strip()) is not None
    return is_year or all(abs(value) < _LARGE or _is_round(value) for value in quantity.values)


def _is_round(value: float) -> bool:
    """Set up by somebody: at most two digits that are not zero, or a power of two."""
    return value == int(value) and (len(f"{int(abs(value))}".rstrip("0")) <= 2 or int(abs(value)).bit_count() == 1)
