"""Grammar files: what they match, and what they refuse with the line."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from grammar_harness import accepts, byte_vocabulary, ids_of

from minillm.grammar import GrammarError, compile_gbnf

BYTES = byte_vocabulary()

ARITHMETIC = """
# What repeats goes last: no rule begins by calling itself.
root   ::= sum
sum    ::= product (("+" | "-") product)*
product ::= atom
            ([*/] atom)*        # a rule goes on over lines
atom   ::= number | "(" sum ")" | "-"  atom
number ::= [1-9] [0-9]{,3}
"""

JSON = r"""
root   ::= value
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws ( pair ( "," ws pair )* )? "}" ws
pair   ::= string ":" ws value
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
ws     ::= [ \t\n]{0,3}
"""


@pytest.mark.parametrize(
    ("text", "matched", "others"),
    [
        (ARITHMETIC, ["1", "1+2*(3-40)", "--7", "((1))"], ["", "1+", "(1", "01", "1 + 2", "12345"]),
        (JSON, ['{"a": [1, -2.5]}', "[]", '"x"', "[true,\n null]"], ["{", "[1,]", " 1", "[    1]"]),
        ('root ::= "a" root "b" | ""', ["", "ab", "aaabbb"], ["a", "aab", "ba"]),
        ('root ::= [^a-c\\]é]+ "é\\u20ac\\U0001d11e\\x41"', ["xé€𝄞A", "€é€𝄞A"], ["aé€𝄞A", "]é€𝄞A", "éé€𝄞A"]),
        ('root ::= "a"{2} "b"{1,} "c"{,2} [d-]{1,2} .?', ["aabd", "aabbcc--x"], ["abd", "aad", "aabcccd", "aabdd--"]),
        ("root::=x\nx::=y-1|\"a\"\ny-1::=[0-9]", ["a", "7"], ["x"]),
    ],
)  # fmt: skip
def test_what_a_grammar_matches(text: str, matched: list[str], others: list[str]) -> None:
    grammar = compile_gbnf(text, BYTES)
    assert [each for each in [*matched, *others] if accepts(grammar, each)] == matched


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= a", "'a', which is not defined"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is defined twice"),
        ('root ::= ("a"\nb ::= "c"', "line 1: the group is not closed"),
        ('root ::= "a" )', "')': a rule (name ::= ...) was expected"),
        ('root ::=\n * "a"', "line 2, at '*': nothing to repeat"),
        ('root ::= "a"{2,1}', "m up to n"),
        ('root ::= "a"{}', "m up to n"),
        ('root ::= "a\n"', "line 1: cannot read"),
        ('root ::= "\\q"', "the escape '\\\\q'"),
        ('root ::= "\\ud800"', "surrogate"),
        ("root ::= [z-a]", "must rise"),
        ("root ::= [^\\x00-\\U0010ffff]", "has no character"),
        ('"a" ::= root', "line 1: cannot read"),
        ('root ::= root "a" | "a"', "left recursion: root -> root"),
        ('root ::= a "x"\na ::= b? root | "y"\nb ::= [0-9]', "left recursion: root -> a -> root"),
        ('root ::= "a" root', "nothing matches"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "line 1: groups nest deeper than 50"),
        ('root ::= "a"{' + "9" * 5000 + "}", "at most 18 digits"),
        ('root ::= r0\nr999 ::= "a"\n' + "".join(f"r{i} ::= r{i + 1}\n" for i in range(999)), "more than 200 rules"),
        (b"root", "give the text"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_line(text: Any, named: str) -> None:
    with pytest.raises(GrammarError) as error:
        compile_gbnf(text, BYTES)
    assert named in str(error.value)


def test_the_deepest_grammar_that_is_read_can_be_used() -> None:
    chain = "".join(f"r{i} ::= r{i + 1} [b]?\n" for i in range(198)) + 'r198 ::= "a"\n'
    groups = "(" * 50 + '"c" | ' + '"d")?' * 50
    grammar = compile_gbnf(f"root ::= r0 {groups}\n{chain}", BYTES)
    matched = ["abbb", "a" + "b" * 198, "ad", "ac" + "d" * 49]
    assert [text for text in [*matched, "acd", "b"] if accepts(grammar, text)] == matched


def test_a_random_output_of_the_json_grammar_is_json() -> None:
    grammar = compile_gbnf(JSON, BYTES)
    for seed in range(40):
        rng, state, output = random.Random(seed), grammar.start(), b""
        budget = rng.randint(1, 60)
        while budget and not grammar.is_finished(state):
            choice = rng.choice(ids_of(grammar.allowed(state, budget)))
            if choice == 256:
                break
            after = grammar.advance(state, choice)
            assert after is not None
            state, output, budget = after, output + bytes([choice]), budget - 1
        json.loads(output)
