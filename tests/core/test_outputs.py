"""Several outputs of one prompt: samples, best_of and beams, against an oracle and by their own rules."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from core_harness import GREEDY, AuditedModel, Case, Job, Outcome, drive, make_engine, without
from output_cases import beams, random_case, sampled

from minillm.backends.hash_model import HashModel
from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine, EngineError, RequestError
from minillm.core.outputs.group import outputs
from minillm.core.plan import StepPlan, StepResult
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams, distribution

ROOMY = EngineConfig(block_size=4, num_blocks=200, max_running_requests=64, debug_checks=True)


def run(engine: Engine, prompt: list[int], params: SamplingParams) -> Request:
    request = engine.add_request(prompt, params)
    list(engine.run())
    return request


def members(request: Request) -> list[Request]:
    assert request.group is not None
    return request.group.members


# --- under all audits ---------------------------------------------------------------------------------------


def test_whatever_preempts_or_ends_them_the_outputs_are_those_of_the_oracle() -> None:
    """``drive`` compares every output with a textbook search or with draws made without an engine."""
    outcomes = [drive(random_case(random.Random(seed))) for seed in range(400)]
    requests = [request for outcome in outcomes for request in outcome.engine.requests.values()]
    searched = [r for r in requests if r.params.beam_width]
    assert sum(r.num_preemptions > 0 for r in searched) > 40
    assert sum(r.num_preemptions > 0 for r in requests if r.params.n > 1) > 10
    assert Counter(r.finish_reason for r in searched).keys() >= {"stop", "length", "abort"}
    kinds = Counter(e.kind for outcome in outcomes for e in outcome.engine.trace.events)
    assert kinds["fork"] > 1000
    assert kinds["copy"] > 300


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_long_fuzz(block: int) -> None:
    for seed in range(1000 + block * 3000, 1000 + (block + 1) * 3000):
        drive(random_case(random.Random(seed)))


# --- samples ------------------------------------------------------------------------------------------------


def test_the_first_of_n_samples_is_the_one_sample() -> None:
    engine, _ = make_engine(ROOMY, vocab_size=50)
    alone, several = run(engine, [1, 2], sampled(1)), run(engine, [1, 2], sampled(4))
    assert alone.group is None
    assert [r.request_id for r in members(several)] == ["r1", "r1/1", "r1/2", "r1/3"]
    assert several.output_ids == alone.output_ids
    assert [r.output_ids for r in outputs(several)] == [r.output_ids for r in members(several)]
    again = run(engine, [1, 2], sampled(2))
    assert [r.output_ids for r in members(again)] == [r.output_ids for r in members(several)[:2]]


def test_row_65_the_first_tokens_are_drawn_apart_as_the_distribution_says() -> None:
    """One first token, drawn once and copied to all samples, was a bug elsewhere."""
    engine = Engine(HashModel(vocab_size=6), EngineConfig(num_blocks=400, max_running_requests=64))
    params = sampled(50, temperature=4.0, max_tokens=1)
    counts: Counter[int] = Counter()
    for seed in range(40):
        request = run(engine, [3, 1], SamplingParams(n=50, temperature=4.0, max_tokens=1, seed=seed))
        counts += Counter(r.output_ids[0] for r in members(request))
    model = engine.backend
    assert isinstance(model, HashModel)
    expected = dict(distribution(model.logits_after([3, 1]), params))
    # Chi-square with 5 degrees of freedom: 25.7 is passed once in 10,000 draws; these are fixed.
    assert sum((counts[i] - 2000 * p) ** 2 / (2000 * p) for i, p in expected.items()) < 25.7


def test_a_prompt_is_computed_once_and_its_blocks_are_shared() -> None:
    engine, model = make_engine(ROOMY, vocab_size=50)
    engine.add_request([7] * 10, sampled(4, max_tokens=8))
    engine.step()
    assert engine.kv.pool.num_used == 3  # the prompt's alone
    engine.step()
    assert engine.kv.pool.num_used == 3 + 3  # three wrote into the third block, so they copied it
    list(engine.run())
    assert sum(len(plan.token_ids) for plan in model.plans) == 10 + 4 * 7


def test_samples_take_places_and_budget_from_the_moment_the_prompt_is_read() -> None:
    config = EngineConfig(num_blocks=60, max_running_requests=4, max_batch_tokens=2)
    engine, _ = make_engine(config)
    engine.add_request([1, 1, 1, 1], sampled(2))
    other = engine.add_request([1], GREEDY)
    while not other.token_times_s:
        engine.step()
    assert engine.requests["r0/1"].is_finished  # a budget of two tokens is spoken for until then
    with pytest.raises(RequestError, match=r"n is 3, .* max_batch_tokens is 2"):
        engine.add_request([1], sampled(3))
    with pytest.raises(RequestError, match=r"best_of is 5, .* max_running_requests is 4"):
        engine.add_request([1], sampled(1, best_of=5))


def test_best_of_returns_the_likeliest_by_mean_log_probability() -> None:
    engine, model = make_engine(ROOMY, vocab_size=20, eos_ids=frozenset({3, 4}))
    request = run(engine, [1, 2], sampled(2, best_of=6, temperature=3.0))
    assert len({r.num_output for r in members(request)}) > 1, "lengths differ, else a sum would do"

    def merit(one: Request) -> float:
        total, ids = 0.0, list(one.prompt_ids)
        for token in one.output_ids:
            logits = model.logits_after(ids)
            total += logits[token] - math.log(math.fsum(map(math.exp, logits)))
            ids.append(token)
        return total / one.num_output

    ranked = sorted(members(request), key=merit, reverse=True)
    assert [r.request_id for r in outputs(request)] == [r.request_id for r in ranked[:2]]
    assert outputs(request)[0].cumulative_logprob == pytest.approx(merit(ranked[0]) * ranked[0].num_output)


def test_a_sample_that_was_cut_off_is_the_worst_of_all() -> None:
    engine, _ = make_engine(ROOMY, vocab_size=20)
    request = engine.add_request([1, 2], sampled(3, best_of=3, temperature=3.0))
    engine.step()
    engine.abort("r0/1")
    list(engine.run())
    assert outputs(request)[-1] is engine.requests["r0/1"]


# --- aborts and failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("params", [sampled(3), sampled(1, best_of=3), beams(3)])
def test_an_abort_by_the_first_id_ends_all_and_frees_all(steps: int, params: SamplingParams) -> None:
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=60, max_batch_tokens=3), vocab_size=8)
    engine.add_request([1, 2, 3, 4, 5], params)
    for _ in range(steps):
        engine.step()
    assert engine.abort("r0")
    assert not engine.abort("r0")
    events = list(engine.run())
    assert sorted(e.request_id for e in events) == ["r0", "r0/1", "r0/2"]
    assert {e.finish_reason for e in events} == {"abort"}
    assert engine.kv.pool.num_used == 0


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_one_sample_may_be_aborted_and_the_others_go_on(steps: int) -> None:
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=60), vocab_size=8)
    request = engine.add_request([1, 2, 3], sampled(3))
    for _ in range(steps):
        engine.step()
    assert engine.abort("r0/1")
    list(engine.run())
    assert [r.finish_reason for r in members(request)] == ["length", "abort", "length"]
    assert members(request)[1].num_output == steps


def test_an_abort_in_flight_before_the_samples_part_ends_each_once() -> None:
    engine, model = make_engine(EngineConfig(block_size=2, num_blocks=60), vocab_size=8)
    engine.add_request([1, 2, 3], sampled(3))
    model.during_run = lambda: engine.abort("r0")
    events = list(engine.run())
    assert sorted(e.request_id for e in events) == ["r0", "r0/1", "r0/2"]


@pytest.mark.parametrize(
    ("params", "ended"), [(sampled(3), {"r0", "r0/1", "r0/2"}), (beams(3), {"r0", "r0/1", "r0/2"})]
)
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_backend_that_fails_leaves_no_output_waiting(params: SamplingParams, ended: set[str], failing: int) -> None:
    class Failing(AuditedModel):
        def run(self, plan: StepPlan) -> StepResult:
            if plan.step == failing:
                raise MemoryError("out of memory")
            return super().run(plan)

    clock = VirtualClock()
    model = Failing(clock, vocab_size=8)
    engine = Engine(model, EngineConfig(block_size=2, num_blocks=60, max_batch_tokens=4), clock=clock)
    model.engine = engine
    engine.add_request([1, 2, 3, 4, 5], params)
    with pytest.raises(MemoryError):
        list(engine.run())
    events = list(engine.run())
    assert {e.request_id for e in events if e.kind == "error"} == ended
    assert engine.kv.pool.num_used == 0
    assert not engine.has_work()


# --- beams ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [(), (3,), (3, 5, 7)])
def test_a_width_of_one_is_greedy(stop: tuple[int, ...]) -> None:
    for prompt in ([1], [2, 4], [6, 6, 6]):
        engine, _ = make_engine(ROOMY, vocab_size=9)
        greedy = run(engine, prompt, SamplingParams(temperature=0, max_tokens=12, stop_token_ids=stop))
        searched = run(engine, prompt, beams(1, max_tokens=12, stop_token_ids=stop))
        assert (searched.output_ids, searched.finish_reason) == (greedy.output_ids, greedy.finish_reason)


def test_beams_find_what_greedy_misses_and_come_best_first(monkeypatch: pytest.MonkeyPatch) -> None:
    peaked = HashModel._logits

    def flat(model: HashModel, digest: int) -> list[float]:
        """Without the one token that stands out, so that the likeliest path need not begin with the likeliest token."""
        logits = peaked(model, digest)
        logits[digest % len(logits)] -= 8.0
        return logits

    monkeypatch.setattr(HashModel, "_logits", flat)
    engine, _ = make_engine(ROOMY, vocab_size=9)
    better = 0
    for first in range(9):
        wide = run(engine, [first, 2], beams(5, logprobs=0))
        narrow = run(engine, [first, 2], beams(1, logprobs=0))
        scores = [r.cumulative_logprob for r in members(wide)]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(r.output_ids) for r in members(wide)}) == 5
        better += scores[0] > narrow.cumulative_logprob + 1e-9
    assert better >= 3


def test_the_length_penalty_decides_between_short_and_long() -> None:
    engine, _ = make_engine(ROOMY, vocab_size=9, eos_ids=frozenset({0, 1, 2}))

    def length(penalty: float) -> int:
        return sum(
            run(engine, [first, 2], beams(4, max_tokens=9, length_penalty=penalty)).num_output for first in range(9)
        )

    assert length(-2.0) < length(5.0)


def test_a_search_tells_nothing_before_its_end_and_then_each_hypothesis_whole() -> None:
    engine, _ = make_engine(ROOMY, vocab_size=9)
    request = engine.add_request([1, 2], beams(2, max_tokens=3, n=1))
    events: list[Any] = []
    while engine.has_work():
        assert not events
        events += engine.step()
    assert [(e.request_id, e.kind) for e in events] == [
        *[("r0", "token")] * 3,
        ("r0", "finish"),
        *[("r0/1", "token")] * 3,
        ("r0/1", "finish"),
    ]
    assert outputs(request) == [request]


def test_beams_that_would_not_fit_together_are_refused() -> None:
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=10))
    with pytest.raises(
        RequestError, match=r"for each of 3 beams need 12 KV blocks of 2, the pool has 9: lower max_tok"
    ):
        engine.add_request([1, 0], beams(3, max_tokens=6))
    engine.add_request([1, 0], beams(3, max_tokens=5))
    list(engine.run())


def test_a_vocabulary_with_too_few_continuations_says_so() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=20), vocab_size=2)
    request = run(engine, [1], beams(3, max_tokens=1))
    assert [r.finish_reason for r in members(request)] == ["length", "length", "error"]
    assert members(request)[2].error == "only 2 hypotheses exist: lower beam_width"


def test_chunks_blocks_and_preemption_change_no_search() -> None:
    jobs = tuple(Job((first, 2, 3), beams(3, max_tokens=5)) for first in range(3))
    case = Case(EngineConfig(block_size=4, num_blocks=100), jobs, vocab_size=9)
    expected = drive(case).ids()

    def variant(**fields: Any) -> Outcome:
        outcome = drive(without(case, **fields))
        assert outcome.ids() == expected
        return outcome

    variant(block_size=1, num_blocks=22, prefix_caching=False)
    variant(max_batch_tokens=3)
    tight = variant(block_size=2, num_blocks=13, prefix_caching=False)
    assert tight.engine.scheduler.num_preemptions > 0


def test_the_beams_of_an_aborted_search_end_one_by_one_but_all_of_them() -> None:
    engine, _ = make_engine(ROOMY, vocab_size=9)
    request = engine.add_request([1, 2], beams(2, max_tokens=5))
    for _ in range(2):
        engine.step()
    first, second = members(request)
    first.abort_requested = second.abort_requested = True  # as when each has a step in flight
    engine.scheduler.remove(first)  # the one whose step has landed
    engine.check()
    second.abort_requested = False
    with pytest.raises(EngineError, match="of the beams of r0 some run and some do not"):
        engine.check()


def test_check_finds_beams_that_have_parted() -> None:
    engine, _ = make_engine(ROOMY, vocab_size=9)
    request = engine.add_request([1, 2], beams(3))
    engine.step()
    engine.step()
    engine.check()
    engine.scheduler.retire(members(request)[1])
    with pytest.raises(EngineError, match="of the beams of r0 some run and some do not"):
        engine.check()
