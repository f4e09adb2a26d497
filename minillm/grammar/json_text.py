"""The pieces of JSON text: strings, numbers in a range, the spaces between.

White space: at most one space after a comma or a colon, and none elsewhere, so that no model can fill its
tokens with it. Numbers have at most 15 digits before the point and 15 after it, and an exponent of two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from minillm.grammar import characters
from minillm.grammar.expressions import (
    EMPTY,
    NEVER,
    Bytes,
    Expr,
    Ranges,
    alt,
    chars,
    literal,
    optional,
    repeat,
    seq,
)

_SPACE = optional(Bytes(b" "))
COMMA = seq(Bytes(b","), _SPACE)
COLON = seq(Bytes(b":"), _SPACE)

# Control characters, quote, backslash. JSON would allow 0x7F as it is.
_MUST_ESCAPE = characters.ranges([(0, 0x1F), (0x7F, 0x7F), (34, 34), (92, 92)])
_PLAIN = characters.complement(_MUST_ESCAPE)
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_HEX = characters.of("0123456789abcdefABCDEF")
_DIGIT: Ranges = ((48, 57),)
MAX_DIGITS = 15  # as many as a double keeps apart, so a bound holds after rounding, too

# \uXXXX of the basic plane without surrogates: one character, however it is counted.
_UNICODE_ESCAPE = alt(
    seq(chars(characters.of("0123456789abcefABCEF")), repeat(chars(_HEX), 3, 3)),
    seq(chars(characters.of("dD")), chars(characters.of("01234567")), repeat(chars(_HEX), 2, 2)),
)
CHARACTER = alt(
    chars(_PLAIN),
    seq(Bytes(b"\\"), alt(chars(characters.of('"\\/bfnrt')), seq(Bytes(b"u"), _UNICODE_ESCAPE))),
)


def string(content: Expr) -> Expr:
    return seq(Bytes(b'"'), content, Bytes(b'"'))


def one_way(those: Ranges) -> Expr:
    """One character of a set, each in one spelling only: itself, or the shortest escape where it must be escaped."""
    escaped = [point for low, high in characters.intersect(those, _MUST_ESCAPE) for point in range(low, high + 1)]
    spelled = [literal("\\" + _SHORT[p]) if p in _SHORT else literal(f"\\u{p:04x}") for p in escaped]
    return alt(chars(characters.intersect(those, _PLAIN)), *spelled)


def content_except(names: Iterable[str]) -> Expr:
    """The contents of every string but ``names``, each in one spelling."""
    names = set(names)
    heads = {name[0] for name in names if name}
    others = characters.complement(characters.of("".join(heads)))
    options = [seq(one_way(others), repeat(one_way(characters.EVERY), 0, None))]
    for head in sorted(heads):
        rests = {name[1:] for name in names if name.startswith(head)}
        options.append(seq(one_way(characters.of(head)), content_except(rests)))
    return alt(*options) if "" in names else optional(alt(*options))


def value(data: Any) -> Expr:
    """One given value."""
    if isinstance(data, dict):
        members = [seq(literal(json.dumps(key, ensure_ascii=False)), COLON, value(data[key])) for key in data]
        return seq(Bytes(b"{"), separated(members), Bytes(b"}"))
    if isinstance(data, list):
        return seq(Bytes(b"["), separated([value(item) for item in data]), Bytes(b"]"))
    return literal(json.dumps(data, ensure_ascii=False))


def separated(parts: Iterable[Expr]) -> Expr:
    """All of the parts, with commas between them."""
    first, *others = [*parts] or [EMPTY]
    return seq(first, *(seq(COMMA, other) for other in others))


def number() -> Expr:
    """Any number."""
    fraction = optional(seq(Bytes(b"."), _digits(1, MAX_DIGITS)))
    exponent = optional(seq(chars(characters.of("eE")), optional(chars(characters.of("+-"))), _digits(1, 2)))
    return seq(optional(Bytes(b"-")), _whole(0, 10**MAX_DIGITS - 1), fraction, exponent)


def decimal(low: int | None, high: int | None, places: int) -> Expr:
    """Numbers from ``low`` to ``high``, both given in units of ``10**-places``; None is as far as digits go.

    ``places=0`` are the whole numbers. Zero has no sign.
    """
    unit = 10**places
    most = 10**MAX_DIGITS - 1
    low, high = -most if low is None else low, most if high is None else high
    options = []
    if high >= 0:
        options.append(_unsigned(max(low, 0), high, unit))
    if low < 0:
        options.append(seq(Bytes(b"-"), _unsigned(max(1, -high), -low, unit)))
    return alt(*options)


def _unsigned(low: int, high: int, unit: int) -> Expr:
    if low > high:
        return NEVER
    places = len(str(unit)) - 1
    (first, low_rest), (last, high_rest) = divmod(low, unit), divmod(high, unit)
    if first == last:
        return seq(_whole(first, first), _fraction(low_rest, high_rest, places))
    return alt(
        seq(_whole(first, first), _fraction(low_rest, unit - 1, places)),
        seq(_whole(first + 1, last - 1), _fraction(0, unit - 1, places)),
        seq(_whole(last, last), _fraction(0, high_rest, places)),
    )


def _whole(low: int, high: int) -> Expr:
    """Whole numbers from ``low`` to ``high``, without leading zeros."""
    if low <= 1 and not str(high).strip("9"):  # the common case, in few alternatives
        positive = seq(chars(((49, 57),)), _digits(0, len(str(high)) - 1))
        return positive if low else alt(Bytes(b"0"), positive)
    options = []
    while low <= high:
        length = len(str(low))
        last = min(high, 10**length - 1)
        options.append(_same_length(str(low), str(last)))
        low = last + 1
    return alt(*options)


def _same_length(low: str, high: str) -> Expr:
    """Strings of as many digits, from ``low`` to ``high``."""
    places = len(low)
    if not low.strip("0") and not high.strip("9"):
        return _digits(places, places)
    return _by_first_digit(low, high, _same_length)


def _fraction(low: int, high: int, places: int) -> Expr:
    """What follows the units: nothing, or a point and up to ``places`` digits of a fraction within the bounds."""
    if places == 0:
        return EMPTY
    if low == 0 and high == 10**places - 1:
        return optional(seq(Bytes(b"."), _digits(1, places)))
    digits = _by_first_digit(f"{low:0{places}}", f"{high:0{places}}", _up_to_length)
    point = seq(Bytes(b"."), digits)
    return point if low else optional(point)


def _up_to_length(low: str, high: str) -> Expr:
    """Like ``_same_length``, but zeros at the end may be left out."""
    if not low.strip("0") and not high.strip("9"):
        return _digits(0, len(low))
    digits = _by_first_digit(low, high, _up_to_length)
    return digits if low.strip("0") else optional(digits)


def _by_first_digit(low: str, high: str, rest: Callable[[str, str], Expr]) -> Expr:
    zeros, nines = "0" * (len(low) - 1), "9" * (len(low) - 1)
    if low[0] == high[0]:
        return seq(Bytes(low[:1].encode()), rest(low[1:], high[1:]))
    between = chars(characters.ranges([(ord(low[0]) + 1, ord(high[0]) - 1)]) if ord(high[0]) - ord(low[0]) > 1 else ())
    return alt(
        seq(Bytes(low[:1].encode()), rest(low[1:], nines)),
        seq(between, rest(zeros, nines)),
        seq(Bytes(high[:1].encode()), rest(zeros, high[1:])),
    )


def _digits(low: int, high: int) -> Expr:
    return repeat(chars(_DIGIT), low, high)
