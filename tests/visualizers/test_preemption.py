"""The figure of preemption: every token is accounted for, spans tile the time, and each way back costs what it says."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from minillm import catalog
from minillm.costs import pcie_bytes_per_s
from visualizers.figures import preemption
from visualizers.figures.preemption import VISUALIZER
from visualizers.runs.bench import BLOCK_SIZE
from visualizers.runs.preemption_run import (
    AGAIN,
    LIMITS,
    MODES,
    OUT,
    POOLS,
    WAITS,
    Mode,
    serve,
    workload,
)

RUNS = list(product(POOLS, LIMITS, MODES))
ONCE = sum(job.prompt + job.output - 1 for job in workload())  # the last token of an answer is never computed


@pytest.mark.parametrize(("pool", "limit", "mode"), RUNS)
def test_every_token_is_computed_once_but_for_those_that_were_lost(pool: int, limit: int, mode: Mode) -> None:
    run = serve(pool, limit, mode)
    assert run.computed_tokens == ONCE + run.again_tokens
    if mode == "swap":
        assert run.again_tokens == 0
        assert bool(run.swapped_bytes) == bool(run.preemptions)
    else:
        assert run.swapped_bytes == 0
    if mode == "recompute":
        assert bool(run.again_tokens) == bool(run.preemptions)


@pytest.mark.parametrize(("pool", "limit", "mode"), RUNS)
def test_the_spans_of_a_request_tile_its_time(pool: int, limit: int, mode: Mode) -> None:
    run = serve(pool, limit, mode)
    for request, job in enumerate(workload()):
        spans = sorted((s for s in run.spans if s.request == request), key=lambda s: s.start_s)
        assert spans[0].start_s == job.arrival_s
        assert all(a.end_s == b.start_s and a.kind != b.kind for a, b in pairwise(spans))
        assert all(s.start_s < s.end_s for s in spans)
        assert spans[-1].end_s <= run.end_s
        assert all(s.kind != WAITS for s in spans[1:])
    assert sum(s.kind == OUT for s in run.spans) == run.preemptions
    running = [s for s in run.spans if s.kind not in (WAITS, OUT)]
    for at in (s.start_s for s in running):
        assert sum(s.start_s <= at < s.end_s for s in running) <= limit
    if mode == "swap":
        assert not any(s.kind == AGAIN for s in run.spans)


def test_with_room_for_everybody_nobody_is_preempted() -> None:
    longest = max(job.prompt + job.output for job in workload())
    for pool, limit, mode in RUNS:
        if limit * longest <= pool or pool >= ONCE + 16 * len(workload()):
            assert serve(pool, limit, mode).preemptions == 0
    assert serve(POOLS[-1], LIMITS[-1], "recompute").preemptions == 0
    assert serve(POOLS[0], LIMITS[-1], "recompute").preemptions > 0


def test_a_smaller_pool_costs_and_fewer_at_once_preempt_less() -> None:
    """What the chapter says of the figure."""
    at_once = LIMITS[-1]
    for mode in MODES:
        for limit in LIMITS:
            times = [serve(pool, limit, mode).e2e_s for pool in POOLS]
            assert times == sorted(times, reverse=True)
        # Half as many at once wait longer, and none of them stalls.
        most, fewer = serve(8192, at_once, mode), serve(8192, at_once // 2, mode)
        assert (most.preemptions > 0, fewer.preemptions) == (True, 0)
        assert most.e2e_s < fewer.e2e_s
        assert most.longest_gap_s > 10 * fewer.longest_gap_s
    for pool in POOLS:
        assert serve(pool, at_once, "cached").again_tokens <= serve(pool, at_once, "recompute").again_tokens
    assert serve(8192, at_once, "cached").again_tokens < serve(8192, at_once, "recompute").again_tokens


def test_the_wait_for_memory_costs_more_than_the_way_back() -> None:
    """Where it hurts, the three ways differ by less than a tenth of what the lack of memory costs."""
    for pool in POOLS[:3]:
        times = [serve(pool, LIMITS[-1], mode).e2e_s for mode in MODES]
        lack = min(times) - serve(POOLS[-1], LIMITS[-1], "recompute").e2e_s
        assert max(times) - min(times) < 0.1 * lack


def test_a_swap_takes_whole_blocks_over_the_link() -> None:
    block = BLOCK_SIZE * catalog.model("llama-3.1-8b").kv_bytes_per_token("bf16")
    run = serve(POOLS[0], LIMITS[-1], "swap")
    assert run.swapped_bytes % block == 0
    # Nobody is swapped out with more than the whole pool, and everybody comes back.
    assert run.swapped_bytes <= 2 * run.preemptions * POOLS[0] // BLOCK_SIZE * block
    assert run.end_s > run.swapped_bytes / pcie_bytes_per_s(5)


def test_the_table_is_what_the_runs_were() -> None:
    data = preemption.compute({"pool": 6144, "mode": "swap", "limit": 12})
    assert [row["pool"] for row in data.rows["pools"]] == list(POOLS)
    for row in data.rows["pools"]:
        assert row["preemptions"] == serve(row["pool"], 12, "recompute").preemptions
        assert row["again_cached"] == serve(row["pool"], 12, "cached").again_tokens
        assert row["swapped"] == serve(row["pool"], 12, "swap").swapped_bytes
        assert row["e2e_swap"] == pytest.approx(serve(row["pool"], 12, "swap").e2e_s, abs=1e-4)
    assert data.values["swapped_bytes"] == serve(6144, 12, "swap").swapped_bytes
    assert data.values["pool_bytes"] == 6144 * 131_072


def test_the_sentence_says_what_it_cost() -> None:
    def said(**inputs: object) -> str:
        return VISUALIZER.sentence(preemption.compute({**VISUALIZER.defaults(), **inputs}))

    assert "{again_tokens|int?token:tokens} be computed again" in said()
    assert "{swapped_bytes|bytes} over the link" in said(mode="swap")
    assert "Nobody is preempted." in said(pool=POOLS[-1])
    assert "counted" in VISUALIZER.provenance()


@pytest.mark.parametrize(("pool", "limit", "mode"), RUNS)
def test_the_pool_is_never_drawn_fuller_than_it_is(pool: int, limit: int, mode: Mode) -> None:
    run = serve(pool, limit, mode)
    for time_s, tokens in run.held:
        assert sum(tokens) <= pool
        for request, own in enumerate(tokens):
            doing = [s.kind for s in run.spans if s.request == request and s.start_s <= time_s < s.end_s]
            if doing and doing[0] in (WAITS, OUT) and time_s not in {s.start_s for s in run.spans}:
                assert own == 0, (time_s, request)
    assert run.held[-1][0] == run.end_s
    if run.preemptions:  # somebody was preempted since there was no block left, or hardly one
        assert max(sum(tokens) for _, tokens in run.held) > 0.9 * pool


def test_each_request_has_a_share_of_the_drawn_pool_with_its_number_in_it() -> None:
    data = preemption.compute(VISUALIZER.defaults())
    assert [row["request"] for row in data.rows["shares"]] == [row["request"] for row in data.rows["names"]]
    for share in data.rows["shares"]:
        assert share["from"] < share["at"] < share["to"]
    assert len(data.rows["losses"]) == data.values["preemptions"]
    assert len({row["key"] for row in data.rows["spans"]}) == len(data.rows["spans"])
