"""Regular expressions: the same texts as Python's own engine finds."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import pytest
from grammar_harness import accepts, byte_vocabulary
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minillm.grammar import CompiledGrammar, GrammarError, characters, compile_regex
from minillm.grammar.expressions import Rules, chars

BYTES = byte_vocabulary()
LETTERS = "abAZ09_ -.\n\t\x00é€𝄞]^"

# Parts of a pattern, each with texts that are likely to match.
_ESCAPES = {"\\d": "09", "\\w": "aZ_", "\\s": " \n", "\\D": "a€", "\\W": "-é", "\\S": "a𝄞", "\\n": "\n", "\\.": "."}
_ESCAPES |= {"\\]": "]", "\\-": "-", "\\x41": "A", "\\u20ac": "€", ".": "a𝄞\x00"}
_PLAIN = {re.escape(letter): letter for letter in LETTERS if letter.isprintable()}
_COUNTS = {"": 1, "*": 3, "+": 2, "?": 0, "*?": 1, "{2}": 2, "{1,}": 4, "{,2}": 1, "{0,3}": 3, "{1,2}?": 2}

MOST_CHARACTERS = 10

Part: TypeAlias = tuple[str, str]  # a pattern, and a text


@st.composite
def classes(draw: st.DrawFn) -> Part:
    # No \D: with \d in a negated class it leaves no character, which is refused.
    members = ["a", "b", "0", "_", "é", "\\d", "\\w", "\\s", "\\n", "\\]", "\\-", "\\x41", "a-f", "0-9", "é-€", "A-𝄞"]
    chosen = draw(st.lists(st.sampled_from(members), min_size=1, max_size=4))
    return f"[{draw(st.sampled_from(['', '^']))}{''.join(chosen)}]", draw(st.sampled_from(LETTERS))


@st.composite
def counted(draw: st.DrawFn, inner: st.SearchStrategy[Part]) -> Part:
    (pattern, text), count = draw(inner), draw(st.sampled_from([*_COUNTS]))
    return pattern + count, text * _COUNTS[count]


def patterns() -> st.SearchStrategy[Part]:
    known = _ESCAPES | _PLAIN
    atom = st.sampled_from([*known]).flatmap(lambda p: st.tuples(st.just(p), st.sampled_from(known[p]))) | classes()

    def larger(inner: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
        group = st.tuples(st.sampled_from(["(", "(?:"]), inner).map(lambda p: (f"{p[0]}{p[1][0]})", p[1][1]))
        parts = st.lists(counted(group) | counted(atom), max_size=4)
        sequence = parts.map(lambda found: ("".join(p for p, _ in found), "".join(t for _, t in found)))
        choice = st.tuples(inner, inner).map(lambda two: (f"{two[0][0]}|{two[1][0]}", two[1][1]))
        return sequence | choice

    return st.recursive(atom, larger, max_leaves=8)


@given(patterns(), st.lists(st.text(LETTERS, max_size=5), max_size=3), st.integers(0, 20))
def test_the_same_texts_as_pythons_engine(part: Part, texts: list[str], cut: int) -> None:
    pattern, likely = part
    expected = re.compile(pattern, re.ASCII)
    grammar = compile_regex(pattern, BYTES)
    # Python's engine backtracks: a repetition within a repetition takes it time that doubles with each character.
    for text in [likely, likely[:cut] + likely[cut + 1 :], likely + likely[:cut], *texts]:
        text = text[:MOST_CHARACTERS]
        assert accepts(grammar, text) == bool(expected.fullmatch(text)), text


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("a(?=b)", "character 1: look-around"),
        ("(?i)a", "flags"),
        (r"(a)\1", r"\1 is not supported"),
        (r"\bword", r"\b is not supported"),
        (r"\p{L}", r"\p is not supported"),
        ("a*+", "possessive"),
        ("a**", "repetition of a repetition"),
        ("a{2}{3}", "repetition of a repetition"),
        ("*a", "nothing to repeat"),
        ("{2}", "nothing to repeat"),
        ("(a", "not closed"),
        ("a)", "closes nothing"),
        ("[a", "not closed"),
        ("[b-a]", "must rise"),
        (r"[a-\d]", "must rise"),
        ("a{3,2}", "ends before it begins"),
        ("a{2,200000}", "200,000"),
        ("b^a", "at the beginning only"),
        ("a$b", "'$' within"),
        ("(a$)", "'$' within a group"),
        ("a\\", "ends"),
        (r"\xZZ", "2 hexadecimal digits"),
        (r"\ud800", "surrogate"),
        ("\ud800", "surrogate"),
        (r"[^\x00-\U0010ffff]", r"\U is not supported"),
        (r"[^\d\D]", "no character"),
        ("(?P<name", "missing"),
        ("a{" + "9" * 5000 + "}", "at most 18 digits"),
        (b"a", "give a string"),
        (None, "give a string"),
    ],
)
def test_what_is_not_regular_or_not_whole_is_refused_by_name(pattern: Any, named: str) -> None:
    with pytest.raises(GrammarError) as error:
        compile_regex(pattern, BYTES)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "texts", "others"),
    [
        ("^ab$|^c", ["ab", "c"], ["a", "abc"]),
        ("a{,}", ["", "aaa"], ["b"]),
        ("a{}|a{x}|{", ["a{}", "a{x}", "{"], ["a"]),
        ("[]a]+[^]a]", ["]a]b"], ["]a]", "b"]),
        ("(?P<first>a)b", ["ab"], ["a"]),
        ("", [""], ["a"]),
    ],
)
def test_corners_of_the_syntax(pattern: str, texts: list[str], others: list[str]) -> None:
    grammar = compile_regex(pattern, BYTES)
    assert [text for text in [*texts, *others] if accepts(grammar, text)] == texts
    assert [text for text in [*texts, *others] if re.fullmatch(pattern, text)] == texts


def test_a_class_is_the_utf8_of_its_characters_and_nothing_else() -> None:
    # Edges of the encoding's lengths, of the surrogates, and ranges that end within a byte.
    edges = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x1F64F, 0xFFFFF, 0x10FFFF]
    for low in edges:
        for high in edges:
            if low <= high:
                grammar = CompiledGrammar(Rules({"root": chars(characters.ranges([(low, high)]))}, "root"), BYTES)
                for point in {p + d for p in edges for d in (-1, 0, 1)}:
                    if 0 <= point <= 0x10FFFF and not 0xD800 <= point <= 0xDFFF:
                        assert accepts(grammar, chr(point)) == (low <= point <= high), (low, high, point)


@given(st.binary(max_size=4))
@example(b"\xed\xa0\x80")  # half a surrogate pair
@example(b"\xc0\x80")  # zero in two bytes
@example(b"\xf4\x90\x80\x80")  # above the last code point
@settings(max_examples=300)
def test_bytes_that_are_no_utf8_never_match(data: bytes) -> None:
    try:
        is_text = bool(data.decode()) or not data
    except UnicodeDecodeError:
        is_text = False
    assert accepts(compile_regex(r"[\s\S]*", BYTES), data) == is_text
