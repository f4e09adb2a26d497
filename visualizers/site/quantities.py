"""Finds quantities as prose writes them: ``128 KiB``, ``3.35 TB/s``, ``4 to 8 ms``, ``7.03×``, ``$0.35``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from visualizers.site.units import UNITS, Dimension, combine, parse_unit

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+|\s?×\s?10\^-?\d+)?"
_NAMES = "|".join(sorted((re.escape(name) for name in UNITS if name != "$"), key=len, reverse=True))
_PER = r"/[ ]?|[ ]per[ ]|[ ]a[ ](?=second|token|layer|step)"
# "8B" without a space is a model's name, never eight bytes.
_QUANTITY = re.compile(
    rf"""
    (?P<money>\$)?
    (?<![\w.,^])(?P<number>[-−]?{_DIGITS})(?!\d|[.,]\d)
    (?:(?:[ ]?[–—-][ ]?|[ ]to[ ])\$?(?P<number2>{_DIGITS})(?!\d|[.,]\d))?
    (?:[ -](?P<scale>thousand|million|billion)(?!\w))?
    (?:(?!-?B(?!\w))[ -]?(?P<unit>(?:{_NAMES})(?:(?:{_PER})(?:{_NAMES}))*)(?!\w))?
    (?(money)(?:(?:{_PER})(?P<per_scale>(?:thousand|million|billion)[ ])?(?P<per>{_NAMES})(?!\w))?|)
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Quantity:
    """One number or a range of two, in base units, and how precisely the text gives it."""

    text: str
    values: tuple[float, ...]
    places: tuple[float, ...]  # the size of one unit of the last printed digit, in base units
    unit: str  # as printed, "" for a plain number
    dimension: Dimension
    start: int
    end: int


def find(text: str) -> Iterator[Quantity]:
    """Every number in ``text`` with the unit that follows it, from left to right."""
    for match in _QUANTITY.finditer(text.replace("\n", " ")):
        scale, dimension = parse_unit(match.group("unit") or "")
        if match.group("scale"):
            scale *= UNITS[match.group("scale")].scale
        if match.group("money"):
            dimension = combine(dimension, UNITS["$"].dimension, 1)
        if match.group("per"):
            per = UNITS[match.group("per")]
            scale /= per.scale * (UNITS[match.group("per_scale").strip()].scale if match.group("per_scale") else 1)
            dimension = combine(dimension, per.dimension, -1)
        numbers = [_number(raw) for raw in (match.group("number"), match.group("number2")) if raw]
        yield Quantity(
            match.group(),
            tuple(value * scale for value, _ in numbers),
            tuple(place * scale for _, place in numbers),
            " ".join(match.group(name) for name in ("money", "scale", "unit", "per") if match.group(name)),
            dimension,
            match.start(),
            match.end(),
        )


_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_WORD_VALUES = {word: float(number) for number, word in enumerate(_WORDS, start=2)} | {
    "a hundred": 100.0,
    "a thousand": 1000.0,
    "half": 0.5,
    "twice": 2.0,
}
# Counts of things in words ("two requests") set up a sentence; sizes, times and ratios in words are results.
_MEASURED = "|".join(
    sorted((re.escape(n) for n, u in UNITS.items() if (u.dimension or n == "times" or n == "percent") and len(n) > 1),
           key=len, reverse=True)
)  # fmt: skip
_IN_WORDS = re.compile(
    rf"\b(?P<word>{'|'.join(_WORD_VALUES)})(?:[ -](?P<unit>{_MEASURED})\b|(?P<as>[ ]as[ ]\w+))", re.IGNORECASE
)


def find_words(text: str) -> Iterator[Quantity]:
    """Sizes, times and ratios whose number is a word: ``two gigabytes``, ``three times``, ``twice as fast``."""
    for match in _IN_WORDS.finditer(text.replace("\n", " ")):
        word, unit = match.group("word").lower(), match.group("unit") or "times"
        if match.group("as") and word not in ("half", "twice"):
            continue
        scale, dimension = parse_unit(unit)
        value = _WORD_VALUES[word] * scale
        yield Quantity(match.group(), (value,), (scale,), unit, dimension, match.start(), match.end())


def _number(raw: str) -> tuple[float, float]:
    """The value and the size of one unit in its last printed digit: ``3.35`` -> (3.35, 0.01)."""
    text = raw.replace(",", "").replace("−", "-")
    exponent = 0
    if power := re.search(r"\s?×\s?10\^(-?\d+)$|[eE]([-+]?\d+)$", text):
        exponent, text = int(power.group(1) or power.group(2)), text[: power.start()]
    decimals = len(text.partition(".")[2])
    return float(f"{text}e{exponent}"), float(f"1e{exponent - decimals}")
