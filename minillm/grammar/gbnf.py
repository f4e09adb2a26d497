"""Context-free grammars as text, in the notation of llama.cpp (GBNF).

    root   ::= "[" (number ("," number)*)? "]"
    number ::= "-"? [0-9]{1,9}                      # a comment ends with its line

A rule is ``name ::= alternatives``; ``root`` is what a whole output must match. Within it: ``"text"``, classes
``[a-z]`` and ``[^"\\\\]``, ``.`` for any character, names of rules, groups, ``|``, and the repetitions
``* + ? {m} {m,} {,n} {m,n}``. Escapes: ``\\n \\r \\t \\\\ \\" \\[ \\] \\^ \\- \\xHH \\uHHHH \\UHHHHHHHH``. A rule ends
where the next one begins. No rule may begin by calling itself: what repeats goes last, or is
written with ``*`` or ``+``.
Reference: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from minillm.grammar import characters
from minillm.grammar.expressions import Call, Expr, GrammarError, Ranges, Rules, alt, chars, literal, repeat, seq

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<define>[A-Za-z_][\w-]*\s*::=)
      | (?P<name>[A-Za-z_][\w-]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*")
      | (?P<set>\[(?:[^\]\\\n]|\\.)*\])
      | (?P<count>\{\s*\d*\s*(?:,\s*\d*\s*)?\})
      | (?P<sign>[.|()*+?])""",
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "^": "^", "-": "-"}
_ROOT = "root"
_MAX_GROUPS = 50  # in each other
_MAX_DIGITS = 18  # of a repetition's bounds


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def gbnf_rules(text: str) -> Rules:
    """Rules from the text of a grammar file. ``GrammarError`` names the line."""
    if not isinstance(text, str):
        raise GrammarError(f"the grammar is {text!r}: give the text of a GBNF file")
    tokens = [*_tokens(text), _Token("end", "the end", text.count("\n") + 1)]
    parser = _Parser(tokens)
    rules = parser.rules()
    if _ROOT not in rules:
        raise GrammarError(f"the grammar has no rule {_ROOT!r}: add 'root ::= ...', what a whole output is")
    return Rules(rules, _ROOT)


def _tokens(text: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise GrammarError(f"grammar, line {line}: cannot read {text[at : at + 20].splitlines()[0]!r}")
        kind = str(match.lastgroup)
        if kind != "space":
            yield _Token(kind, match.group(), line)
        line += match.group().count("\n")
        at = match.end()


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, Expr]:
        rules: dict[str, Expr] = {}
        while self._tokens[self._at].kind != "end":
            define = self._tokens[self._at]
            if define.kind != "define":
                raise self._error("a rule (name ::= ...) was expected")
            self._at += 1
            name = define.text.removesuffix("::=").rstrip()
            if name in rules:
                raise GrammarError(f"grammar, line {define.line}: rule {name!r} is defined twice: rename one")
            rules[name] = self._alternatives()
        return rules

    def _alternatives(self) -> Expr:
        options = [self._sequence()]
        while self._tokens[self._at].text == "|":
            self._at += 1
            options.append(self._sequence())
        return alt(*options)

    def _sequence(self) -> Expr:
        parts: list[Expr] = []
        while True:
            token = self._tokens[self._at]
            if token.kind in ("define", "end") or token.text in ("|", ")"):
                return seq(*parts)
            item = self._item(token)
            bounds = self._bounds()
            parts.append(item if bounds is None else repeat(item, *bounds))

    def _item(self, token: _Token) -> Expr:
        if token.kind not in ("name", "text", "set") and token.text not in (".", "("):
            raise self._error("nothing to repeat")
        self._at += 1
        if token.kind == "name":
            return Call(token.text)
        if token.kind == "text":
            return literal("".join(char for char, _ in _unescape(token.text[1:-1], token.line)))
        if token.kind == "set":
            return chars(_class(token))
        if token.text == ".":
            return chars(characters.EVERY)
        self._depth += 1
        if self._depth > _MAX_GROUPS:
            raise GrammarError(f"grammar, line {token.line}: groups nest deeper than {_MAX_GROUPS}: name some as rules")
        group = self._alternatives()
        self._depth -= 1
        if self._tokens[self._at].text != ")":
            raise GrammarError(f"grammar, line {token.line}: the group is not closed: add ')'")
        self._at += 1
        return group

    def _bounds(self) -> tuple[int, int | None] | None:
        token = self._tokens[self._at]
        signs: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if token.text in signs and token.kind == "sign":
            self._at += 1
            return signs[token.text]
        if token.kind != "count":
            return None
        low, comma, high = token.text.strip("{}").partition(",")
        if max(len(low), len(high)) > _MAX_DIGITS:
            raise self._error(f"a bound of a repetition has at most {_MAX_DIGITS} digits")
        first = int(low) if low.strip() else 0
        last = first if not comma else int(high) if high.strip() else None
        if not (low.strip() or comma) or (last is not None and last < first):
            raise self._error("a repetition is {m}, {m,}, {,n} or {m,n} with m up to n")
        self._at += 1
        return first, last

    def _error(self, what: str) -> GrammarError:
        token = self._tokens[self._at]
        return GrammarError(f"grammar, line {token.line}, at {token.text!r}: {what}")


def _unescape(text: str, line: int) -> Iterator[tuple[str, bool]]:
    """Characters, and whether each was escaped."""
    at = 0
    while at < len(text):
        if text[at] != "\\":
            yield text[at], False
            at += 1
            continue
        match = _ESCAPE.match(text, at)
        digits = next((d for d in match.groups()[:3] if d), "") if match else ""
        if match is None or (not digits and match[4] not in _NAMED) or (digits and int(digits, 16) > characters.MAX):
            raise GrammarError(f"grammar, line {line}: the escape {text[at : at + 2]!r} is not supported")
        yield chr(int(digits, 16)) if digits else _NAMED[match[4]], True
        at = match.end()


def _class(token: _Token) -> Ranges:
    inner = token.text[1:-1]
    negated = inner.startswith("^")
    members = [*_unescape(inner[1:] if negated else inner, token.line)]
    pairs: list[tuple[int, int]] = []
    at = 0
    while at < len(members):
        low = high = ord(members[at][0])
        if members[at + 1 : at + 2] == [("-", False)] and at + 2 < len(members):
            high = ord(members[at + 2][0])
            at += 2
        if high < low:
            raise GrammarError(f"grammar, line {token.line}: the range in {token.text} must rise")
        pairs.append((low, high))
        at += 1
    found = characters.ranges(pairs)
    found = characters.complement(found) if negated else found
    if not found:
        raise GrammarError(f"grammar, line {token.line}: the class {token.text} has no character")
    return found
