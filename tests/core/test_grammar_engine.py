"""Grammars in the engine: whatever the batch, the chunks and the preemptions, outputs match and are whole."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from core_harness import Case, Job, drive, random_case
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.backends.hash_model import HashModel
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.plan import StepPlan, StepResult
from minillm.core.request import Request, RequestError
from minillm.core.sampling import SamplingParams
from minillm.core.sampling.constraint import GrammarBreachError, allowed_tokens
from minillm.grammar import Vocabulary, compile_gbnf, compile_regex

# The end, every byte that the grammars need, some longer tokens, and one that no text turns into.
EOS = 3
VOCABULARY = Vocabulary([b"a", b"b", b"(", None, b")", b"ab", b"((", b"))", b"b)(", None, b"1"], {EOS})
GRAMMARS = [
    compile_regex("(ab|b){2,3}", VOCABULARY),
    compile_regex("a*", VOCABULARY),
    compile_regex("a{4}", VOCABULARY),
    compile_gbnf('root ::= "(" root ")" root | [ab]?', VOCABULARY),
]


def grammar_case(rng: random.Random) -> Case:
    """A random workload in which most requests have a grammar."""
    case = random_case(rng)

    def job(old: Job) -> Job:
        if old.params.beam_width or rng.random() < 0.2:
            return old
        params = replace(old.params, logit_bias=(), bad_words=rng.choice([(), (), ((0, 0),)]))
        ends = {"stop_token_ids": (), "ignore_eos": False, "min_tokens": rng.choice([0, 0, 0, 2])}
        ends["max_tokens"] = max(ends["min_tokens"], rng.randint(1, 9))
        params = replace(params, grammar=rng.choice(GRAMMARS), **ends)
        return replace(old, params=params)

    return replace(case, jobs=tuple(map(job, case.jobs)), eos_ids=frozenset({EOS}), vocab_size=VOCABULARY.size + 2)


def audit(case: Case) -> tuple[int, int, int]:
    """Run it under all audits. How many outputs with a grammar are whole, were preempted, and were refused."""
    outcome = drive(case)
    whole = preempted = 0
    for request in outcome.engine.requests.values():
        if request.params.grammar is None or request.finish_reason in ("abort", "error"):
            continue
        if not (request.params.bad_words or request.params.min_tokens):
            assert request.matches_grammar, "the tokens left were not enough after all"
        whole += bool(request.matches_grammar)
        preempted += request.num_preemptions > 0
    return whole, preempted, len(outcome.refused)


@given(st.integers(0, 2**32))
@settings(max_examples=100)
def test_any_workload(seed: int) -> None:
    audit(grammar_case(random.Random(seed)))


def test_the_workloads_meet_preemption_refusal_and_whole_outputs() -> None:
    whole, preempted, refused = map(
        sum, zip(*(audit(grammar_case(random.Random(seed))) for seed in range(120)), strict=True)
    )
    assert whole > 100
    assert preempted > 3
    assert refused > 10


def run(params: SamplingParams, model: HashModel | None = None) -> Request:
    engine = Engine(model or HashModel(vocab_size=20), EngineConfig(), eos_ids={EOS})
    request = engine.add_request([1, 2], params)
    for _ in engine.run():
        pass
    return request


def test_an_output_ends_when_nothing_can_follow_without_a_step_for_the_end() -> None:
    request = run(SamplingParams(grammar=compile_regex("a{4}", VOCABULARY), max_tokens=9))
    assert (request.output_ids, request.finish_reason) == ([0, 0, 0, 0], "stop")
    assert not request.grammar_cut


def test_an_output_that_could_go_on_ends_by_the_end_of_sequence_or_by_length() -> None:
    grammar = compile_regex("a*", VOCABULARY)
    reasons = set()
    for seed in range(30):
        request = run(SamplingParams(grammar=grammar, max_tokens=5, seed=seed))
        assert request.matches_grammar
        assert request.output_ids == [0] * 5 or request.output_ids == [0] * (request.num_output - 1) + [EOS]
        reasons.add(request.finish_reason)
    assert reasons == {"stop", "length"}


def test_the_last_tokens_go_to_what_is_still_open_and_the_request_says_so() -> None:
    grammar = compile_gbnf('root ::= "(" root ")" | "a"', VOCABULARY)
    cut = {run(SamplingParams(grammar=grammar, max_tokens=5, seed=seed)).grammar_cut for seed in range(30)}
    assert cut == {True, False}
    for seed in range(30):
        request = run(SamplingParams(grammar=grammar, max_tokens=5, seed=seed))
        assert request.matches_grammar
        assert request.finish_reason == "stop"


def test_drafts_are_masked_one_by_one_and_leave_the_state_alone() -> None:
    request = run(SamplingParams(grammar=compile_regex("(ab)+b?", VOCABULARY), max_tokens=1))
    state = request.grammar_state
    request.max_total_tokens += 3
    assert request.output_ids == [5]  # "ab": nothing shorter can be completed by one token
    assert allowed_tokens(request) == 1 << 0 | 1 << 1 | 1 << 5 | 1 << EOS
    assert allowed_tokens(request, [0]) == 1 << 1
    assert allowed_tokens(request, [0, 1]) == 1 << 1 | 1 << 5 | 1 << EOS  # one token is left: no "a" any more
    assert allowed_tokens(request, [EOS]) == 1 << EOS
    assert allowed_tokens(request, [4]) is None  # a draft that the grammar forbids will be rejected
    assert request.grammar_state is state


def test_a_draw_outside_the_mask_is_a_fault_of_the_backend() -> None:
    class Deaf(HashModel):
        def run(self, plan: StepPlan) -> StepResult:
            plan.transforms.clear()
            return super().run(plan)

    with pytest.raises(GrammarBreachError, match="output token 0 is "):
        run(SamplingParams(grammar=compile_regex("b", VOCABULARY), temperature=0), Deaf(vocab_size=20))


def test_what_cannot_be_served_is_refused_with_the_numbers() -> None:
    with pytest.raises(RequestError, match=r"takes up to 4 tokens, the request has 3: raise max_tokens to at least 4"):
        run(SamplingParams(grammar=compile_regex("a{4}", VOCABULARY), max_tokens=3))
    with pytest.raises(RequestError, match=r"compiled for 11 ids, the vocabulary has 8"):
        run(SamplingParams(grammar=GRAMMARS[0]), HashModel(vocab_size=8))


@pytest.mark.parametrize("fields", [{"stop": ("x",)}, {"stop_token_ids": (1,)}, {"ignore_eos": True}])
def test_only_the_grammar_says_where_its_output_ends(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="beside a grammar"):
        SamplingParams(grammar=GRAMMARS[0], **fields)


def test_a_ban_that_leaves_the_grammar_nothing_ends_the_request_with_an_error() -> None:
    request = run(SamplingParams(grammar=compile_regex("a{4}", VOCABULARY), max_tokens=9, bad_words=((0, 0),)))
    assert request.finish_reason == "error"
    assert "ban all 20 tokens" in request.error
    assert request.matches_grammar is False
