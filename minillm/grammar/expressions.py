"""What regular expressions, JSON schemas and grammar files are all translated into: expressions over text.

``Chars`` and ``Call`` are how the front ends speak; ``rules.prepare`` turns ``Chars`` into bytes. The
constructors in lower case simplify as they build, so an expression holds nothing that matches nothing
unless it is ``NEVER`` as a whole. Expressions are compared by identity: what is shared stays shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # code points, both ends included, rising, apart from each other


class GrammarError(ValueError):
    """A grammar that cannot be compiled: the message names the part, its place and the way out."""


class GrammarLimitError(GrammarError):
    """A text that a grammar can be read along in more ways than the automaton follows: it ends that one output."""


@dataclass(frozen=True, eq=False, slots=True)
class Bytes:
    """Exactly these bytes."""

    data: bytes


@dataclass(frozen=True, eq=False, slots=True)
class ByteSet:
    """One byte of a set: bit ``b`` of ``mask`` stands for byte ``b``."""

    mask: int


@dataclass(frozen=True, eq=False, slots=True)
class Chars:
    """One character of a set, as UTF-8."""

    ranges: Ranges


@dataclass(frozen=True, eq=False, slots=True)
class Seq:
    """``head``, then ``tail``. Long sequences lean to the right: the tail is again a ``Seq``."""

    head: Expr
    tail: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Alt:
    """Any one of ``options``; without options, nothing at all."""

    options: tuple[Expr, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Repeat:
    """``body`` at least ``low`` and at most ``high`` times; None is without end."""

    body: Expr
    low: int
    high: int | None


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """Whatever the rule of this name matches."""

    rule: str


Expr: TypeAlias = Bytes | ByteSet | Chars | Seq | Alt | Repeat | Call

EMPTY = Bytes(b"")
NEVER = Alt(())


@dataclass(frozen=True, slots=True)
class Rules:
    """Named expressions that call each other, and the one that a whole text must match."""

    rules: dict[str, Expr]
    root: str


def literal(text: str) -> Expr:
    """The text as UTF-8. ``GrammarError`` for half a surrogate pair, which UTF-8 cannot hold."""
    try:
        return Bytes(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise GrammarError(f"{text!r} has half a surrogate pair, which is no character: leave it out") from error


def chars(ranges: Ranges) -> Expr:
    """One character of a set. A set of one is a literal, so that a tokenizer's longer tokens count for it."""
    if not ranges:
        return NEVER
    low, high = ranges[0]
    return literal(chr(low)) if len(ranges) == 1 and low == high else Chars(ranges)


def seq(*parts: Expr) -> Expr:
    """One after the other; neighbouring literals become one."""
    result: Expr = EMPTY
    for part in reversed(parts):
        result = _before(part, result)
    return result


def _before(head: Expr, tail: Expr) -> Expr:
    if head is NEVER or tail is NEVER:
        return NEVER
    if tail is EMPTY:
        return head
    match head:
        case Bytes(b""):
            return tail
        case Seq(first, rest):
            return _before(first, _before(rest, tail))
        case Bytes(data):
            match tail:
                case Bytes(more):
                    return Bytes(data + more)
                case Seq(Bytes(more), rest):
                    return Seq(Bytes(data + more), rest)
    return Seq(head, tail)


def alt(*options: Expr) -> Expr:
    """Any one of these."""
    flat: list[Expr] = []
    for option in options:
        flat.extend(option.options if isinstance(option, Alt) else (option,))
    distinct = tuple(dict.fromkeys(flat))
    return distinct[0] if len(distinct) == 1 else Alt(distinct) if distinct else NEVER


def repeat(body: Expr, low: int, high: int | None) -> Expr:
    """``body`` from ``low`` to ``high`` times."""
    if body is NEVER:
        return EMPTY if low == 0 else NEVER
    if high == 0 or body is EMPTY:
        return EMPTY
    return body if low == high == 1 else Repeat(body, low, high)


def optional(body: Expr) -> Expr:
    return repeat(body, 0, 1)


def spine(expr: Expr) -> Sequence[Expr]:
    """The parts of a sequence, left to right: walked by a loop, for a sequence may be thousands long."""
    parts = []
    while isinstance(expr, Seq):
        parts.append(expr.head)
        expr = expr.tail
    return [*parts, expr]
