"""Preemption by swapping: the K/V of who gives way waits on the host, and its owner comes back first."""

from __future__ import annotations

import pytest
from core_harness import Case, Job, Outcome, drive, make_engine, without

from minillm.core.config import EngineConfig
from minillm.core.engine import EngineError
from minillm.core.request import Status
from minillm.core.sampling import SamplingParams


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def tight(**fields: object) -> Case:
    """Three requests that grow to 9 blocks of one token, in a pool of 16."""
    work = tuple(Job((i, 0, 1), greedy(7)) for i in range(3))
    config = EngineConfig(block_size=1, num_blocks=17, prefix_caching=False, **fields)  # type: ignore[arg-type]
    return Case(config, work, vocab_size=30)


def swapping(num_host_blocks: int = 20, **fields: object) -> Case:
    return tight(preemption="swap", num_host_blocks=num_host_blocks, **fields)


def tokens_computed(outcome: Outcome) -> int:
    return sum(len(plan.token_ids) for plan in outcome.model.plans)


def test_what_was_swapped_out_is_not_computed_again() -> None:
    roomy = drive(without(tight(), num_blocks=60))
    swap, recompute = drive(swapping()), drive(tight())
    assert swap.ids() == recompute.ids() == roomy.ids()
    assert swap.engine.scheduler.num_preemptions == sum(r.swaps for r in swap.engine.metrics().requests) > 0
    assert tokens_computed(swap) == tokens_computed(roomy) < tokens_computed(recompute)


@pytest.mark.parametrize("block_size", [1, 2, 3])
@pytest.mark.parametrize("overlap", [0, 1, 2])
def test_blocks_of_any_size_come_back_whole(block_size: int, overlap: int) -> None:
    work = tuple(Job((i, 0, 1), greedy(9)) for i in range(3))
    config = EngineConfig(
        block_size=block_size,
        num_blocks=18 // block_size + 1,
        preemption="swap",
        num_host_blocks=18 // block_size,
        overlap=overlap,
    )
    for is_async in (False, True):
        outcome = drive(Case(config, work, vocab_size=30, is_async=is_async))
        assert sum(r.swaps for r in outcome.engine.metrics().requests) > 0


def test_where_the_host_is_full_the_tokens_are_computed_again() -> None:
    outcome = drive(swapping(num_host_blocks=1))
    assert outcome.engine.scheduler.num_preemptions > 0
    assert sum(r.swaps for r in outcome.engine.metrics().requests) == 0
    assert outcome.ids() == drive(tight()).ids()


def test_row_28_nobody_is_admitted_while_someone_is_swapped_out() -> None:
    """j3 comes while j2 is out and would fit at once: it waits until j2 is back."""
    case = swapping()
    late = Job((9,), greedy(1), arrival_s=5.0)
    outcome = drive(Case(case.config, (*case.jobs, late), vocab_size=30))
    trace = outcome.engine.trace.events
    out = next(e.time_s for e in trace if e.kind == "swap_out")
    back = [e.time_s for e in trace if e.kind == "swap_in"]
    admitted = next(e.time_s for e in trace if (e.kind, e.request_id) == ("admit", "j3"))
    assert out <= 5.0 < admitted
    assert admitted >= back[0]


def test_a_request_that_outranks_who_is_swapped_out_need_not_wait_for_it() -> None:
    work = [Job((i, 0, 1), greedy(7), priority=0) for i in range(3)] + [Job((9,), greedy(1), 5.0, priority=1)]
    case = swapping(order="priority")
    outcome = drive(Case(case.config, tuple(work), vocab_size=30))
    trace = outcome.engine.trace.events
    assert next(e.time_s for e in trace if e.kind == "swap_out") < 5.0
    assert outcome.engine.requests["j3"].admitted_s == 5.0


def test_an_abort_while_swapped_out_frees_the_host() -> None:
    case = swapping()
    engine, _ = make_engine(case.config, vocab_size=30)
    requests = [engine.add_request(job.prompt, job.params) for job in case.jobs]
    while requests[2].status is not Status.SWAPPED:
        engine.step()
    assert requests[2].num_computed_tokens > 0
    assert engine.kv_usage().used_host_blocks == requests[2].num_computed_tokens
    assert engine.abort(requests[2].request_id)
    assert engine.kv_usage().used_host_blocks == 0
    engine.check()
    list(engine.run())
    assert [r.finish_reason for r in requests] == ["length", "length", "abort"]


def test_beams_are_computed_again_for_they_come_back_together() -> None:
    params = SamplingParams(temperature=0, max_tokens=6, beam_width=2)
    work = (Job((1, 0), greedy(9)), Job((0, 1), params, arrival_s=1.0))
    config = EngineConfig(block_size=1, num_blocks=16, prefix_caching=False, preemption="swap", num_host_blocks=20)
    outcome = drive(Case(config, work, vocab_size=30))
    assert outcome.engine.scheduler.num_preemptions > 0
    assert all(r.swaps == 0 for r in outcome.engine.metrics().requests)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"preemption": "swap"}, "preemption is 'swap' with 0 num_host_blocks"),
        ({"num_host_blocks": 4}, "preemption is 'recompute' with 4 num_host_blocks"),
        ({"preemption": "forget"}, "preemption is 'forget': choose from recompute, swap"),
    ],
)
def test_host_blocks_and_swapping_belong_together(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineConfig(**fields)  # type: ignore[arg-type]


def test_check_finds_a_swapped_request_that_the_queue_does_not_know() -> None:
    case = swapping()
    engine, _ = make_engine(case.config, vocab_size=30)
    requests = [engine.add_request(job.prompt, job.params) for job in case.jobs]
    while requests[2].status is not Status.SWAPPED:
        engine.step()
    engine.scheduler.swapped.num_requests = 0
    with pytest.raises(EngineError, match="1 requests are swapped out"):
        engine.check()
