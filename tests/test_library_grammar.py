"""The engine's own grammars and those of llguidance, on the same sources: the same language."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from grammar_harness import byte_vocabulary, ids_of
from jsonschema import Draft202012Validator
from smollm2_vocabulary import gguf_metadata

from minillm.grammar import Grammar, GrammarError
from minillm.models.tokenizer import load_tokenizer
from minillm.structured import Kind, compile_grammar, vocabulary_of

pytest.importorskip("llguidance")

BYTES = byte_vocabulary()
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 7, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", None]}, "minItems": 1, "maxItems": 3},
        "zip": {"type": "string", "pattern": "^[0-9]{2}[a-c]$"},
        "more": {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"$ref": "#/$defs/pair"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {
        "pair": {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/pair"}, "right": {"const": "x"}},
            "required": ["right"],
            "additionalProperties": False,
        }
    },
}
SOURCES: list[tuple[Kind, Any]] = [
    ("regex", "(a|bc){2,3}[^x]?é*"),
    ("regex", r"[0-9]{1,3}(\.[0-9]+)?[eE]?"),
    ("gbnf", 'root ::= "(" root ")" root | [ab]?'),
    ("gbnf", 'root ::= item ("," item)*\nitem ::= [a-z]+ | "[" root "]"'),
    ("json_schema", PERSON),
    ("json_schema", {"type": "string", "maxLength": 3}),
    ("json_schema", {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "boolean"}, "minItems": 1}),
    ("json_schema", {"oneOf": [{"type": "null"}, {"enum": ["a", "ab"]}]}),
]


def walk(grammar: Grammar, other: Grammar, rng: random.Random, steps: int) -> bytes | None:
    """A random output of the first, each of its masks compared with the second's; None if it came to no end."""
    state, twin, output = grammar.start(), other.start(), b""
    for _ in range(steps):
        assert grammar.is_accepting(state) == other.is_accepting(twin), output
        if grammar.is_finished(state):
            assert other.is_finished(twin)
            return output
        allowed = ids_of(grammar.allowed(state))
        assert allowed == ids_of(other.allowed(twin)), output
        ends = [token for token in allowed if token == 256 or token in b'"]},)']
        choice = rng.choice(ends if ends and rng.random() < 0.3 else allowed)
        while choice == ord("\\"):  # the library writes fewer escapes
            choice = rng.choice(allowed)
        if choice == 256:
            assert other.advance(twin, choice) is not None
            return output
        state, twin, output = grammar.advance(state, choice), other.advance(twin, choice), output + bytes([choice])
    return None


@pytest.mark.parametrize(("kind", "source"), SOURCES)
def test_byte_by_byte_both_allow_the_same(kind: Kind, source: Any) -> None:
    own = compile_grammar(kind, source, BYTES)
    library = compile_grammar(kind, source, BYTES, "llguidance")
    found = {walk(*pair, random.Random(seed), 80) for seed in range(12) for pair in ((own, library), (library, own))}
    assert len(found - {None}) > 1
    if kind == "json_schema":
        for output in found - {None}:
            assert output is not None
            Draft202012Validator(source).validate(json.loads(output))


def test_over_a_real_vocabulary_each_takes_what_the_other_emits() -> None:
    tokenizer = load_tokenizer(gguf_metadata())
    vocabulary = vocabulary_of(tokenizer, tokenizer.vocab_size)
    own = compile_grammar("json_schema", PERSON, vocabulary)
    library = compile_grammar("json_schema", PERSON, vocabulary, "llguidance")
    for emitter, reader in ((own, library), (library, own)):
        for seed in range(2):
            rng = random.Random(seed)
            state, twin = emitter.start(), reader.start()
            for _ in range(40):
                # The library spells forced text in one way only: never less than a token, and never another text.
                theirs, ours = (state, twin) if emitter is library else (twin, state)
                assert not library.allowed(theirs) & ~own.allowed(ours)
                allowed = emitter.allowed(state)
                choice = rng.randrange(vocabulary.size) if allowed.bit_count() > 10_000 else rng.choice(ids_of(allowed))
                while not allowed >> choice & 1 or b"\\" in (vocabulary.tokens[choice] or b""):
                    choice = rng.randrange(vocabulary.size)
                state, twin = emitter.advance(state, choice), reader.advance(twin, choice)
                assert twin is not None
                if emitter.is_finished(state):
                    break


def test_an_old_state_of_the_library_is_as_good_as_new() -> None:
    library = compile_grammar("regex", "a{3}b", BYTES, "llguidance")
    states = [library.start()]
    for byte in b"aaab":
        states.append(library.advance(states[-1], byte))
    assert [ids_of(library.allowed(state)) for state in states] == [[97], [97], [97], [98], [256]]
    assert library.advance(states[1], 98) is None
    assert library.advance(states[3], 98) is not None


def test_what_the_library_refuses_says_who_refused_it() -> None:
    with pytest.raises(GrammarError, match="llguidance: "):
        compile_grammar("regex", "(a", BYTES, "llguidance")
    with pytest.raises(GrammarError, match="llguidance: "):
        compile_grammar("json_schema", {"type": "strin"}, BYTES, "llguidance")
    with pytest.raises(GrammarError, match="llguidance: "):
        compile_grammar("gbnf", "root ::= (", BYTES, "llguidance")
