"""Masks and states of grammars: against a recognizer by definition, and against asking about every token."""

from __future__ import annotations

import json
import random

import pytest
from grammar_harness import accepts, audit, byte_vocabulary, ids_of, random_grammar
from hypothesis import given
from hypothesis import strategies as st
from smollm2_vocabulary import gguf_metadata

from minillm.grammar import (
    CompiledGrammar,
    Vocabulary,
    compile_json_schema,
    compile_regex,
)
from minillm.grammar.expressions import Call, Rules, alt, chars, literal, repeat, seq
from minillm.grammar.rules import prepare
from minillm.models.tokenizer import load_tokenizer

BYTES = byte_vocabulary()


@given(st.integers(0, 2**32))
def test_any_small_grammar(seed: int) -> None:
    audit(random_grammar(random.Random(seed)))


def test_the_audit_sees_grammars_of_every_kind() -> None:
    compiled = [audit(random_grammar(random.Random(seed)), walks=0) for seed in range(200)]
    assert 100 < sum(compiled) < 190


@pytest.fixture(scope="module")
def smollm2() -> Vocabulary:
    tokenizer = load_tokenizer(gguf_metadata())
    ids = range(tokenizer.vocab_size)
    return Vocabulary([None if tokenizer.is_special(i) else tokenizer.token_bytes(i) for i in ids], tokenizer.eos_ids)


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "friends": {"type": "array", "items": {"$ref": "#"}, "maxItems": 3},
        "note": {"type": "string"},
    },
    "required": ["name", "age"],
}


@pytest.mark.parametrize("seed", range(3))
def test_masks_over_a_real_vocabulary_are_those_of_asking_about_every_token(smollm2: Vocabulary, seed: int) -> None:
    grammar = compile_json_schema(PERSON, smollm2)
    rng = random.Random(seed)
    quotes = smollm2.mask(id for id, token in enumerate(smollm2.tokens) if token and b'"' in token)
    state, budget, text = grammar.start(), 30, b""
    while not grammar.is_finished(state):
        allowed = grammar.allowed(state, budget)
        after = {id: grammar.advance(state, id) for id in range(smollm2.size)}
        reached = {id: place for id, place in after.items() if place is not None}
        assert ids_of(grammar.allowed(state)) == [*reached]
        assert ids_of(allowed) == [id for id in reached if grammar.tokens_to_finish(reached[id]) < budget]
        # Strings end soon, so that the walk meets what comes after them.
        choice = rng.choice(ids_of(allowed & quotes or allowed) if rng.random() < 0.4 else ids_of(allowed))
        text += smollm2.tokens[choice] or b""
        state, budget = reached[choice], budget - 1
    assert json.loads(text)["age"] <= 130


def test_what_a_counted_repetition_allows_is_exact_near_its_end(smollm2: Vocabulary) -> None:
    grammar = compile_regex("[a-z]{2,300}!", smollm2)
    for length in (0, 1, 2, 150, 215, 216, 217, 218, 219, 220, 290, 298, 299, 300):
        state = grammar.start()
        for _ in range(length):
            after = grammar.advance(state, smollm2.tokens.index(b"a"))
            assert after is not None
            state = after
        expected = [i for i in range(smollm2.size) if grammar.advance(state, i) is not None]
        assert ids_of(grammar.allowed(state)) == expected, f"after {length} letters"


def test_equal_parts_are_one_part() -> None:
    """So that the walks of one string are those of all: each of these is made anew by its rule."""
    rules = {name: repeat(alt(chars(((97, 122),)), literal("é!")), 0, 9) for name in ("one", "two")}
    prepared = prepare(Rules({"root": seq(Call("one"), literal("-"), Call("two")), **rules}, "root"), BYTES)
    assert prepared.rules["one"] is prepared.rules["two"]
    grammar = CompiledGrammar(prepared, BYTES)
    assert accepts(grammar, "aé!-zz")
    assert not accepts(grammar, "aé-zz")
