"""Faults that other engines had, each as the smallest case that shows it. Numbers are rows of the collection."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Literal

import pytest
from core_harness import GREEDY, Case, Job, drive, make_engine, without

from minillm.backends.hash_model import HashModel
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.kv.block_keys import ExtraKey
from minillm.core.kv_manager import KVManager
from minillm.core.observe.integrity import check_kv
from minillm.core.policies.order import FirstComeOrder
from minillm.core.request import Request, Status
from minillm.core.sampling import SamplingParams

BLOCK_SIZES = [1, 2, 3, 16]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def run_alone(engine: Engine, prompt: list[int], params: SamplingParams = GREEDY, salt: str | None = None) -> Request:
    request = engine.add_request(prompt, params, salt=salt)
    list(engine.run())
    return request


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_row_1_a_reused_block_is_no_hit_for_its_old_prompt(size: int) -> None:
    engine, _ = make_engine(EngineConfig(block_size=size, num_blocks=4), vocab_size=50)
    x, y = [1] * (3 * size), [2] * (3 * size)  # each fills the pool
    first = run_alone(engine, x, greedy(1))
    run_alone(engine, y, greedy(1))
    again = run_alone(engine, x, greedy(1))
    assert again.num_cached == 0
    assert again.output_ids == first.output_ids


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_row_2_a_fully_cached_prompt_still_computes_a_token(size: int) -> None:
    engine, model = make_engine(EngineConfig(block_size=size, num_blocks=20), vocab_size=50)
    prompt = list(range(2 * size))
    first = run_alone(engine, prompt)
    steps = len(model.plans)
    second = run_alone(engine, prompt)
    assert second.num_cached == size  # one of two blocks: a hit ends before the last token
    assert len(model.plans[steps].token_ids) == size
    assert second.output_ids == first.output_ids


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_rows_3_and_4_growth_by_single_tokens_needs_exactly_the_blocks_of_its_length(size: int) -> None:
    for length in range(2, 3 * size + 2):
        blocks = -(-(length - 1) // size)  # the last token is never written
        engine, model = make_engine(EngineConfig(block_size=size, num_blocks=blocks + 1))
        run_alone(engine, [1], greedy(length - 1))
        assert [len(plan.block_tables[0]) for plan in model.plans] == [-(-n // size) for n in range(1, length)]
        assert engine.scheduler.num_preemptions == 0


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_row_5_a_resumed_request_hits_first_and_budgets_after(size: int) -> None:
    work = tuple(Job((i, 5) + (1,) * (3 * size), greedy(8 * size)) for i in range(3))
    config = EngineConfig(block_size=size, num_blocks=17, max_batch_tokens=max(3, size))
    outcome = drive(Case(config, work, vocab_size=50))  # audits that positions go on where computed ends
    resumed = [r for r in outcome.engine.requests.values() if r.num_preemptions]
    hits_after_preemption = [
        e for e in outcome.engine.trace.events if e.kind == "hit" and e.request_id in {r.request_id for r in resumed}
    ]
    assert resumed
    assert hits_after_preemption


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_row_6_the_token_sampled_by_a_resumed_prefill_counts(size: int) -> None:
    """Two requests of B tokens in three blocks: one is preempted at length B + 1."""
    work = (Job((1,) * size, greedy(size + 1)), Job((2,) * size, greedy(size + 1)))
    config = EngineConfig(block_size=size, num_blocks=4, prefix_caching=False)
    tight = drive(Case(config, work, vocab_size=50))
    assert tight.engine.requests["j1"].num_preemptions == 1
    assert tight.ids() == drive(without(Case(config, work, vocab_size=50), num_blocks=9)).ids()


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_row_7_a_chunk_reads_only_what_is_computed(chunk: int) -> None:
    engine, model = make_engine(EngineConfig(block_size=2, num_blocks=9, max_batch_tokens=chunk))
    run_alone(engine, [1] * 7, greedy(1))
    assert [plan.seq_lens[0] for plan in model.plans] == [*range(chunk, 7, chunk), 7]


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_row_8_the_same_prompt_twice_in_one_batch(size: int) -> None:
    prompt = tuple(range(2 * size + 1))
    both = drive(Case(EngineConfig(block_size=size, num_blocks=30), (Job(prompt), Job(prompt)), vocab_size=50))
    alone = drive(Case(EngineConfig(block_size=size, num_blocks=30), (Job(prompt),), vocab_size=50))
    assert both.ids() == {"j0": alone.ids()["j0"], "j1": alone.ids()["j0"]}


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_row_11_salt_and_adapter_of_one_name_are_two_keys(index: Literal["hash", "radix"]) -> None:
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=30, prefix_index=index))

    def cached(*keys: ExtraKey) -> int:
        request = engine.add_request([1] * 5, greedy(1), extra_keys=keys)
        list(engine.run())
        return request.num_cached

    assert cached(ExtraKey("salt", "x")) == 0
    assert cached(ExtraKey("adapter", "x")) == 0
    assert cached(ExtraKey("salt", "x"), ExtraKey("adapter", "x")) == 0
    assert cached() == 0
    assert cached(ExtraKey("adapter", "x")) == 4


def test_row_12_another_load_of_an_adapter_shares_no_block() -> None:
    """Its key is a digest of the weights or an id of the load: a name would hit what other weights computed."""
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=30))
    cached = []
    for load in ("sql#1", "sql#2", "sql#1"):
        request = engine.add_request([1] * 5, greedy(1), extra_keys=[ExtraKey("adapter", load)])
        list(engine.run())
        cached.append(request.num_cached)
    assert cached == [0, 0, 4]


@pytest.mark.parametrize("size", BLOCK_SIZES)
@pytest.mark.parametrize(("first", "second"), [(None, "a"), ("a", None), ("a", "b")])
def test_i11_requests_of_different_salts_share_no_block(size: int, first: str | None, second: str | None) -> None:
    engine, _ = make_engine(EngineConfig(block_size=size, num_blocks=80))
    prompt = [1] * (3 * size)
    run_alone(engine, prompt, salt=first)
    assert run_alone(engine, prompt, salt=second).num_cached == 0
    assert run_alone(engine, prompt, salt=first).num_cached > 0


def test_rows_13_and_14_an_evicted_block_leaves_nothing_behind() -> None:
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=4), vocab_size=50)
    for i in range(20):  # three blocks serve twenty prompts: each is recycled many times
        run_alone(engine, [i, i, i + 1, i + 1, 7], greedy(2))
        assert len(engine.kv.groups[0].index) <= 3
        engine.check()


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_row_15_a_part_of_a_block_is_not_indexed(size: int) -> None:
    engine, _ = make_engine(EngineConfig(block_size=size, num_blocks=9))
    run_alone(engine, [1] * (size + 1), greedy(1))
    # With blocks of one token every computed token fills one.
    assert len(engine.kv.groups[0].index) == (2 if size == 1 else 1)


def test_row_17_blocks_are_disjoint_after_evictions() -> None:
    kv = KVManager(7, 3)
    rng = random.Random(0)
    live: list[Request] = []
    for i in range(300):
        if live and (rng.random() < 0.4 or kv.pool.num_free < 2):
            kv.release(live.pop(rng.randrange(len(live))))
        request = make_request(f"q{i}", [rng.randint(0, 1) for _ in range(rng.randint(1, 4))])
        if kv.admit(request, kv.lookup(request)):
            kv.reserve(request, request.num_known)
            request.num_computed_tokens = request.num_known
            fresh = [b for r in live for b in kv.table(r.request_id)]
            own = kv.table(request.request_id)
            assert not {b for b in own if kv.pool.ref_counts[b] == 1} & set(fresh)
            kv.commit(request)
            live.append(request)
        check_kv(kv)


def test_row_18_shared_blocks_are_counted_once() -> None:
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=20))
    prompt = [1] * 9
    run_alone(engine, prompt)
    for _ in range(3):
        engine.add_request(prompt, greedy(3))
    engine.step()
    tables = [table.blocks for table in engine.kv.block_tables.values()]
    held = {block for table in tables for block in table}
    assert engine.kv_usage().used_blocks == len(held) < sum(map(len, tables))


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_row_19_a_token_inside_a_partly_filled_block_needs_no_block(size: int) -> None:
    kv = KVManager(9, size)
    request = make_request("q", [1])
    assert kv.admit(request, kv.lookup(request))
    for tokens in range(1, 3 * size + 1):
        free = kv.pool.num_free
        assert kv.reserve(request, tokens)
        assert free - kv.pool.num_free == (1 if (tokens - 1) % size == 0 else 0)


def test_row_20_without_the_prefix_cache_chunks_still_advance() -> None:
    engine, model = make_engine(EngineConfig(block_size=2, num_blocks=9, max_batch_tokens=3, prefix_caching=False))
    run_alone(engine, [1] * 8, greedy(1))
    assert [plan.positions[0] for plan in model.plans] == [0, 3, 6]
    assert [len(plan.block_tables[0]) for plan in model.plans] == [2, 3, 4]
    assert len(engine.kv.groups[0].index) == 0


def test_row_22_a_hit_is_held_before_its_own_allocation() -> None:
    """The hit stands at the front of the free list, where the request's own allocation would take it."""
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=5), vocab_size=50)
    run_alone(engine, [1, 2, 3, 4, 5], greedy(1))  # caches (1, 2) and (3, 4); the rest stays plain
    other = engine.add_request([9, 9], greedy(3))  # takes the plain blocks
    engine.step()
    hit = engine.kv.lookup(make_request("probe", [1, 2, 3, 4, 6])).groups[0].blocks
    assert set(engine.kv.pool.free_list()) >= set(hit)
    again = engine.add_request([1, 2, 3, 4, 6], greedy(1))
    list(engine.run())
    assert again.num_cached == 4
    assert other.finish_reason == "length"


def test_row_24_a_preempted_request_with_outputs_is_read_again_from_its_start() -> None:
    work = (Job((1, 1), greedy(6)), Job((0, 0), greedy(6)))
    outcome = drive(Case(EngineConfig(block_size=1, num_blocks=10, prefix_caching=False), work))
    preempted = outcome.engine.requests["j1"]
    assert preempted.num_preemptions == 1
    spans = [
        (e.computed, e.tokens) for e in outcome.engine.trace.events if e.kind == "schedule" and e.request_id == "j1"
    ]
    restart = next(i for i, (computed, _) in enumerate(spans) if i and computed == 0)
    assert spans[restart][1] > preempted.num_prompt  # its outputs are read with its prompt, in one gap


def test_row_25_the_last_request_preempts_itself() -> None:
    """Three requests in a pool where only the last one's growth fails: it must not run in that step."""
    engine, model = make_engine(EngineConfig(block_size=2, num_blocks=5, prefix_caching=False))
    first = engine.add_request([1] * 4, greedy(2))
    last = engine.add_request([0] * 2, greedy(5))
    engine.step()  # 2 blocks and 1 block; then 3 and 2 are needed, and 4 are there
    engine.step()
    assert last.status is Status.WAITING
    assert last.num_preemptions == 1
    assert model.plans[-1].request_ids == [first.request_id]
    list(engine.run())
    assert len(last.output_ids) == 5


def test_row_26_a_long_prompt_delays_no_decode_by_more_than_a_chunk() -> None:
    config = EngineConfig(block_size=2, num_blocks=40, max_batch_tokens=4)
    outcome = drive(Case(config, (Job((1,), greedy(12)), Job((0,) * 20, greedy(1), arrival_s=3.0))))
    times = outcome.engine.requests["j0"].token_times_s
    assert [b - a for a, b in pairwise(times)] == [1.0] * 11  # a token in each step, and a step has 4 tokens
    assert max(len(plan.token_ids) for plan in outcome.model.plans) == 4


class NewestFirst(FirstComeOrder):
    """Ranks later arrivals higher, so that the victim has had its turn in the step already."""

    def rank(self, request: Request) -> tuple[float, ...]:
        return (-request.arrival_s, -request.index)


def test_row_27_a_victim_already_scheduled_gives_its_budget_back(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(block_size=1, num_blocks=8, max_batch_tokens=2, prefix_caching=False, debug_checks=True)
    monkeypatch.setattr("minillm.core.engine.make_order", lambda config, times: NewestFirst())
    engine, model = make_engine(config)
    old = engine.add_request([1], greedy(5))
    engine.step()
    new = engine.add_request([0], greedy(6))
    while not old.num_preemptions:
        engine.step()
    # ``old`` runs first in the list, took one of two tokens, and lost its block to ``new``.
    assert model.plans[-1].request_ids == [new.request_id]
    assert old.num_in_flight == 0
    list(engine.run())
    assert len(old.output_ids) == 5
    assert len(new.output_ids) == 6


def test_row_28_nobody_is_admitted_in_a_step_that_preempted() -> None:
    work = tuple(Job((i % 2, 1, 0), greedy(8)) for i in range(8))
    outcome = drive(Case(EngineConfig(block_size=2, num_blocks=12, max_running_requests=8), work))  # audits it
    assert outcome.engine.scheduler.num_preemptions > 2


@pytest.mark.parametrize("in_flight", [False, True])
def test_row_35_an_abort_at_any_phase_frees_once(in_flight: bool) -> None:
    for step in range(12):
        jobs = [Job((1, 0, 1, 1, 0), greedy(4), abort_after=step if i == 1 else None) for i in range(3)]
        config = EngineConfig(block_size=2, num_blocks=9, max_batch_tokens=3)
        outcome = drive(Case(config, tuple(jobs), abort_in_flight=in_flight))
        assert outcome.engine.requests["j0"].finish_reason == "length"


def test_row_34_an_abort_of_an_unknown_or_ended_request_is_refused() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=4))
    request = run_alone(engine, [1])
    assert not engine.abort(request.request_id)
    assert not engine.abort("nobody")
    assert not engine.has_work()


def test_row_36_an_empty_step_is_legal() -> None:
    engine = Engine(HashModel(), EngineConfig(num_blocks=4))
    assert engine.step() == []
    assert engine.plan_step() is None


def test_row_60_greedy_and_sampled_requests_in_one_batch() -> None:
    work = tuple(Job((1, 0), SamplingParams(temperature=t, max_tokens=8, seed=3)) for t in (0.0, 1.0, 0.0, 2.0))
    outcome = drive(Case(EngineConfig(num_blocks=40), work, vocab_size=50))
    ids = outcome.ids()
    assert ids["j0"] == ids["j2"]
    assert ids["j1"] != ids["j0"]


def test_row_65_requests_without_a_seed_draw_differently_and_repeatably() -> None:
    params = SamplingParams(temperature=5.0, max_tokens=6)
    outcome = drive(Case(EngineConfig(num_blocks=40), tuple(Job((1,), params) for _ in range(6)), vocab_size=50))
    assert len({tuple(ids) for ids in outcome.ids().values()}) == 6
    again = drive(Case(EngineConfig(num_blocks=40), tuple(Job((1,), params) for _ in range(6)), vocab_size=50))
    assert again.ids() == outcome.ids()


def make_request(request_id: str, prompt: list[int]) -> Request:
    return Request(request_id, prompt, GREEDY, arrival_s=0.0, index=0, seed=0, max_total_tokens=99)
