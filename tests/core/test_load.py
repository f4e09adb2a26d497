"""Load shedding: who comes to a full queue is refused at once, with the numbers; nobody else is."""

from __future__ import annotations

import pytest
from core_harness import Case, Job, Outcome, drive
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.backends.hash_model import HashModel
from minillm.backends.simulated import SimulatedBackend
from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.policies.load import LoadShedder
from minillm.core.policies.step_times import StepTimes
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def refused(outcome: Outcome) -> list[str]:
    return [r.request_id for r in outcome.engine.requests.values() if r.finish_reason == "error"]


def serve(jobs: list[Job], **fields: object) -> Outcome:
    return drive(Case(EngineConfig(num_blocks=60, max_running_requests=1, **fields), tuple(jobs)))  # type: ignore[arg-type]


def test_a_queue_of_the_longest_length_refuses_who_comes_next() -> None:
    jobs = [Job((1,), greedy(3)) for _ in range(5)] + [Job((1,), greedy(3), arrival_s=3.0)]
    outcome = serve(jobs, max_waiting_requests=2)
    # j0 runs at once and never waits; j1 and j2 wait; when j5 comes, j1 runs, so there is room again.
    assert refused(outcome) == ["j3", "j4"]
    assert "2 requests wait, and max_waiting_requests is 2: try again later" in outcome.engine.requests["j3"].error
    event = next(e for e in outcome.events if e.request_id == "j3")
    assert (event.kind, event.time_s) == ("error", 0.0)


def test_tokens_that_wait_are_bounded_but_an_empty_queue_takes_any_request() -> None:
    jobs = [Job((1,), greedy(9)), Job((1,) * 30, greedy(1)), Job((1,) * 2, greedy(1)), Job((1,), greedy(1))]
    outcome = serve(jobs, max_waiting_tokens=31, prefix_caching=False)
    assert refused(outcome) == ["j2"]
    error = outcome.engine.requests["j2"].error
    assert "2 tokens on top of 30 that wait would pass max_waiting_tokens 31" in error


def test_a_prompt_longer_than_the_bound_waits_where_nobody_else_does() -> None:
    jobs = [Job((1,), greedy(9)), Job((1,) * 40, greedy(1))]
    assert refused(serve(jobs, max_waiting_tokens=31)) == []


def test_all_that_is_ahead_is_computed_before_the_first_token() -> None:
    times = StepTimes()
    for tokens in (1, 11):
        times.observe(tokens, 0.5 + tokens / 8)
    load = LoadShedder(EngineConfig(max_batch_tokens=20), times)
    alone = load.predicted_ttft_s(10, 0)
    assert alone == pytest.approx(0.5 + 10 / 8)
    assert load.predicted_ttft_s(10, 60, 30) == pytest.approx(5 * 0.5 + 100 / 8)


def test_an_aborted_request_leaves_its_place_in_the_queue() -> None:
    jobs = [Job((1,), greedy(9)), Job((1,), greedy(1), abort_after=2), Job((1,), greedy(1), arrival_s=4.0)]
    assert refused(serve(jobs, max_waiting_requests=1)) == []


def burst(engine: Engine, count: int, prompt: int) -> list[Request]:
    now_s = engine.clock()
    return [engine.add_request([1] * prompt, greedy(1), arrival_s=now_s) for _ in range(count)]


@pytest.mark.parametrize("max_running", [1, 64])
def test_who_is_kept_gets_its_first_token_in_time_and_who_is_refused_would_not(max_running: int) -> None:
    """Steps of half a second and a tenth for each token: the prediction is right, so the cut is where it hurts."""

    def engine_of(**fields: object) -> Engine:
        clock = VirtualClock()
        model = SimulatedBackend(HashModel(), lambda plan: 0.5 + 0.1 * len(plan.token_ids), clock)
        config = EngineConfig(
            num_blocks=200,
            max_batch_tokens=10,
            max_running_requests=max_running,
            prefix_caching=False,
            ttft_slo_s=9.2,
            **fields,  # type: ignore[arg-type]
        )
        engine = Engine(model, config, clock=clock)
        for prompt in (3, 10, 10, 10, 10):  # so that steps and the pace of the queue are measured
            burst(engine, 1, prompt)
        list(engine.run())
        return engine

    calm, strict = engine_of(), engine_of(shed_late=True)
    everyone, some = burst(calm, 16, 10), burst(strict, 16, 10)
    list(calm.run())
    list(strict.run())
    kept = [request for request in some if request.finish_reason == "length"]
    assert 0 < len(kept) < len(some)
    assert all(request.token_times_s[0] - request.arrival_s <= 9.2 for request in kept)
    late = [r.token_times_s[0] - r.arrival_s > 9.2 for r in everyone]
    assert [r.finish_reason == "error" for r in some] == late
    error = some[-1].error
    assert "its first token would come after about" in error
    assert "ttft_slo_s is 9.2" in error


def test_a_queue_that_does_not_move_is_predicted_never_to_move() -> None:
    shedder = LoadShedder(EngineConfig(max_batch_tokens=10), StepTimes())
    assert shedder.predicted_ttft_s(5, 100) == 0.0  # nothing measured: nobody is refused
    shedder.observe(0.0, 0, 3)
    shedder.observe(4.0, 0, 3)
    assert shedder.predicted_ttft_s(5, 100) == float("inf")
    shedder.observe(8.0, 80, 2)
    shedder.observe(13.0, 80, 0)  # these 5 s went to the 80 tokens
    shedder.observe(90.0, 100, 2)  # nobody waited before: that was the arrivals' pace
    keep = 1 - 1 / 64
    assert shedder.predicted_ttft_s(5, 100) == pytest.approx(100 / (80 / (4 * keep**2 + 4 * keep + 5)))


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 9)), max_size=12),
    st.sampled_from(["fcfs", "shortest", "fair"]),
)
@settings(max_examples=60, deadline=None)
def test_the_bounds_hold_after_every_planning(work: list[tuple[int, int, int]], order: str) -> None:
    config = EngineConfig(
        num_blocks=60, max_running_requests=2, max_waiting_requests=3, max_waiting_tokens=9, order=order
    )  # type: ignore[arg-type]
    clock = VirtualClock()
    engine = Engine(SimulatedBackend(HashModel(), lambda plan: 1.0, clock), config, clock=clock)
    for prompt, output, arrival_s in work:
        engine.add_request([1] * prompt, greedy(output), arrival_s=float(arrival_s))
    while engine.has_work():
        engine.step()
        waiting = engine.scheduler.waiting
        assert waiting.num_requests <= 3
        assert waiting.num_requests <= 1 or waiting.num_tokens <= 9
    assert all(r.finish_reason in ("length", "error") for r in engine.requests.values())
