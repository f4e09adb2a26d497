"""Sets of characters as ranges of code points, and as the UTF-8 that spells them.

A set becomes alternatives of byte ranges, one for each stretch of code points whose encodings differ only
within a range at every byte: the construction of https://swtch.com/~rsc/regexp/regexp3.html and of the
crate ``utf8-ranges``. So no text that is not UTF-8 can match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from minillm.grammar.expressions import ByteSet, Expr, Ranges, alt, seq

MAX = 0x10FFFF
EVERY: Ranges = ((0, 0xD7FF), (0xE000, MAX))  # surrogates are no characters
_LAST_OF_LENGTH = (0x7F, 0x7FF, 0xFFFF, MAX)  # highest code point that takes 1, 2, 3, 4 bytes


def ranges(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted and joined; surrogates are dropped."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return intersect(tuple(joined), EVERY)


def of(text: str) -> Ranges:
    """The set of the characters of ``text``."""
    return ranges((ord(c), ord(c)) for c in text)


def intersect(one: Ranges, other: Ranges) -> Ranges:
    both = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple(sorted((low, high) for low, high in both if low <= high))


def complement(those: Ranges) -> Ranges:
    """Every character but these."""
    gaps, start = [], 0
    for low, high in those:
        gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, MAX))
    return intersect(tuple((low, high) for low, high in gaps if low <= high), EVERY)


def utf8(those: Ranges, alphabet: int) -> Expr:
    """The encodings of a set, as far as the bytes of ``alphabet`` (a bit each) can spell them."""
    options: list[Expr] = []
    single = 0  # all characters of one byte make one set
    for low, high in those:
        for pairs in _byte_ranges(low, high):
            sets = [_byte_set(*pair) & alphabet for pair in pairs]
            if len(sets) == 1:
                single |= sets[0]
            elif all(sets):
                options.append(seq(*map(ByteSet, sets)))
    if single:
        options.append(ByteSet(single))
    return alt(*options)


def _byte_set(low: int, high: int) -> int:
    return (1 << (high + 1)) - (1 << low)


def _byte_ranges(low: int, high: int) -> Iterator[list[tuple[int, int]]]:
    """Byte ranges for the code points ``low..high``: split until first and last differ at every place alike."""
    for last in _LAST_OF_LENGTH:
        if low <= last < high:
            yield from _byte_ranges(low, last)
            low = last + 1
    first, final = chr(low).encode(), chr(high).encode()
    for place in range(1, len(first)):
        span = (1 << (6 * (len(first) - place))) - 1  # code points that differ from this byte on
        if low & ~span != high & ~span:
            if low & span:
                yield from _byte_ranges(low, low | span)
                yield from _byte_ranges((low | span) + 1, high)
                return
            if high & span != span:
                yield from _byte_ranges(low, (high & ~span) - 1)
                yield from _byte_ranges(high & ~span, high)
                return
    yield list(zip(first, final, strict=True))
