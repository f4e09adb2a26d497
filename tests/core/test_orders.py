"""Who is next and who gives way: the orders, their queue, and the measured step times that one of them uses."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from core_harness import Case, Job, Outcome, drive, make_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.backends.hash_model import HashModel
from minillm.backends.simulated import SimulatedBackend
from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine, RequestError
from minillm.core.policies.order import DeadlineOrder, FairOrder, FirstComeOrder, PriorityOrder, ShortestOrder
from minillm.core.policies.step_times import StepTimes
from minillm.core.policies.waiting import WaitingQueue
from minillm.core.request import Request, Status
from minillm.core.sampling import SamplingParams


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def admissions(outcome: Outcome) -> list[str]:
    return [event.request_id for event in outcome.engine.trace.events if event.kind == "admit"]


# --- the queue --------------------------------------------------------------------------------------------


class Drifting(FirstComeOrder):
    """Lanes whose rank rises from outside, ranks that change with ``generation``."""

    def __init__(self) -> None:
        self.served: dict[str, float] = {}
        self.sign = 1

    def lane(self, request: Request) -> str:
        return request.tenant

    def lane_rank(self, lane: str) -> float:
        return self.served.get(lane, 0.0)

    def rank(self, request: Request) -> tuple[float, ...]:
        return (self.sign * request.priority, request.index)


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_the_queues_first_is_the_smallest_of_all_that_wait(seed: int) -> None:
    """Against a plain list: requests come, leave by being next or from the middle, come again; lanes are served."""
    rng = random.Random(seed)
    order = Drifting()
    queue = WaitingQueue(order)
    waiting: list[Request] = []
    away: list[Request] = []
    for index in range(80):
        match rng.randrange(6):
            case 0 | 1:
                again = away and rng.random() < 0.5
                request = away.pop(rng.randrange(len(away))) if again else make_request(index, rng)
                request.status = Status.WAITING
                request.epoch += 1
                request.num_preemptions += bool(again)
                queue.push(request)
                waiting.append(request)
            case 2 | 3 if waiting:
                first = queue.first()
                leaver = first if rng.random() < 0.5 and first is not None else rng.choice(waiting)
                queue.remove(leaver)
                leaver.status = Status.RUNNING
                waiting.remove(leaver)
                away.append(leaver)
            case 4:
                tenant = rng.choice("abc")
                order.served[tenant] = order.lane_rank(tenant) + rng.randint(0, 4)
            case 5 if rng.random() < 0.2:
                order.sign = -order.sign
                order.generation += 1
        assert queue.first() is min(waiting, key=order.standing, default=None)
        assert queue.num_requests == len(waiting)
        assert queue.num_tokens == sum(r.num_known for r in waiting)
        assert {r.request_id for r in queue.requests()} == {r.request_id for r in waiting}


def make_request(index: int, rng: random.Random) -> Request:
    prompt = [1] * rng.randint(1, 5)
    request = Request(f"q{index}", prompt, greedy(3), 0.0, index, 0, 9)
    request.priority, request.tenant = rng.randint(0, 3), rng.choice("abc")
    return request


def test_those_who_left_a_long_queue_are_let_go() -> None:
    """Requests that are aborted behind one that never leaves: the heap stays in proportion to who waits."""
    queue = WaitingQueue(FirstComeOrder())
    rng = random.Random(0)
    for index in range(5000):
        request = make_request(index, rng)
        request.status = Status.WAITING
        queue.push(request)
        if index:
            queue.remove(request)
            request.status = Status.FINISHED
    first = queue.first()
    assert first is not None
    assert first.index == 0
    assert sum(map(len, queue._lanes.values())) <= 20


# --- priority ---------------------------------------------------------------------------------------------


def by_priority(priorities: list[int], **fields: object) -> Case:
    config = EngineConfig(block_size=2, num_blocks=40, order="priority", **fields)  # type: ignore[arg-type]
    return Case(config, tuple(Job((1, 0), greedy(4), priority=p) for p in priorities))


def test_the_highest_priority_is_served_first_and_equals_in_order_of_arrival() -> None:
    assert admissions(drive(by_priority([0, 2, -1, 2, 1], max_running_requests=1))) == ["j1", "j3", "j4", "j0", "j2"]


def test_a_late_request_takes_the_place_of_the_last_of_lower_priority() -> None:
    """Two places, taken by priorities 1 and 0; the newcomer of priority 1 takes the second at once."""
    config = EngineConfig(block_size=2, num_blocks=40, order="priority", max_running_requests=2)
    work = (
        Job((1, 0), greedy(6), priority=1),
        Job((1, 1), greedy(6), priority=0),
        Job((0, 0), greedy(2), priority=1, arrival_s=2.0),
    )
    outcome = drive(Case(config, work))
    preempted = [(e.time_s, e.request_id) for e in outcome.engine.trace.events if e.kind == "preempt"]
    assert preempted == [(2.0, "j1")]
    assert outcome.engine.requests["j2"].admitted_s == 2.0
    assert [r.num_output for r in outcome.engine.requests.values()] == [6, 6, 2]


def test_nobody_gives_way_to_an_equal_or_where_it_would_not_be_enough() -> None:
    """The newcomer needs 6 blocks of 7; the equal holds 3 of them, so preempting the lower one is no help."""
    config = EngineConfig(block_size=2, num_blocks=8, order="priority", prefix_caching=False)
    work = (
        Job((1,) * 5, greedy(2), priority=5),  # two steps
        Job((0,) * 2, greedy(2), priority=0),
        Job((1, 0) * 6, greedy(1), priority=5, arrival_s=1.0),
    )
    outcome = drive(Case(config, work))
    assert outcome.engine.scheduler.num_preemptions == 0


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_a_preempting_request_gets_blocks_and_budget_of_those_it_outranks(block_size: int) -> None:
    """The low ones fill pool and budget; the high one runs in the very step in which it comes."""
    config = EngineConfig(
        block_size=block_size, num_blocks=12 // block_size + 1, order="priority", max_batch_tokens=4, debug_checks=True
    )
    low = [Job((i, 0), greedy(6), priority=0) for i in range(4)]
    outcome = drive(Case(config, (*low, Job((1,) * 4, greedy(3), priority=1, arrival_s=3.0)), vocab_size=50))
    high = outcome.engine.requests["j4"]
    assert high.admitted_s == 3.0
    assert high.num_preemptions == 0
    assert outcome.engine.scheduler.num_preemptions > 0


def test_priorities_where_the_order_does_not_look_at_them_are_refused() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=9))
    with pytest.raises(RequestError, match=r"priority is 3, but the engine's order is 'fcfs'.*order='priority'"):
        engine.add_request([1], greedy(1), priority=3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"priority": 1.5}, ["priority is 1.5", "whole number"]),
        ({"priority": True}, ["priority is True"]),
        ({"tenant": 7}, ["tenant is 7", "string"]),
        ({"ttft_slo_s": 0}, ["ttft_slo_s is 0", "above 0"]),
        ({"tpot_slo_s": math.inf}, ["tpot_slo_s is inf", "finite seconds"]),
        ({"tpot_slo_s": "1"}, ["tpot_slo_s is '1'", "number"]),
    ],
)
def test_what_steers_the_order_is_checked(fields: dict[str, object], words: list[str]) -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=9, order="priority"))
    with pytest.raises(RequestError) as caught:
        engine.add_request([1], greedy(1), **fields)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not engine.requests


# --- shortest first ---------------------------------------------------------------------------------------


def test_the_fewest_tokens_left_go_first() -> None:
    config = EngineConfig(num_blocks=40, order="shortest", max_running_requests=1)
    lengths = [(5, 9), (1, 2), (3, 3), (2, 9)]  # 14, 3, 6 and 11 tokens
    work = tuple(Job((1,) * prompt, greedy(output)) for prompt, output in lengths)
    assert admissions(drive(Case(config, work))) == ["j1", "j2", "j3", "j0"]


def test_what_a_swapped_request_has_computed_is_not_left() -> None:
    order = ShortestOrder(0.0)
    half, short = (
        Request(name, [1] * prompt, greedy(1), arrival_s=0.0, index=0, seed=0, max_total_tokens=prompt + 1)
        for name, prompt in (("half", 9), ("short", 5))
    )
    assert order.rank(short) < order.rank(half)
    half.num_computed_tokens = 6
    assert order.rank(half) < order.rank(short)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 20)), min_size=2, max_size=8),
    st.sampled_from([0.25, 1.0, 3.0]),
)
@settings(max_examples=150, deadline=None)
def test_nobody_is_overtaken_by_who_came_much_later(work: list[tuple[int, int, int]], ageing: float) -> None:
    config = EngineConfig(
        block_size=2, num_blocks=40, order="shortest", ageing_tokens_per_s=ageing, max_running_requests=1
    )
    jobs = tuple(Job((1,) * prompt, greedy(output), arrival_s=float(at)) for prompt, output, at in work)
    outcome = drive(Case(config, jobs))
    served = [outcome.engine.requests[r] for r in admissions(outcome)]
    for position, request in enumerate(served):
        for later in served[:position]:
            assert (later.arrival_s - request.arrival_s) * ageing < request.max_total_tokens


# --- fair share -------------------------------------------------------------------------------------------


@st.composite
def tenants(draw: st.DrawFn) -> Case:
    """Two tenants who always have someone waiting, with requests of very different sizes."""
    jobs = []
    for tenant, longest in (("a", draw(st.integers(1, 9))), ("b", draw(st.integers(1, 9)))):
        for _ in range(30):
            prompt, output = draw(st.integers(1, longest)), draw(st.integers(1, longest))
            jobs.append(Job((1,) * prompt, greedy(output), tenant=tenant))
    config = EngineConfig(
        block_size=2,
        num_blocks=draw(st.integers(10, 20)),
        max_batch_tokens=draw(st.integers(4, 12)),
        max_running_requests=draw(st.integers(1, 4)),
        order="fair",
        prefix_caching=False,
    )
    return Case(config, tuple(jobs))


@given(tenants())
@settings(max_examples=40, deadline=None)
def test_backlogged_tenants_are_served_alike(case: Case) -> None:
    """Sheng et al., theorem 4.4: the difference is at most 2 max(w_p * longest prompt, w_q * tokens of a batch)."""
    engine, _ = make_engine(case.config)
    for job in case.jobs:
        engine.add_request(job.prompt, job.params, tenant=job.tenant)
    order = engine.order
    assert isinstance(order, FairOrder)
    most_tokens = engine.kv_usage().total_blocks * case.config.block_size
    bound = 2 * max(FairOrder.PROMPT_WEIGHT * 9, FairOrder.OUTPUT_WEIGHT * most_tokens)
    steps = 0
    while {"a", "b"} <= {r.tenant for r in engine.scheduler.waiting.requests()} or steps == 0:
        engine.step()
        steps += 1
        assert abs(order.counters["a"] - order.counters["b"]) <= bound
    assert steps > 5


def test_a_flood_of_one_tenant_does_not_delay_another() -> None:
    config = EngineConfig(num_blocks=60, order="fair", max_running_requests=1)
    flood = [Job((1, 1), greedy(3), tenant="flood") for _ in range(20)]
    work = (*flood, Job((1, 0), greedy(3), tenant="other", arrival_s=4.0))
    assert admissions(drive(Case(config, work))).index("j20") <= 2


def test_a_tenant_that_was_idle_has_saved_nothing_up() -> None:
    """``late`` comes after ten requests of ``busy``: from then on they take turns, it does not get ten in a row."""
    config = EngineConfig(num_blocks=60, order="fair", max_running_requests=1)
    busy = [Job((1, 1), greedy(2), tenant="busy") for _ in range(20)]
    late = [Job((1, 0), greedy(2), tenant="late", arrival_s=20.0) for _ in range(8)]
    order = admissions(drive(Case(config, (*busy, *late))))
    first = order.index("j20")
    turns = ["late" if int(r[1:]) >= 20 else "busy" for r in order[first : first + 10]]
    assert all(a != b for a, b in pairwise(turns))


def test_what_is_computed_again_is_not_charged_again() -> None:
    config = EngineConfig(block_size=1, num_blocks=10, order="fair", prefix_caching=False)
    outcome = drive(Case(config, (Job((1, 1), greedy(6), tenant="a"), Job((0, 0), greedy(6), tenant="b"))))
    assert outcome.engine.scheduler.num_preemptions > 0
    order = outcome.engine.order
    assert isinstance(order, FairOrder)
    assert order.counters == {"a": 2 + 2 * 6, "b": 2 + 2 * 6}


def test_what_was_cached_is_not_charged() -> None:
    config = EngineConfig(block_size=2, num_blocks=40, order="fair", max_running_requests=1)
    order = drive(Case(config, tuple(Job((1, 1, 0, 1, 0), greedy(1), tenant=t) for t in "ab"))).engine.order
    assert isinstance(order, FairOrder)
    assert order.counters == {"a": 5 + 2, "b": 1 + 2}


# --- deadlines --------------------------------------------------------------------------------------------


def test_the_earliest_deadline_goes_first() -> None:
    config = EngineConfig(num_blocks=40, order="deadline", max_running_requests=1, ttft_slo_s=30.0)
    work = tuple(Job((1,), greedy(2), ttft_slo_s=slo) for slo in (None, 9.0, 40.0, 5.0))
    assert admissions(drive(Case(config, work))) == ["j3", "j1", "j0", "j2"]


def test_a_deadline_counts_from_the_arrival_and_moves_on_with_each_token() -> None:
    order = DeadlineOrder(StepTimes(), ttft_slo_s=10.0, tpot_slo_s=2.0)
    request = Request("a", [1], greedy(9), arrival_s=5.0, index=0, seed=0, max_total_tokens=10)
    assert order.due_s(request) == 15.0
    for tokens in range(1, 4):
        request.token_ids.append(1)
        request.token_times_s.append(12.0 + tokens / 8)
        assert order.due_s(request) == 12.125 + 2.0 * tokens
    assert order.rank(request)[0] == order.due_s(request)


def timed(**fields: object) -> Engine:
    """A step takes half a second and a tenth for each token."""
    clock = VirtualClock()
    model = SimulatedBackend(HashModel(), lambda plan: 0.5 + 0.1 * len(plan.token_ids), clock)
    config = EngineConfig(**{"num_blocks": 80, "order": "deadline", **fields})  # type: ignore[arg-type]
    return Engine(model, config, clock=clock)


def test_a_long_prompt_goes_before_a_short_one_with_a_little_more_time() -> None:
    """Slack, not deadline: 60 tokens take 6 s, so a deadline at 12 leaves 6, less than 8 of the other."""
    engine = timed(max_running_requests=1)
    for prompt, output in ((1, 2), (3, 2)):  # steps of two sizes, so that the time of a token is known
        engine.add_request([1] * prompt, greedy(output))
        list(engine.run())
    now_s = engine.clock()
    engine.add_request([2], greedy(1), request_id="short", ttft_slo_s=8.0, arrival_s=now_s)
    engine.add_request([3] * 60, greedy(1), request_id="long", ttft_slo_s=12.0, arrival_s=now_s)
    ended = [e.request_id for e in engine.run() if e.kind == "finish"]
    assert ended == ["long", "short"]


def test_chunks_shrink_so_that_running_requests_keep_their_pace() -> None:
    """A token each second is due; a step of 5 tokens ends in time, one of 50 would not."""
    engine = timed(tpot_slo_s=1.0, ttft_slo_s=60.0)
    steady = engine.add_request([1], greedy(40))
    for _ in range(3):
        engine.step()
    engine.add_request([2] * 3, greedy(1))  # so that two sizes of steps were measured
    engine.step()
    long = engine.add_request([3] * 50, greedy(1))
    list(engine.run())
    first_s, *times_s = steady.token_times_s
    assert all(time_s - first_s <= n + 1e-9 for n, time_s in enumerate(times_s, start=1))
    assert long.token_times_s[0] - long.arrival_s < 60.0


def test_a_prompt_that_is_late_itself_is_not_held_back() -> None:
    engine = timed(tpot_slo_s=1.0, ttft_slo_s=0.1)
    engine.add_request([1], greedy(20))
    for _ in range(3):
        engine.step()
    engine.add_request([2] * 3, greedy(1))
    engine.step()
    late = engine.add_request([3] * 50, greedy(1))
    engine.step()
    assert late.num_output == 1  # 50 tokens in one step


def test_goodput_counts_requests_that_kept_both_objectives() -> None:
    engine = timed(order="fcfs", max_running_requests=1)
    for ttft, tpot in ((0.7, 0.7), (0.5, 0.7), (9.0, 0.5), (9.0, None), (None, None)):
        engine.add_request([1], greedy(3), ttft_slo_s=ttft, tpot_slo_s=tpot)
    aborted = engine.add_request([1], greedy(3), ttft_slo_s=99.0)
    engine.abort(aborted.request_id)
    list(engine.run())
    begun = engine.add_request([1], greedy(9), ttft_slo_s=99.0)
    engine.step()
    engine.abort(begun.request_id)
    list(engine.run())
    run = engine.metrics()
    assert [r.slo_met for r in run.requests] == [True, False, False, True, None, False, False]
    assert run.goodput_per_s == pytest.approx(2 / run.duration_s)


# --- step times -------------------------------------------------------------------------------------------


@given(st.floats(0, 1), st.floats(1e-6, 1), st.lists(st.integers(1, 4096), min_size=2, max_size=50))
def test_a_line_is_found_again(base: float, slope: float, sizes: list[int]) -> None:
    times = StepTimes()
    for size in sizes:
        times.observe(size, base + slope * size)
    if max(sizes) > 1.2 * min(sizes):
        assert times.seconds(100) == pytest.approx(base + slope * 100, rel=0.02)
        assert times.seconds(int(times.tokens_within(base + slope * 50))) <= (base + slope * 50) * 1.02


def test_steps_of_one_size_leave_the_last_slope_and_the_new_level() -> None:
    times = StepTimes(memory_steps=4)
    assert (times.seconds(10), times.tokens_within(5.0)) == (0.0, math.inf)
    for size in (1, 2, 3):
        times.observe(size, 1.0 + 0.5 * size)
    for _ in range(200):
        times.observe(2, 2.0)
    assert times.per_token_s == pytest.approx(0.5)
    for _ in range(200):
        times.observe(2, 4.0)
    assert times.per_token_s > 0
    assert times.seconds(2) == pytest.approx(4.0)
    assert times.tokens_within(0.0) == 0.0


def test_time_that_falls_with_size_is_noise_that_says_nothing_of_a_token() -> None:
    times = StepTimes()
    times.observe(1, 3.0)
    times.observe(9, 1.0)
    assert times.per_token_s == 0.0
    assert times.base_s > 0
    times.observe(9, 30.0)
    known = times.per_token_s
    assert known > 0
    times.observe(1, 90.0)
    assert times.per_token_s == known


def test_an_order_that_outranks_says_that_it_preempts() -> None:
    """The scheduler asks ``outranks`` only of an order that says so."""
    for order in (FirstComeOrder, PriorityOrder, FairOrder):
        assert order.preempts == (order.outranks is not FirstComeOrder.outranks)
