"""The overlapped loop: the next step is planned while one runs, and nothing that comes out may show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from core_harness import AsyncModel, AuditedModel, Case, Job, audit_planning, drive, make_engine, without

from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.plan import StepPlan, StepResult
from minillm.core.request import Status
from minillm.core.sampling import SamplingParams


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def submitted(engine: Engine) -> list[StepPlan]:
    """Plans handed over by ``submit`` and not yet waited for."""
    return [flight.step.plan for flight in engine._flight]


@pytest.mark.parametrize("ahead", [1, 2])
def test_the_next_steps_are_submitted_before_the_first_has_landed(ahead: int) -> None:
    engine, model = make_engine(EngineConfig(num_blocks=20, overlap=ahead), is_async=True)
    engine.add_request([1, 0], greedy(9))
    seen: list[int] = []
    model.during_run = lambda: seen.append(len(model.plans))  # when a result is waited for
    list(engine.run())
    assert seen[0] == 1 + ahead
    assert [plan.positions for plan in model.plans] == [[0, 1], *([n] for n in range(2, 10))]


def test_a_step_names_the_draw_it_goes_on_from_and_a_placeholder_never_runs() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=20, overlap=1), vocab_size=50, is_async=True)
    a, b = engine.add_request([7, 8], greedy(5)), engine.add_request([9], greedy(5))
    engine.step()
    # The step in flight was planned when the first tokens were not known.
    (plan,) = submitted(engine)
    assert plan.request_ids == [a.request_id, b.request_id]
    assert (plan.token_ids, plan.drawn) == ([0, 0], {0: 0, 1: 1})
    assert plan.positions == [2, 1]


@pytest.mark.parametrize("is_async", [False, True])
def test_row_31_overlap_on_and_off_give_the_same_ids(is_async: bool) -> None:
    work = tuple(Job((i, 1), SamplingParams(temperature=t, max_tokens=9)) for i, t in enumerate((0.0, 3.0, 0.0)))
    case = Case(EngineConfig(num_blocks=40), work, eos_ids=frozenset({4, 5}), vocab_size=9, is_async=is_async)
    assert drive(without(case, overlap=1)).ids() == drive(case).ids() == drive(without(case, overlap=2)).ids()


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("is_async", [False, True])
def test_rows_29_and_30_preemption_with_steps_in_flight(is_async: bool, ahead: int) -> None:
    """A pool for one and a half: the later request is preempted again and again, each time with steps in flight."""
    work = tuple(Job((i, 0, 1), greedy(9)) for i in range(3))
    roomy = Case(EngineConfig(block_size=1, num_blocks=60, prefix_caching=False), work, vocab_size=30)
    tight = without(roomy, num_blocks=15, overlap=ahead)
    outcome = drive(Case(tight.config, work, vocab_size=30, is_async=is_async))
    assert outcome.engine.scheduler.num_preemptions > 2
    assert outcome.ids() == drive(roomy).ids()


def test_a_preemption_drops_what_is_in_flight_and_keeps_the_counts_whole() -> None:
    engine, _ = make_engine(EngineConfig(block_size=1, num_blocks=8, overlap=1, prefix_caching=False), is_async=True)
    engine.add_request([1, 0], greedy(5))
    late = engine.add_request([0, 1], greedy(5))
    while not late.num_preemptions:
        engine.step()
    assert (late.status, late.num_computed_tokens, late.num_in_flight) == (Status.WAITING, 0, 0)
    assert late.request_id in submitted(engine)[0].request_ids or late.num_output
    list(engine.run())
    assert late.num_output == 5


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("in_flight", [False, True])
def test_row_35_an_abort_at_any_phase_frees_once(in_flight: bool, ahead: int, is_async: bool) -> None:
    for moment in range(14):
        work = tuple(Job((1, 0, 1, 1, 0), greedy(4), abort_after=moment if i == 1 else None) for i in range(3))
        config = EngineConfig(block_size=2, num_blocks=9, max_batch_tokens=3, overlap=ahead)
        drive(Case(config, work, abort_in_flight=in_flight, is_async=is_async))


def test_an_aborted_request_is_not_planned_again_and_ends_when_its_step_lands() -> None:
    engine, model = make_engine(EngineConfig(num_blocks=9, overlap=1), is_async=True)
    request = engine.add_request([1], greedy(9))
    engine.step()
    assert engine.abort(request.request_id)
    assert not engine.abort(request.request_id)
    assert engine.kv.pool.num_used == 1  # a step that writes to it is in flight
    assert [(e.kind, e.finish_reason) for e in engine.step()] == [("finish", "abort")]
    assert engine.kv.pool.num_used == 0
    assert not engine.has_work()
    assert len(model.plans) == 2


def test_a_step_planned_for_a_request_that_stopped_is_run_and_forgotten() -> None:
    engine, model = make_engine(EngineConfig(num_blocks=20, overlap=1), vocab_size=3, is_async=True)
    params = SamplingParams(temperature=0, max_tokens=40, stop_token_ids=(0, 1, 2))
    request = engine.add_request([1], params)
    events = list(engine.run())
    assert [e.kind for e in events] == ["token", "finish"]
    assert request.num_output == 1
    assert len(model.plans) == 2  # the second was on its way when the first token turned out to be the last
    assert engine.kv.pool.num_used == 0


def test_no_step_is_planned_beyond_the_longest_output() -> None:
    engine, model = make_engine(EngineConfig(num_blocks=20, overlap=2), is_async=True)
    engine.add_request([1, 0], greedy(3))
    list(engine.run())
    assert len(model.plans) == 3


def test_a_request_shaped_by_its_output_waits_for_each_draw_and_others_do_not() -> None:
    """The penalties of the next draw need the token before it; the plain request runs in every step."""
    engine, model = make_engine(EngineConfig(num_blocks=40, overlap=1), vocab_size=20, is_async=True)
    shaped = engine.add_request([1], SamplingParams(temperature=0, max_tokens=4, presence_penalty=1.0))
    plain = engine.add_request([2], greedy(8))
    list(engine.run())
    steps = {r.request_id: [p.step for p in model.plans if r.request_id in p.request_ids] for r in (shaped, plain)}
    assert steps[plain.request_id] == list(range(8))
    assert steps[shaped.request_id] == [0, 2, 4, 6]


class Failing(AsyncModel):
    """Raises in the second step: while it is submitted, or while it is waited for."""

    def __init__(self, clock: VirtualClock, *, at_once: bool) -> None:
        super().__init__(clock)
        self.at_once = at_once

    def submit(self, plan: StepPlan) -> Callable[[], StepResult]:
        def fail() -> Any:
            raise MemoryError("out of memory")

        if plan.step == 1 and self.at_once:
            fail()
        wait = super().submit(plan)
        return fail if plan.step == 1 else wait


@pytest.mark.parametrize("at_once", [False, True])
def test_a_backend_that_raises_ends_the_requests_in_flight_and_no_others(at_once: bool) -> None:
    clock = VirtualClock()
    model = Failing(clock, at_once=at_once)
    engine = Engine(
        model, EngineConfig(num_blocks=9, max_running_requests=1, overlap=1, debug_checks=True), clock=clock
    )
    audit_planning(engine, model)
    failed, other = engine.add_request([1], greedy(5)), engine.add_request([1, 0], greedy(3))
    if not at_once:  # the first step lands before the second is waited for
        engine.step()
    with pytest.raises(MemoryError):
        engine.step()
    assert engine.kv.pool.num_used == 0
    assert not submitted(engine)
    engine.check()
    event, *rest = engine.run()
    assert (event.request_id, event.kind, event.finish_reason) == (failed.request_id, "error", "error")
    assert event.error == failed.error == "MemoryError: out of memory"
    assert {e.request_id for e in rest} == {other.request_id}
    assert other.finish_reason == "length"


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_interrupted_step_stays_in_flight_and_runs_again(ahead: int) -> None:
    engine, model = make_engine(EngineConfig(num_blocks=9, overlap=ahead))
    request = engine.add_request([1, 0], greedy(4))
    engine.step()

    def interrupt() -> None:
        model.during_run = lambda: None
        raise KeyboardInterrupt

    model.during_run = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    list(engine.run())
    calm = drive(Case(EngineConfig(num_blocks=9), (Job((1, 0), greedy(4)),)))
    assert request.output_ids == calm.ids()["j0"]


def test_metrics_and_trace_count_the_steps_that_landed() -> None:
    engine, model = make_engine(EngineConfig(num_blocks=9, overlap=1), is_async=True)
    engine.add_request([1, 0], greedy(4))
    list(engine.run())
    assert isinstance(model, AuditedModel)
    assert engine.num_steps == len(engine.metrics().steps) == len(model.plans) == 4
    planned = [e.step for e in engine.trace.events if e.kind == "schedule"]
    landed = [e.step for e in engine.trace.events if e.kind == "token"]
    assert planned == landed == [0, 1, 2, 3]
    kinds = [e.kind for e in engine.trace.events if e.kind in ("schedule", "token")]
    assert kinds == ["schedule", "schedule", "token", "schedule", "token", "schedule", "token", "token"]


@pytest.mark.parametrize(("value", "words"), [(-1, "overlap is -1"), (1.0, "overlap is 1.0"), ("1", "overlap is '1'")])
def test_what_overlap_may_be(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineConfig(overlap=value)  # type: ignore[arg-type]
    assert EngineConfig(overlap=True).overlap == 1
