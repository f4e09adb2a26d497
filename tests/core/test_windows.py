"""Sliding windows: a table gives back what no token to come reads, and no output changes by it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from core_harness import Case, Job, drive, grouped_case, make_engine, windowed_case
from kv_callers import make_request, random_calls

from minillm.backends.hash_model import HashModel
from minillm.core.config import EngineConfig
from minillm.core.kv.window import Window
from minillm.core.kv_manager import KVManager
from minillm.core.observe.chrome_trace import chrome_trace
from minillm.core.observe.trace import TraceEvent
from minillm.core.request import RequestError
from minillm.core.sampling import SamplingParams

LONG = tuple(i % 2 for i in range(20))


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_every_invariant_at_every_step(first: int) -> None:
    for seed in range(first, first + 100):
        drive(windowed_case(random.Random(seed)))


def test_the_random_workloads_reach_what_they_are_for() -> None:
    outcomes = [drive(windowed_case(random.Random(seed))) for seed in range(200)]
    events = [event for outcome in outcomes for event in outcome.engine.trace.events]
    hits = [e for e in events if e.kind == "hit" and 0 in e.blocks]
    swaps = [e for e in events if e.kind == "swap_in" and 0 in e.blocks]
    forks = [e for e in events if e.kind == "fork" and 0 in e.blocks]
    assert len([e for e in events if e.kind == "leave"]) > 500
    assert min(len(hits), len(swaps), len(forks)) > 3


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_every_invariant_with_cache_groups(first: int) -> None:
    for seed in range(first, first + 100):
        drive(grouped_case(random.Random(seed)))


def test_the_random_workloads_of_cache_groups_reach_what_they_are_for() -> None:
    outcomes = [drive(grouped_case(random.Random(seed))) for seed in range(300)]
    events = [event for outcome in outcomes for event in outcome.engine.trace.events if event.group]
    kinds = Counter(event.kind for event in events)
    assert kinds["leave"] > 500
    assert min(kinds[kind] for kind in ("hit", "fork", "copy", "evict", "swap_out", "swap_in")) > 20
    assert sum(bool(o.model.moved) and len(o.engine.kv.groups) > 1 for o in outcomes) > 3  # drafted trees


def test_cache_groups_leave_the_spans_of_a_request_alone() -> None:
    """In an exported trace a fork or a swap is one, in however many groups it moves tables."""

    def spans(events: Sequence[TraceEvent]) -> list[Any]:
        return [entry for entry in chrome_trace(events)["traceEvents"] if entry["ph"] == "X"]

    seen = 0
    for seed in range(60):
        engine = drive(grouped_case(random.Random(seed))).engine
        events = engine.trace.events
        seen += sum(e.group > 0 and e.kind in ("fork", "swap_out") for e in events)
        tracks = {e.request_id: None for e in events if not e.group}
        assert len(tracks) == len({e.request_id: None for e in events})
        assert spans(events) == spans([e for e in events if not e.group])
        indexed = {block for one in engine.kv.groups for block in one.index.blocks()}
        assert engine.kv_usage().cached_blocks == len(indexed)
    assert seen > 10


def test_cache_groups_hit_what_each_can_serve() -> None:
    """All of the prefix where a layer sees all, the last of it where a window does; evicted there, it is no hit."""
    kv = KVManager(21, 2, other_windows=[4])
    first = make_request("a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert kv.admit(first, kv.lookup(first))
    assert kv.reserve(first, 8)
    first.num_computed_tokens = 8
    kv.commit(first)
    everything, windowed = [list(group.tables["a"].blocks) for group in kv.groups]
    assert windowed[:2] == [0, 0]
    assert not set(everything) & set(windowed)
    hit = kv.lookup(make_request("b", [1, 2, 3, 4, 5, 6, 7, 8, 0]))
    assert [its.blocks for its in hit.groups] == [everything, windowed]
    kv.release(first)
    kv.groups[1].index.remove(windowed[3])
    hit = kv.lookup(make_request("c", [1, 2, 3, 4, 5, 6, 7, 8, 0]))
    assert (hit.num_tokens, len(hit.groups[1].blocks)) == (6, 3)
    kv.groups[1].index.remove(windowed[2])
    hit = kv.lookup(make_request("d", [1, 2, 3, 4, 5, 6, 7, 8, 0]))
    assert (hit.num_tokens, len(hit.groups[1].blocks)) == (4, 2)  # of what was left behind and is cached still


def test_cache_groups_that_take_too_much_are_refused() -> None:
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=21), window=None, other_windows=(None,))
    with pytest.raises(RequestError, match="need 22 KV blocks of 2, the pool has 20: lower max_tokens to 1 "):
        engine.add_request([0] * 20, SamplingParams(max_tokens=3))
    engine.add_request([0] * 20, SamplingParams(max_tokens=1))


def test_the_manager_under_random_callers() -> None:
    random_calls(range(150), windows=(2, 3, 5))


@pytest.mark.parametrize("span", [1, 2, 3, 5, 8, None])
@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 7, 12])
def test_most_blocks_are_those_of_the_worst_way_there(tokens: int, block_size: int, span: int | None) -> None:
    """Step by step as the engine does: the span's blocks are there before what lies behind is left."""
    window, length = Window(tokens, block_size, span), 40

    def held(computed: int) -> int:
        end = min(length, computed + (span or length))
        return -(-end // block_size) - window.num_skipped_blocks(computed)

    for start in range(length):
        assert window.most_blocks(start, length) >= max(held(c) for c in range(start, length))
    assert window.most_blocks(0, length) <= max(held(c) for c in range(length)) + 1
    for computed in range(length):
        first_read = max(0, computed - tokens + 1)
        assert window.num_skipped_blocks(computed) <= first_read // block_size, "a block is left that is still read"
    hits = range(block_size, length, block_size)
    assert all(h // block_size - window.num_skipped_blocks(h) == min(window.reach(), h // block_size) for h in hits)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a window of 0 tokens"):
        KVManager(9, 2, window=0)


@pytest.mark.parametrize("overlap", [0, 2])
def test_a_long_run_holds_a_window_and_no_more(overlap: int) -> None:
    """200 tokens of output in a pool that has room for 20, and the same ids as with room for all."""
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    config = EngineConfig(block_size=2, num_blocks=11, max_batch_tokens=4, chunk_size=3, overlap=overlap)
    outcome = drive(Case(config, (Job(LONG, params),), window=8))
    assert not outcome.refused
    held = [len([b for b in table if b]) for plan in outcome.model.plans for table in plan.block_tables]
    assert max(held) <= 10
    decoding = [len([b for b in p.block_tables[0] if b]) for p in outcome.model.plans if len(p.token_ids) == 1]
    assert len(decoding) > 190
    assert max(decoding) <= 6 + overlap // 2  # seven tokens before, two blocks half needed, and what is in flight
    roomy = drive(Case(replace(config, num_blocks=120, free_behind_window=False), (Job(LONG, params),), window=8))
    assert roomy.ids() == outcome.ids()
    assert max(len(t) for p in roomy.model.plans for t in p.block_tables) == (220 - 1 + 1) // 2
    assert not [e for e in roomy.engine.trace.events if e.kind == "leave"]
    with pytest.raises(RequestError, match="110 KV blocks of 2, the pool has 10"):
        make_engine(replace(config, free_behind_window=False), window=8)[0].add_request(LONG, params)


def test_windows_let_more_requests_run_at_once() -> None:
    jobs = tuple(Job((i % 2, *LONG), SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)) for i in range(4))
    config = EngineConfig(block_size=2, num_blocks=41, max_batch_tokens=8, prefix_caching=False)
    all_kept = drive(Case(replace(config, free_behind_window=False), jobs, window=6))
    freed = drive(Case(config, jobs, window=6))
    assert freed.ids() == all_kept.ids()
    assert freed.engine.scheduler.num_preemptions == 0 < all_kept.engine.scheduler.num_preemptions


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_a_hit_needs_no_more_than_a_window(index: str) -> None:
    """The beginning of a prompt is evicted, its end is not: the next one goes on from there."""
    kv = KVManager(7, 2, window=4, prefix_index=index)  # type: ignore[arg-type]
    first = make_request("a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert kv.admit(first, kv.lookup(first))
    assert kv.reserve(first, 8)
    blocks = list(kv.table("a"))
    first.num_computed_tokens = 8
    kv.commit(first)
    assert kv.table("a") == [0, 0, *blocks[2:]]
    other = make_request("b", [9] * 8)
    assert kv.admit(other, kv.lookup(other))
    assert kv.reserve(other, 8)  # takes the two that were free, and the two that were left
    assert blocks[0] not in kv.groups[0].index
    hit = kv.lookup(make_request("c", [1, 2, 3, 4, 5, 6, 7, 8, 0]))
    assert (hit.groups[0].blocks, hit.num_tokens, hit.groups[0].num_skipped) == ([0, 0, *blocks[2:]], 8, 2)
    assert kv.lookup(make_request("d", [1, 2, 3, 4, 0])).groups[0].blocks == []


@pytest.mark.parametrize("drafter", ["draft model", "draft tree"])
def test_a_draft_model_that_reads_all_slots_keeps_them(drafter: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    config = EngineConfig(block_size=2, num_blocks=41)
    outcome = drive(Case(config, (Job(LONG, params),), window=6, drafter=drafter))
    assert not [e for e in outcome.engine.trace.events if e.kind == "leave"]
    assert outcome.ids() == drive(Case(config, (Job(LONG, params),), window=6)).ids()


def test_the_hash_model_reads_the_token_before() -> None:
    with pytest.raises(ValueError, match="take 2 or more"):
        HashModel(window=1)
