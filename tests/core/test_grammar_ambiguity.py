"""Ambiguous grammars: against leftmost derivations by the definition, and no state grows with the readings."""

from __future__ import annotations

import random

import pytest
from adversaries import RandomChain
from ambiguous_grammars import check_ambiguous, derivations, random_productions
from grammar_harness import accepts, byte_vocabulary
from hypothesis import example, given
from hypothesis import strategies as st

from minillm.backends.hash_model import HashModel
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.sampling import SamplingParams
from minillm.grammar import (
    CompiledGrammar,
    GrammarError,
    GrammarLimitError,
    Vocabulary,
    automaton,
    compile_gbnf,
    compile_regex,
    frames,
)
from minillm.speculate.draft_model import DraftModel
from minillm.speculate.speculator import Speculation

BYTES = byte_vocabulary()


@given(st.integers(0, 2**32))
@example(99)  # two places with one frame, one of which the other returns to
def test_any_ambiguous_grammar(seed: int) -> None:
    check_ambiguous(seed)


def test_the_grammars_are_ambiguous() -> None:
    found = [random_productions(random.Random(seed)) for seed in range(100)]
    assert sum(len(derivations(productions, "aaaaaa")) > 20 for productions in found) > 20


NESTED_COUNTS = r"((a{0,30}b?){0,30}c?){0,30}|(a{0,9}|b{2,7}|ab){3,40}|(.{0,40}){0,40}"


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (compile_gbnf('root ::= "x" one | "x" two | "."\none ::= root "1"\ntwo ::= root "2"', BYTES), "x" * 400),
        (compile_gbnf('root ::= ("a"? ("b"? "a"?)*)*', BYTES), "ab" * 200),
        (compile_gbnf('root ::= "a" ("+" root)*', BYTES), "a+" * 200),
        (compile_gbnf('root ::= "a" root? root?', BYTES), "a" * 200),
        (compile_regex(NESTED_COUNTS, BYTES), "aabac" * 8),
    ],
)
def test_a_text_of_countless_readings_is_read_in_few_places(grammar: CompiledGrammar, text: str) -> None:
    state = grammar.start()
    for byte in text.encode():
        after = grammar.advance(state, byte)
        assert after is not None
        state = after
    assert grammar.allowed(state)
    assert len(state.places) <= len(text)
    assert max(len(frame.threads) for _, frame in state.places) <= 12


OPEN_ENDS = 'root ::= "(" root ")" | "(" root | "x"'  # each bracket may be closed or not


def test_a_limit_that_is_left_is_said_with_value_limit_and_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automaton, "_MAX_PLACES", 16)
    grammar = compile_gbnf(OPEN_ENDS, BYTES)
    state = grammar.start()
    for _ in range(5):
        state = grammar.advance(state, ord("(")) or state
    before = grammar.allowed(state)
    with pytest.raises(GrammarLimitError, match=r"in 17 ways or more, the most is 16: .* or lower max_tokens"):
        accepts(grammar, "(" * 20 + "x)")
    assert grammar.allowed(state) == before
    monkeypatch.setattr(frames, "_MAX_THREADS", 4)
    with pytest.raises(GrammarError, match=r"in 5 ways from one place, the most is 4: list fewer"):
        accepts(compile_regex("aa|ab|ac|ad|ae", BYTES), "aa")


# The end, and a vocabulary that a hash can choose from.
BRACKETS = Vocabulary([b"(", b")", b"x", None, b"((", b")))"], {3})


def test_an_output_at_a_limit_ends_alone_and_drafts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automaton, "_MAX_PLACES", 6)

    def run(speculation: Speculation | None) -> list[tuple[list[int], str | None, str, bool | None]]:
        grammar = compile_gbnf(OPEN_ENDS, BRACKETS)
        config = EngineConfig(debug_checks=True)
        engine = Engine(HashModel(vocab_size=6), config, eos_ids={3}, speculation=speculation)
        params = [SamplingParams(grammar=grammar, max_tokens=30, seed=seed) for seed in range(8)]
        requests = [
            engine.add_request([1, 2], each) for each in [*params, SamplingParams(max_tokens=30, ignore_eos=True)]
        ]
        events = list(engine.run())
        for request in requests:
            mine = [event for event in events if event.request_id == request.request_id]
            assert [event.kind for event in mine[:-1]] == ["token"] * request.num_output
            assert mine[-1].kind == ("error" if request.error else "finish")
            assert mine[-1].error == request.error
        return [(r.output_ids, r.finish_reason, r.error, r.matches_grammar) for r in requests]

    plainly = run(None)
    assert {reason for _, reason, _, _ in plainly[:-1]} == {"stop", "error"}
    assert plainly[-1][1] == "length"
    for _, reason, error, is_whole in plainly[:-1]:
        assert (reason == "error") == ("the most is 6" in error)
        assert is_whole == (reason == "stop")
    assert run(Speculation(RandomChain(), draft_tokens=3)) == plainly
    assert run(Speculation(DraftModel(HashModel(vocab_size=6)), draft_tokens=3)) == plainly
