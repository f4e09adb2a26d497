"""The engine's outside: submission and refusals, events, time, aborts, failures, metrics and trace."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from adversaries import AlwaysRight
from core_harness import GREEDY, AuditedModel, Case, Job, drive, make_engine

from minillm.backends.hash_model import HashModel, WrongReadError
from minillm.backends.simulated import SimulatedBackend
from minillm.core.blocks import PoolError
from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine, EngineError, RequestError
from minillm.core.kv.block_keys import ExtraKey
from minillm.core.observe.replay import Replay
from minillm.core.plan import StepPlan, StepResult
from minillm.core.request import Status
from minillm.core.sampling import SamplingParams
from minillm.core.scheduler import _Decisions
from minillm.speculate.speculator import Speculation


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def engine_of(**fields: Any) -> Engine:
    return Engine(HashModel(vocab_size=10, max_model_len=32), EngineConfig(**{"num_blocks": 9, **fields}))


# --- submission -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "params", "fields", "words"),
    [
        ([], GREEDY, {}, ["empty", "at least one token"]),
        ([1] * 32, GREEDY, {}, ["32 tokens", "takes 32", "shorten it by 1"]),
        ([1] * 50, GREEDY, {}, ["50 tokens", "takes 32", "shorten it by 19"]),
        ([1, 10], GREEDY, {}, ["token 10", "position 1", "10 ids"]),
        ([-1], GREEDY, {}, ["token -1", "position 0"]),
        (["a"], GREEDY, {}, ["token ids", "str"]),
        (None, GREEDY, {}, ["token ids"]),
        ([1.5], GREEDY, {}, ["token ids", "float"]),
        (
            [1] * 9,
            greedy(9),
            {"block_size": 2},
            ["9 tokens", "9 output", "9 KV blocks of 2", "has 8", "max_tokens to 8"],
        ),
        ([1] * 20, greedy(1), {"block_size": 2}, ["10 KV blocks", "has 8", "shorten the prompt", "num_blocks"]),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_with_the_numbers(prompt, params, fields, words) -> None:
    engine = engine_of(**fields)
    with pytest.raises(RequestError) as caught:
        engine.add_request(prompt, params)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not engine.has_work()
    assert not engine.requests


def test_the_refusals_way_out_is_the_edge() -> None:
    engine = engine_of(block_size=2)
    engine.add_request([1] * 9, greedy(8))
    with pytest.raises(RequestError):
        engine.add_request([1] * 9, greedy(9))
    list(engine.run())


def test_a_taken_id_and_an_endless_arrival_are_refused() -> None:
    engine = engine_of()
    engine.add_request([1], GREEDY, request_id="x")
    with pytest.raises(RequestError, match="'x' is taken"):
        engine.add_request([1], GREEDY, request_id="x")
    with pytest.raises(RequestError, match="arrival_s is nan"):
        engine.add_request([1], GREEDY, arrival_s=math.nan)


@pytest.mark.parametrize("taken", ["r1", "r1/1", "r2"])
def test_who_brings_no_id_gets_one_that_is_free(taken: str) -> None:
    engine = engine_of()
    engine.add_request([1], GREEDY, request_id=taken)
    for number in (1, 2, 1, 2):
        engine.add_request([1], SamplingParams(temperature=1, n=number))
    assert len(engine.requests) == 7
    list(engine.run())
    assert all(request.finish_reason == "length" for request in engine.requests.values())


@pytest.mark.parametrize("fields", [{"salt": 5}, {"salt": b"x"}, {"salt": "\ud800"}, {"extra_keys": ["adapter"]}])
def test_a_salt_that_cannot_be_hashed_ends_nobody_elses_request(fields: dict[str, Any]) -> None:
    engine = engine_of()
    other = engine.add_request([1], GREEDY)
    with pytest.raises(RequestError, match=r"salt key of value|extra_keys has 'adapter'"):
        engine.add_request([1], GREEDY, **fields)
    list(engine.run())
    assert other.finish_reason == "length"
    assert len(engine.requests) == 1


def test_a_key_of_tokens_that_the_prompt_has_not_is_refused() -> None:
    engine = engine_of()
    engine.add_request([1, 2, 3], GREEDY, extra_keys=[ExtraKey("image", "x", 2)])
    with pytest.raises(RequestError, match="image key starts at token 3, the prompt has 3"):
        engine.add_request([1, 2, 3], GREEDY, extra_keys=[ExtraKey("image", "x", 3)])


def test_output_ends_at_the_models_length() -> None:
    engine = engine_of(max_model_len=6)
    request = engine.add_request([1, 2], greedy(16))
    list(engine.run())
    assert (request.num_output, request.finish_reason) == (4, "length")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"block_size": 0}, ["block_size", "0", "at least 1"]),
        ({"num_blocks": 1}, ["num_blocks", "1", "null block"]),
        ({"prefix_index": "trie"}, ["prefix_index", "trie", "hash, radix"]),
        ({"eviction": "random"}, ["eviction", "random", "lru, lfu, cost"]),
        ({"num_host_blocks": -1}, ["num_host_blocks", "-1"]),
        ({"max_batch_tokens": True}, ["max_batch_tokens", "True"]),
        ({"max_running_requests": 0}, ["max_running_requests", "0"]),
        ({"max_model_len": 1}, ["max_model_len", "1", "one output token"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"policy": "magic"}, ["policy", "magic", "continuous"]),
        ({"max_wait_s": -1.0}, ["max_wait_s", "-1"]),
        ({"max_wait_s": math.nan}, ["max_wait_s", "nan"]),
        ({"max_wait_s": "1"}, ["max_wait_s", "'1'"]),
        ({"chunked_prefill": 1}, ["chunked_prefill", "1", "True or False"]),
        ({"max_model_len": 33}, ["33", "takes 32"]),
        ({"max_batch_tokens": 31, "chunked_prefill": False}, ["31", "32", "chunk"]),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(fields, words) -> None:
    with pytest.raises(ValueError, match=words[0]) as caught:
        engine_of(**fields)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_without_num_blocks_the_backend_decides() -> None:
    assert engine_of(num_blocks=None).kv_usage().total_blocks == 1023


# --- time ---------------------------------------------------------------------------------------------------


def simulated(config: EngineConfig, seconds_per_token: float = 0.25) -> tuple[Engine, VirtualClock]:
    clock = VirtualClock()
    model = SimulatedBackend(HashModel(), lambda plan: seconds_per_token * len(plan.token_ids), clock)
    return Engine(model, config, clock=clock), clock


def test_a_workload_replays_on_virtual_time() -> None:
    engine, clock = simulated(EngineConfig(num_blocks=40))
    engine.add_request([1, 2, 3, 4], greedy(3), request_id="late", arrival_s=10.0)
    engine.add_request([1, 2], greedy(2), request_id="early", arrival_s=1.0)
    times = [(e.request_id, e.kind, e.time_s) for e in engine.run()]
    assert times == [
        ("early", "token", 1.5),
        ("early", "token", 1.75),
        ("early", "finish", 1.75),
        ("late", "token", 11.0),
        ("late", "token", 11.25),
        ("late", "token", 11.5),
        ("late", "finish", 11.5),
    ]
    assert clock() == 11.5


def test_a_simulated_backend_passes_everything_but_time_on() -> None:
    clock, inner = VirtualClock(), HashModel(vocab_size=7)
    backend = SimulatedBackend(inner, lambda plan: 2.0, clock, copy_time=lambda pairs: 0.5 * len(pairs))
    backend.load(block_size=2, num_blocks=6, num_host_blocks=3)
    assert backend.capacity() == inner.capacity()
    assert backend.capacity().num_host_blocks == 3
    inner.run(plan_for([2, 3], [1], [5, 6], start=0))
    backend.copy_blocks([(1, 4)])
    result = backend.run(plan_for([6], [4, 3], [1], start=2))  # reads the copy
    assert (result.elapsed_s, clock()) == (2.0, 2.5)
    backend.close()
    assert inner._slots == []


def test_a_future_request_is_out_of_sight() -> None:
    engine, _ = simulated(EngineConfig(num_blocks=40))
    engine.add_request([1], greedy(4), arrival_s=0.0)
    later = engine.add_request([2], greedy(1), arrival_s=0.6)
    engine.step()  # ends at 0.25
    engine.step()
    assert later.status is Status.PENDING
    engine.step()
    engine.step()
    assert later.admitted_s == 0.75


def test_on_a_real_clock_run_sleeps_until_the_arrival() -> None:
    engine = engine_of()
    request = engine.add_request([1], greedy(1), arrival_s=engine.clock() + 0.02)
    assert engine.step() == []
    events = list(engine.run())
    assert len(events) == 2
    assert request.token_times_s[0] >= request.arrival_s


def test_virtual_time_only_moves_forward() -> None:
    clock = VirtualClock(3.0)
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="cannot advance"):
            clock.advance(bad)
    with pytest.raises(ValueError, match="back to 2"):
        clock.advance_to(2.0)
    clock.advance_to(3.0)
    assert clock() == 3.0


# --- policies ---------------------------------------------------------------------------------------------


def batches(policy: str, arrivals: list[float], lengths: list[int], **fields: Any) -> list[tuple[float, set[str]]]:
    """(time, who was admitted then), from a run in which each step takes one second."""
    config = EngineConfig(num_blocks=60, max_running_requests=2, policy=policy, **fields)
    work = tuple(Job((1,), greedy(n), arrival_s=t) for t, n in zip(arrivals, lengths, strict=True))
    trace = drive(Case(config, work)).engine.trace.events
    admitted: dict[float, set[str]] = {}
    for event in trace:
        if event.kind == "admit":
            admitted.setdefault(event.time_s, set()).add(event.request_id)
    return sorted(admitted.items())


ARRIVALS, LENGTHS = [0.0, 1.0, 2.0, 9.0, 20.0], [5, 1, 1, 1, 1]


def test_continuous_admits_whenever_there_is_room() -> None:
    assert batches("continuous", ARRIVALS, LENGTHS) == [
        (0.0, {"j0"}),
        (1.0, {"j1"}),
        (2.0, {"j2"}),
        (9.0, {"j3"}),
        (20.0, {"j4"}),
    ]


def test_static_waits_for_a_full_batch_and_runs_it_to_its_end() -> None:
    # j0 waits for j1; j2 for the end of j0 at 6 and for j3; j4 goes alone, for no more is known to come.
    assert batches("static", ARRIVALS, LENGTHS) == [(1.0, {"j0", "j1"}), (9.0, {"j2", "j3"}), (20.0, {"j4"})]


def test_who_waits_beyond_a_full_batch_joins_none_of_its_freed_places() -> None:
    assert batches("static", [0.0, 0.0, 0.0], [4, 1, 1]) == [(0.0, {"j0", "j1"}), (4.0, {"j2"})]


def test_dynamic_waits_no_longer_than_its_limit() -> None:
    assert batches("dynamic", ARRIVALS, LENGTHS, max_wait_s=0.5) == [
        (0.5, {"j0"}),
        (5.5, {"j1", "j2"}),
        (9.5, {"j3"}),
        (20.5, {"j4"}),
    ]


def test_a_closed_batch_admits_its_members_over_several_steps_and_nobody_else() -> None:
    assert batches("static", [0.0, 0.0, 0.0], [4, 1, 1], max_batch_tokens=1) == [
        (0.0, {"j0"}),
        # The budget is one token, so j1 waits for the end of j0; it is of the same batch, j2 is not.
        (4.0, {"j1"}),
        (5.0, {"j2"}),
    ]


def test_an_aborted_member_leaves_no_place_in_a_closed_batch() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=60, max_running_requests=2, policy="static", max_batch_tokens=1))
    for i in range(2):
        engine.add_request([1], greedy(3), request_id=f"j{i}")
    engine.step()
    engine.abort("j1")
    engine.step()
    late = engine.add_request([1], greedy(1), request_id="late")
    engine.step()
    assert late.status is Status.WAITING
    list(engine.run())
    assert late.finish_reason == "length"


# --- abort and failure ------------------------------------------------------------------------------------


def test_an_abort_ends_a_request_wherever_it_is() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=9, max_running_requests=1, debug_checks=True))
    running = engine.add_request([1], greedy(9))
    waiting = engine.add_request([1], greedy(9))
    pending = engine.add_request([1], greedy(9), arrival_s=1e9)
    engine.step()
    for request in (running, waiting, pending):
        assert engine.abort(request.request_id)
        assert not engine.abort(request.request_id)
    events = engine.step()
    assert [(e.kind, e.finish_reason) for e in events] == [("finish", "abort")] * 3
    assert not engine.has_work()
    assert engine.kv_usage().used_blocks == 0


def test_an_abort_while_its_step_runs_takes_effect_when_the_step_lands() -> None:
    engine, model = make_engine(EngineConfig(num_blocks=9))
    request = engine.add_request([1], greedy(9))
    engine.step()
    blocks_during: list[int] = []

    def outside() -> None:
        assert engine.abort(request.request_id)
        assert not engine.abort(request.request_id)
        blocks_during.append(engine.kv.pool.num_used)

    model.during_run = outside
    events = engine.step()
    assert blocks_during == [1]  # still held: the backend writes to it
    assert [(e.kind, e.finish_reason) for e in events] == [("finish", "abort")]
    assert request.num_output == 1
    assert engine.kv.pool.num_used == 0


class Failing(AuditedModel):
    """Raises in its second step."""

    def run(self, plan: StepPlan) -> StepResult:
        if plan.step == 1:
            raise MemoryError("out of memory")
        return super().run(plan)


def test_a_backend_that_raises_ends_the_requests_of_its_step_and_no_others() -> None:
    clock = VirtualClock()
    model = Failing(clock)
    engine = Engine(model, EngineConfig(num_blocks=9, max_running_requests=1, debug_checks=True), clock=clock)
    model.engine = engine
    failed, other = engine.add_request([1], greedy(3)), engine.add_request([1, 0], greedy(3))
    engine.step()
    with pytest.raises(MemoryError):
        engine.step()
    assert engine.kv.pool.num_used == 0
    engine.check()
    event, *rest = engine.run()
    assert (event.request_id, event.kind, event.finish_reason) == (failed.request_id, "error", "error")
    assert event.error == failed.error == "MemoryError: out of memory"
    assert {e.request_id for e in rest} == {other.request_id}
    assert other.finish_reason == "length"


@pytest.mark.parametrize(("ids", "words"), [([], "wants 1 tokens, got 0"), ([99], "outside the vocabulary")])
def test_a_backend_that_breaks_the_protocol_is_named(ids: list[int], words: str) -> None:
    class Broken(HashModel):
        def run(self, plan: StepPlan) -> StepResult:
            return StepResult(ids, 0.0)

    engine = Engine(Broken(vocab_size=10), EngineConfig(num_blocks=9))
    engine.add_request([1], GREEDY)
    with pytest.raises(EngineError, match=words):
        engine.step()


def test_an_engine_that_cannot_go_on_says_so() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=9))
    engine.add_request([1], GREEDY)
    while engine.kv.pool.num_free:  # someone outside holds every block
        engine.kv.pool.allocate()
    with pytest.raises(EngineError, match="1 requests cannot go on: 0 blocks are free"):
        list(engine.run())


def test_check_finds_tables_and_counts_that_disagree() -> None:
    def running() -> Engine:
        engine, _ = make_engine(EngineConfig(num_blocks=9, block_size=1))
        engine.add_request([1, 0], greedy(4))
        engine.step()
        engine.check()
        return engine

    engine = running()
    engine.kv.pool.touch(1)
    with pytest.raises(PoolError, match="held"):
        engine.check()
    engine = running()
    engine.scheduler.running[0].num_computed_tokens = 1
    with pytest.raises(EngineError, match="holds 2 blocks for 1 tokens"):
        engine.check()
    engine = running()
    engine.scheduler.running[0].num_computed_tokens = 3
    with pytest.raises(EngineError, match="3 of 3 tokens computed"):
        engine.check()
    engine = running()
    engine.scheduler.running.clear()
    with pytest.raises(EngineError, match="0 requests run"):
        engine.check()


def test_a_result_planned_before_a_preemption_is_dropped() -> None:
    """As when the next step is planned while one runs: rows 29 and 30 of the collection."""
    engine, model = make_engine(EngineConfig(num_blocks=9, block_size=1))
    request = engine.add_request([1, 0], greedy(3))
    step = engine.plan_step()
    assert step is not None
    result = model.run(step.plan)
    engine.scheduler._preempt(request, _Decisions(0))
    assert engine.commit_step(step, result) == []
    assert (request.num_output, request.num_computed_tokens, request.num_in_flight) == (0, 0, 0)
    list(engine.run())
    assert request.num_output == 3


# --- rewind -----------------------------------------------------------------------------------------------


def test_rewind_gives_back_whole_blocks_past_the_length_and_none_that_is_indexed() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=9, block_size=2))
    request = engine.add_request([1] * 5, greedy(9))
    engine.step()  # five tokens computed, two blocks indexed
    kv = engine.kv
    before = list(kv.table(request.request_id))
    assert kv.reserve(request, 9)  # room for drafts
    assert kv.table(request.request_id)[:3] == before
    kv.rewind(request, 5)
    assert kv.table(request.request_id) == before
    engine.check()
    kv.rewind(request, 5)  # nothing left to give back
    assert kv.table(request.request_id) == before
    with pytest.raises(PoolError, match="rewinds to 3 tokens, but 2 of its blocks"):
        kv.rewind(request, 3)


# --- the hash model ---------------------------------------------------------------------------------------


def plan_for(slots: list[int], table: list[int], tokens: list[int], start: int) -> StepPlan:
    plan = StepPlan(step=0, block_size=2, request_ids=["q"], token_ids=tokens, slot_mapping=slots, block_tables=[table])
    plan.positions = list(range(start, start + len(tokens)))
    plan.query_start_loc = [0, len(tokens)]
    plan.seq_lens = [start + len(tokens)]
    return plan


def test_the_hash_model_raises_on_unwritten_poisoned_foreign_and_missing_slots() -> None:
    model = HashModel()
    model.load(block_size=2, num_blocks=6)
    with pytest.raises(WrongReadError, match="never written"):
        model.run(plan_for([3], [1], [5], start=1))
    model.run(plan_for([2, 3, 4], [1, 2], [7, 8, 9], start=0))
    model.run(plan_for([5], [1, 2], [9], start=3))
    with pytest.raises(WrongReadError, match="not its own"):
        model.run(plan_for([6], [2, 1, 3], [9], start=4))
    with pytest.raises(WrongReadError, match="its table has 1 blocks"):
        model.run(plan_for([6], [1], [9], start=4))
    model.copy_blocks([(1, 4), (2, 5)])
    model.run(plan_for([6], [4, 5, 3], [9], start=4))
    model.poison([1])
    with pytest.raises(WrongReadError, match="has been freed"):
        model.run(plan_for([6], [1, 2, 3], [9], start=4))


# --- metrics and trace ------------------------------------------------------------------------------------


def test_metrics_are_those_of_a_run_done_by_hand() -> None:
    """0.25 s a token. Batch of a (4 tokens, 3 out) and b (2 tokens, 2 out, arrives at 0.5)."""
    engine, _ = simulated(EngineConfig(num_blocks=9, block_size=2))
    engine.add_request([1, 2, 3, 4], greedy(3), request_id="a")
    engine.add_request([1, 2], greedy(2), request_id="b", arrival_s=0.5)
    list(engine.run())
    # Step 0: a's prompt, 0 to 1.0. Step 1: a's second token and b's prompt, 3 tokens, to 1.75. Step 2: to 2.25.
    run = engine.metrics()
    a, b = run.requests
    assert (a.queue_s, a.ttft_s, a.itl_s, a.tpot_s, a.e2e_s) == (0.0, 1.0, (0.75, 0.5), 0.625, 2.25)
    assert (b.queue_s, b.ttft_s, b.itl_s, b.tpot_s, b.e2e_s) == (0.5, 1.25, (0.5,), 0.5, 1.75)
    assert (a.output_tokens, a.prompt_tokens, a.cached_tokens, a.finish_reason) == (3, 4, 0, "length")
    assert (run.output_tokens, run.duration_s, run.tokens_per_s) == (5, 2.25, 5 / 2.25)
    assert [(s.time_s, s.num_requests, s.num_tokens) for s in run.steps] == [(1.0, 1, 4), (1.75, 2, 3), (2.25, 2, 2)]
    assert [s.used_blocks for s in run.steps] == [2, 4, 0]
    assert run.peak_used_blocks == 4


def test_tpot_is_the_mean_gap_whatever_came_together() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=20))
    request = engine.add_request([1], greedy(5))
    list(engine.run())
    request.token_times_s = [1.0, 2.0, 2.0, 2.0, 5.0]
    request.chunk_sizes = [1, 3, 1]  # three tokens came at once
    request.finished_s = 5.0
    [metrics] = engine.metrics().requests
    assert metrics.ttft_s is not None
    assert metrics.e2e_s is not None
    assert metrics.tpot_s == (metrics.e2e_s - metrics.ttft_s) / 4 == 1.0
    assert metrics.itl_s == (1.0, 3.0)


def test_metrics_of_requests_that_did_not_get_far() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=20, max_running_requests=1))
    assert engine.metrics().tokens_per_s == 0.0
    engine.add_request([1], greedy(1))
    waiting = engine.add_request([1], greedy(5))
    engine.step()
    engine.abort(waiting.request_id)
    one, none = engine.metrics().requests
    assert (one.tpot_s, one.itl_s) == (None, ())
    assert (none.ttft_s, none.queue_s, none.tpot_s, none.e2e_s) == (None, None, None, 1.0)


def test_an_answer_ends_with_its_last_token_however_late_the_abort() -> None:
    engine, model = make_engine(EngineConfig(num_blocks=9))
    request = engine.add_request([0, 1], greedy(9))
    engine.step()
    engine.step()
    model.clock.advance(50.0)
    engine.abort(request.request_id)
    engine.step()
    [one] = engine.metrics().requests
    assert (one.output_tokens, one.e2e_s, request.finished_s) == (2, 2.0, 52.0)


def test_the_hit_rate_is_of_requests_that_ran() -> None:
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=20, max_running_requests=1))
    for _ in range(3):
        engine.add_request([0, 1, 1, 0, 1], greedy(2))
    while engine.metrics().requests[1].output_tokens == 0:
        engine.step()
    assert engine.metrics().prefix_hit_rate == 4 / 10  # the third has not begun


def test_accepted_tokens_behind_the_end_of_an_output_are_not_counted() -> None:
    """Drafts of 4 that are always right: an output of 3 keeps what it has room for."""
    for max_tokens, kept in ((2, 1), (3, 2), (4, 3), (6, 4)):
        for stop in (False, True):
            config = EngineConfig(block_size=2, num_blocks=64)
            engine, _ = make_engine(config, vocab_size=5, speculation=Speculation(AlwaysRight(), 4))
            alone, _ = make_engine(config, vocab_size=5)
            ids = alone.add_request([1, 2], SamplingParams(temperature=0, max_tokens=20))
            list(alone.run())
            end = ids.output_ids[max_tokens - 1]
            if stop and end in ids.output_ids[: max_tokens - 1]:
                continue
            params = SamplingParams(
                temperature=0, max_tokens=20 if stop else max_tokens, stop_token_ids=(end,) if stop else ()
            )
            request = engine.add_request([1, 2], params)
            list(engine.run())
            measured = engine.metrics().requests[0]
            assert request.num_output == max_tokens
            if max_tokens < 6:
                # The first token is drawn by the prompt, the others come with one draft.
                assert measured.accepted_tokens <= max_tokens - 1
                assert measured.accepted_tokens == (kept if stop else kept - 1 if max_tokens > 2 else 0)


def test_hit_rate_and_kv_usage() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=11, block_size=2))
    for _ in range(2):
        engine.add_request([1] * 6, greedy(1))
        list(engine.run())
    assert engine.metrics().prefix_hit_rate == 4 / 12
    engine.add_request([1] * 6, greedy(2))
    engine.step()
    usage = engine.kv_usage()
    assert (usage.used_blocks, usage.total_blocks, usage.cached_blocks) == (3, 10, 1)
    assert (usage.used_bytes, usage.total_bytes) == (3 * 2 * 1024, 10 * 2 * 1024)


def test_a_replay_of_the_trace_is_the_engine_at_every_step() -> None:
    config = EngineConfig(block_size=2, num_blocks=10, max_batch_tokens=5)
    engine, _ = make_engine(config)
    for i in range(5):
        engine.add_request([1, 0, 1, 0, i % 2, 1], greedy(6), arrival_s=float(i))
    replay, seen = Replay(10), 0
    while engine.has_work():
        engine.step()
        replay.apply(engine.trace.events[seen:])
        seen = len(engine.trace.events)
        assert replay.tables == {k: list(v.blocks) for k, v in engine.kv.block_tables.items()} | {
            k: [] for k in replay.tables if k not in engine.kv.block_tables
        }
        assert [len(h) for h in replay.holders] == engine.kv.pool.ref_counts
        assert {b for b, c in enumerate(replay.cached) if c} == set(engine.kv.groups[0].index.blocks())
        for request in engine.scheduler.running:
            assert replay.computed[request.request_id] == request.num_computed_tokens
            assert replay.known[request.request_id] == request.num_known
    assert engine.scheduler.num_preemptions > 0
    times = [e.time_s for e in engine.trace.events]
    assert all(a <= b for a, b in pairwise(times))


def test_a_trace_that_frees_out_of_order_is_refused() -> None:
    engine, _ = make_engine(EngineConfig(block_size=1, num_blocks=9))
    engine.add_request([1, 1], greedy(2))
    list(engine.run())
    events = [e._replace(blocks=e.blocks[::-1]) if e.kind == "free" else e for e in engine.trace.events]
    with pytest.raises(ValueError, match="out of order"):
        Replay(9).apply(events)


def test_without_a_trace_the_run_is_the_same() -> None:
    case = Case(EngineConfig(block_size=2, num_blocks=9), (Job((1, 0, 1), greedy(5)), Job((1, 0, 1), greedy(5))))
    engine, _ = make_engine(case.config, is_traced=False)
    for job in case.jobs:
        engine.add_request(job.prompt, job.params)
    list(engine.run())
    assert not engine.trace.events
    assert [r.output_ids for r in engine.requests.values()] == list(drive(case).ids().values())


# --- the one rule -----------------------------------------------------------------------------------------

BLOCKED = """
import sys
for name in ("numpy", "torch"):
    sys.modules[name] = None  # an import of it raises ImportError
import pkgutil, importlib, minillm
alone = [f"minillm.{name}" for name in ("core", "grammar", "speculate", "router", "transfer")]
names = [m.name for p in alone for m in pkgutil.walk_packages(importlib.import_module(p).__path__, p + ".")]
for name in names + ["minillm.backends.hash_model", "minillm.backends.simulated"]:
    importlib.import_module(name)
assert len(names) > 60, names
loaded = {n.partition(".")[0] for n, m in sys.modules.items() if m is not None}
foreign = {n for n in loaded - sys.stdlib_module_names - {"minillm", "__main__"} if not n.startswith("_")}
print(sorted(foreign))
from minillm.core.engine import Engine
from minillm.core.sampling import SamplingParams
engine = Engine(importlib.import_module("minillm.backends.hash_model").HashModel())
engine.add_request([1, 2, 3], SamplingParams(max_tokens=4))
print(sum(e.kind == "token" for e in engine.run()))
"""


def test_the_core_is_the_standard_library_alone() -> None:
    # -S: no site-packages at all; the project comes by the working directory.
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-S", "-c", BLOCKED], capture_output=True, text=True, check=False, cwd=root)
    assert done.stderr == ""
    assert done.stdout.split("\n")[:2] == ["[]", "4"]
