"""Regular expressions, in the part of Python's syntax that describes a regular language.

Literals, ``.``, classes with ranges and negation, ``\\d \\w \\s \\D \\W \\S`` in their ASCII meaning, the escapes
``\\n \\r \\t \\f \\v \\0 \\xHH \\uHHHH``, groups (also ``(?:...)`` and named ones), ``|``, and
``* + ? {m} {m,} {,n} {m,n}`` with their lazy forms, which match the same texts. ``^`` and ``$`` may stand at the
ends of the pattern's alternatives. Look-around, back references, ``\\b``, possessive repetition and flags are
refused by name.
"""

from __future__ import annotations

from collections.abc import Callable

from minillm.grammar import characters
from minillm.grammar.expressions import EMPTY, Expr, GrammarError, Ranges, Rules, alt, chars, repeat, seq

_SHORTHAND = {
    "d": characters.ranges([(48, 57)]),
    "w": characters.ranges([(48, 57), (65, 90), (95, 95), (97, 122)]),
    "s": characters.of(" \t\n\r\f\v"),
}
_ASCII: Ranges = ((0, 127),)
_CONTROL = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0", "a": "\a"}
_HEX_DIGITS = {"x": 2, "u": 4}
_ANY_BUT_NEWLINE = characters.complement(characters.of("\n"))
# ECMA-262, which JSON Schema follows, knows more ends of a line than Python: no pattern should rely on them.
_ANY_BUT_LINE_ENDS = characters.complement(characters.of("\n\r\u2028\u2029"))
_MAX_REPEAT = 100_000
_MAX_DIGITS = 18


def regex_rules(pattern: str) -> Rules:
    """The texts that ``re.fullmatch(pattern, text, re.ASCII)`` matches."""
    return Rules({"root": regex_expr(pattern)}, "root")


def regex_expr(pattern: str) -> Expr:
    return _Parser(pattern, chars, search=False).parse()


def search_expr(pattern: str, encode: Callable[[Ranges], Expr]) -> Expr:
    """Texts in which ``pattern`` is found, as JSON Schema's ``pattern`` means it: ``^`` and ``$`` bind it.

    ``encode`` spells one character of a set. Where ECMA-262 and Python disagree about a class, only what
    both take is matched.
    """
    return _Parser(pattern, encode, search=True).parse()


class _Parser:
    """Recursive descent; every method leaves ``_at`` behind what it read."""

    def __init__(self, pattern: str, encode: Callable[[Ranges], Expr], search: bool) -> None:
        if not isinstance(pattern, str):
            raise GrammarError(f"regular expression {pattern!r}: give a string")
        self._pattern = pattern
        self._encode = encode
        self._search = search
        self._dot = _ANY_BUT_LINE_ENDS if search else _ANY_BUT_NEWLINE
        self._at = 0
        self._depth = 0
        for at, char in enumerate(pattern):
            if not characters.of(char):
                raise self._error("half a surrogate pair, which is no character", at)

    def parse(self) -> Expr:
        anything = repeat(self._encode(characters.EVERY), 0, None) if self._search else EMPTY
        options = []
        while True:
            before = EMPTY if self._take("^") else anything
            body = self._sequence()
            after = EMPTY if self._take("$") else anything
            options.append(seq(before, body, after))
            if not self._take("|"):
                break
        if self._at < len(self._pattern):
            raise self._error(f"{self._pattern[self._at]!r} closes nothing" if self._peek() == ")" else "'$' within")
        return alt(*options)

    def _alternatives(self) -> Expr:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return alt(*options)

    def _sequence(self) -> Expr:
        parts = []
        while self._peek() not in ("", "|", ")", "$"):
            parts.append(self._repeated())
        return seq(*parts)

    def _repeated(self) -> Expr:
        start = self._at
        atom = self._atom()
        bounds = self._quantifier()
        if bounds is None:
            return atom
        low, high = bounds
        if high is not None and high < low:
            raise self._error(f"the repetition {{{low},{high}}} ends before it begins", start)
        if max(low, high or 0) > _MAX_REPEAT:
            raise self._error(f"a repetition of {max(low, high or 0):,}, the most is {_MAX_REPEAT:,}", start)
        if self._take("+"):
            raise self._error("possessive repetition is not supported: leave the last '+' out", self._at - 1)
        self._take("?")  # lazy: the same texts
        if self._quantifier() is not None:
            raise self._error("a repetition of a repetition: put the inner one in a group", start)
        return repeat(atom, low, high)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        end = self._pattern.find("}", self._at)
        if self._peek() != "{" or end < 0:
            return None
        low, comma, high = self._pattern[self._at + 1 : end].partition(",")
        if not all(part == "" or (part.isascii() and part.isdigit()) for part in (low, high)) or not (low or comma):
            return None  # as in Python, any other brace stands for itself
        if max(len(low), len(high)) > _MAX_DIGITS:
            raise self._error(f"a bound of a repetition has at most {_MAX_DIGITS} digits")
        self._at = end + 1
        first = int(low or 0)
        return first, (int(high) if high else None) if comma else first

    def _atom(self) -> Expr:
        start = self._at
        char = self._next()
        if char == "(":
            return self._group(start)
        if char == "[":
            return self._encode(self._class(start))
        if char == ".":
            return self._encode(self._dot)
        if char == "\\":
            return self._encode(self._escape(start))
        if char == "^":
            raise self._error("'^' within a pattern is not supported: use it at the beginning only", start)
        if char in "*+?" or (char == "{" and self._is_quantifier(start)):
            raise self._error(f"{char!r} has nothing to repeat: write \\{char} for the character", start)
        return self._encode(characters.of(char))

    def _is_quantifier(self, at: int) -> bool:
        behind, self._at = self._at, at
        found = self._quantifier() is not None
        self._at = behind
        return found

    def _group(self, start: int) -> Expr:
        if self._take("?"):
            if self._take("P<"):
                self._at = self._find(">", start) + 1
            elif not self._take(":"):
                raise self._error("look-around, flags and other (?...) are not supported, only (?:...)", start)
        self._depth += 1
        if self._depth > 50:
            raise self._error("groups nest deeper than 50", start)
        body = self._alternatives()
        self._depth -= 1
        if self._peek() == "$":
            raise self._error("'$' within a group is not supported: use it at the end of the pattern only")
        if not self._take(")"):
            raise self._error("the group is not closed: add ')'", start)
        return body

    def _class(self, start: int) -> Ranges:
        negated = self._take("^")
        pairs: list[tuple[int, int]] = []
        shorthand = False
        first = True
        while first or self._peek() != "]":
            first = False
            low, is_set = self._class_member(start)
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high, high_is_set = self._class_member(start)
                if is_set or high_is_set or high[0][0] < low[0][0]:
                    raise self._error("a range in a class must rise from one character to another", start)
                pairs.append((low[0][0], high[0][0]))
            else:
                pairs.extend(low)
                shorthand = shorthand or is_set
        self._at += 1
        found = characters.ranges(pairs)
        if negated:
            found = characters.complement(found)
            if shorthand and self._search:
                found = characters.intersect(found, _ASCII)
        if not found:
            raise self._error("the class has no character", start)
        return found

    def _class_member(self, start: int) -> tuple[Ranges, bool]:
        """One character, or a shorthand for several (then True)."""
        if self._at >= len(self._pattern):
            raise self._error("the class is not closed: add ']'", start)
        place = self._at
        char = self._next()
        if char != "\\":
            return characters.of(char), False
        if self._take("b"):
            return characters.of("\b"), False
        is_set = self._peek().lower() in _SHORTHAND and bool(self._peek())
        return self._escape(place), is_set

    def _escape(self, start: int) -> Ranges:
        char = self._next("a character after the backslash")
        if char.lower() in _SHORTHAND:
            found = _SHORTHAND[char.lower()]
            if char.islower():
                return found
            # Python counts digits, letters and spaces of all scripts, ECMA-262 those of ASCII.
            return characters.intersect(characters.complement(found), _ASCII if self._search else characters.EVERY)
        if char in _HEX_DIGITS:
            digits = self._pattern[self._at : self._at + _HEX_DIGITS[char]]
            if len(digits) < _HEX_DIGITS[char] or not all(d in "0123456789abcdefABCDEF" for d in digits):
                raise self._error(f"\\{char} needs {_HEX_DIGITS[char]} hexadecimal digits", start)
            self._at += len(digits)
            found = characters.ranges([(int(digits, 16), int(digits, 16))])
            if not found:
                raise self._error(f"\\{char}{digits} is half a surrogate pair, which is no character", start)
            return found
        if char in _CONTROL and not (char == "0" and self._peek().isdigit()):
            return characters.of(_CONTROL[char])
        if char.isascii() and char.isalnum():
            raise self._error(f"\\{char} is not supported", start)
        return characters.of(char)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self, wanted: str = "more") -> str:
        char = self._peek()
        if not char:
            raise self._error(f"the pattern ends, {wanted} was expected")
        self._at += 1
        return char

    def _take(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        if found:
            self._at += len(text)
        return found

    def _find(self, text: str, start: int) -> int:
        at = self._pattern.find(text, self._at)
        if at < 0:
            raise self._error(f"{text!r} is missing", start)
        return at

    def _error(self, what: str, at: int | None = None) -> GrammarError:
        return GrammarError(f"regular expression {self._pattern!r}, character {self._at if at is None else at}: {what}")
