"""A desk without a page: what a reader tells it, and what it tells."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from minillm.core.scheduler import Scheduler
from visualizers.desk.asks import Ask, every, poisson
from visualizers.desk.recipe import Recipe
from visualizers.desk.record import COLUMNS, MOST_LANES, MOST_STEPS, thinned
from visualizers.desk.session import Session
from visualizers.desk.setup import Setup

MODELLED = Recipe(clock="modelled/h100-sxm", model="llama-3-8b", a=Setup(pool="4096"), speed=100)
HELD, CACHED = COLUMNS.index("held"), COLUMNS.index("cached")


class Timer:
    """A machine on which a look at the clock takes a millisecond."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


def played(recipe: Recipe, most: int = 100_000, **options: Any) -> Session:
    session = Session(recipe, timer=Timer(), **options)
    finish(session, most)
    return session


def finish(session: Session, most: int = 100_000) -> None:
    for _ in range(most):
        if session.rests:
            return
        session.advance(0.05)
    raise AssertionError("the run does not end")


def test_a_step_between_two_requests_of_a_rate_goes_on_to_the_next() -> None:
    """At 1 request/s of 8 tokens the engine has nothing to do most of the time; no press of the button is in vain."""
    session = Session(replace(MODELLED, rate=1.0, max_tokens=8), timer=Timer())
    session.paused = True
    for pressed in range(1, 41):
        session.handle({"cmd": "step"})
        assert session.sides[0].record.num_steps == pressed
    assert len(session.sides[0].requests) > 3


def test_the_record_agrees_with_the_engine_after_every_step() -> None:
    asks = poisson(40, (300, 500, 40), (60, 100), 24)
    for preemption in ("recompute", "swap"):
        recipe = replace(MODELLED, a=Setup(pool="2048", batch="16", preemption=preemption), requests=asks)
        session = Session(recipe, timer=Timer())
        session.paused, steps = True, 0
        side = session.sides[0]
        while side.has_work():
            session.handle({"cmd": "step"})
            usage, steps = side.engine.kv_usage(), steps + 1
            assert side.record.held == usage.used_blocks
            assert side.record.num_cached == usage.cached_blocks
        lanes = side.record.lanes.values()
        assert {lane.status for lane in lanes} == {"done"}
        assert sum(lane.preemptions for lane in lanes) == side.engine.scheduler.num_preemptions > 0
        assert sum(lane.output_tokens for lane in lanes) == sum(ask.max_tokens for ask in asks)
        assert len(side.record.rows) == side.engine.num_steps <= steps
        for lane in lanes:
            assert all(a[2] <= b[1] + 1e-9 for a, b in zip(lane.spans, lane.spans[1:], strict=False)), lane.spans


def test_static_and_continuous_batching_get_the_same_requests_and_continuous_wins() -> None:
    recipe = replace(MODELLED, b=Setup(policy="static", pool="4096"), requests=poisson(20, (200, 500), (16, 96), 24))
    session = played(recipe)
    a, b = (side.record.lanes for side in session.sides)
    assert [(lane.arrival_s, lane.prompt_tokens) for lane in a.values()] == [
        (lane.arrival_s, lane.prompt_tokens) for lane in b.values()
    ]
    compared = session.compared()
    row = next(r for r in compared["rows"] if r["name"] == "e2e_s")
    assert row["winner"] == "A"
    assert row["clear"] is True
    assert row["a"]["values"][0] * 2 < row["b"]["values"][0]
    assert compared["sentence"].startswith("A wins. Arrival to end")
    again = played(recipe).compared()
    assert again == compared  # modelled time has no spread


def test_a_page_that_comes_late_sees_what_one_that_was_there_saw() -> None:
    session = Session(replace(MODELLED, requests=poisson(20, (200, 500), (16, 96), 24)), timer=Timer())
    first = session.everything()["sides"][0]
    rows, gaps, blocks = list(first["all_rows"]), list(first["all_gaps"]), {b: v for b, *v in first["all_blocks"]}
    lanes = {lane["n"]: lane for lane in first["all_lanes"]}
    for _ in range(100_000):
        if session.rests:
            break
        session.advance(0.01)
        side = session.news()["sides"][0]
        rows, gaps = rows + side["rows"], gaps + side["gaps"]
        for lane in side["lanes"]:
            before = lanes[lane["n"]]
            lane["spans"] = before["spans"][: lane["from_span"]] + lane["spans"]
            lane["text"] = before["text"][: lane["from_text"]] + lane["text"]
            lanes[lane["n"]] = lane
        for plan in side["plans"]:
            blocks.update({b: v for b, *v in plan["blocks"]})
    late = session.everything()["sides"][0]
    assert rows == late["all_rows"]
    assert gaps == late["all_gaps"]
    assert blocks == {b: v for b, *v in late["all_blocks"]}
    for lane in late["all_lanes"]:
        seen = lanes[lane["n"]]
        assert {name: seen[name] for name in lane} == lane


def test_requests_sent_while_it_runs_arrive_now_on_both_sides() -> None:
    recipe = Recipe(requests=(Ask(0.0, "The state of", 8),), b=Setup(prefix_cache="off"))
    session = Session(recipe)
    session.handle({"cmd": "send", "prompt": "My fellow citizens", "max_tokens": 5})
    session.handle({"cmd": "burst"})
    finish(session)
    for side in session.sides:
        lanes = side.record.lanes
        assert len(lanes) == 10
        assert lanes[2].prompt == "My fellow citizens"
        assert lanes[2].output_tokens == 5
        assert lanes[2].text
        assert {lane.status for lane in lanes.values()} == {"done"}
    a, b = session.sides
    assert [lane.text for lane in a.record.lanes.values()] == [lane.text for lane in b.record.lanes.values()]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ({"cmd": "send", "prompt": " ", "max_tokens": 8}, "the prompt is empty"),
        ({"cmd": "send", "prompt": "a", "max_tokens": 0}, "max_tokens is 0"),
        ({"cmd": "send", "prompt": "a", "max_tokens": "many"}, "give a number"),
        ({"cmd": "send", "prompt": "a " * 3000, "max_tokens": 8}, "was refused"),
        ({"cmd": "rate", "value": 1e9}, "give 0 to 64"),
        ({"cmd": "rate", "value": float("nan")}, "give a number"),
        ({"cmd": "speed", "value": -1}, "above 0"),
        ({"cmd": "lever", "side": "A", "name": "policy", "value": "never"}, "choose from continuous"),
        ({"cmd": "lever", "side": "B", "name": "policy", "value": "static"}, "compare first"),
        ({"cmd": "lever", "side": "A", "name": "colour", "value": "red"}, "there is no lever"),
        ({"cmd": "abort", "n": 77}, "has ended already"),
        ({"cmd": "trace", "text": "at_s\n"}, "the trace is empty"),
        ({"cmd": "machine", "clock": "sundial", "model": "tiny"}, "there is no clock"),
        ({"cmd": "machine", "clock": "machine", "model": "no-such-model"}, "no-such-model"),
        ({"cmd": "machine", "clock": "modelled/abacus", "model": "llama-3-8b"}, "abacus"),
        ({"cmd": "export", "kind": "wav"}, "choose from json"),
        ({"cmd": "rounds", "value": 0}, "give 1 to 20"),
        ({"cmd": "sing"}, "knows no command"),
    ],
)
def test_what_cannot_be_done_is_said_and_the_run_goes_on(command: dict[str, Any], said: str) -> None:
    session = Session(Recipe(requests=every(0.0, ("The state of our union",), (12,), 2)))
    generation = session.generation
    session.handle(command)
    assert said in session.notes[-1]["text"]
    assert session.generation == generation
    finish(session)
    assert [lane.output_tokens for lane in session.sides[0].record.lanes.values() if lane.status == "done"] == [12, 12]


def test_a_lever_makes_a_new_engine_with_the_same_requests() -> None:
    session = played(replace(MODELLED, requests=poisson(20, (200,), (30,), 6)))
    before = {n: lane.arrival_s for n, lane in session.sides[0].record.lanes.items()}
    session.handle({"cmd": "lever", "side": "A", "name": "batch", "value": "1"})
    assert "new engine" in session.notes[-1]["text"]
    finish(session)
    assert {n: lane.arrival_s for n, lane in session.sides[0].record.lanes.items()} == before
    assert max(row[COLUMNS.index("running")] for row in session.sides[0].record.rows) == 1


def test_an_abort_frees_the_blocks_and_is_told() -> None:
    session = Session(Recipe(requests=every(0.0, ("The state of our union",), (200,), 3)))
    while session.sides[0].record.num_steps < 5:
        session.advance(0.01)
    session.handle({"cmd": "abort", "n": 2})
    finish(session)
    assert [lane.status for lane in session.sides[0].record.lanes.values()] == ["done", "aborted", "done"]
    assert session.sides[0].record.held == 0


def test_arrivals_at_a_rate_go_on_and_those_that_would_wait_too_long_are_left_out() -> None:
    session = Session(replace(MODELLED, prompts=(600,), max_tokens=400, rate=64.0), timer=Timer())
    for _ in range(200):
        session.advance(0.05)
    news = session.news()
    assert news["left_out"] > 0
    assert session.sides[0].engine.scheduler.waiting.num_requests <= 64 + 8  # those that came in one step
    assert not session.rests


def test_a_run_of_any_length_stays_in_the_same_memory() -> None:
    session = Session(replace(MODELLED, prompts=(16,), max_tokens=4, rate=64.0), timer=Timer())
    record = session.sides[0].record
    for _ in range(40_000):
        session.advance(0.05)
        if record.num_steps > 3 * MOST_STEPS:
            break
    assert record.num_steps > 3 * MOST_STEPS
    assert len(record.rows) <= MOST_STEPS
    assert sum(row[COLUMNS.index("merged")] for row in record.rows) == record.num_steps
    assert len(record.lanes) <= MOST_LANES + 64
    assert all(a[1] <= b[0] + 1e-9 for a, b in zip(record.rows, record.rows[1:], strict=False))
    news = session.news()
    assert len(news["sides"][0]["rows"]) <= MOST_STEPS


def test_thinned_rows_keep_sums_and_peaks() -> None:
    rows = [[i, i + 1, 1, 2, 3, 0, 0, i, 0, 100 * i, 7, 0, None if i == 0 else 5.0, None, 9] for i in range(4)]
    first, second = thinned(rows)
    assert first[:5] == [0, 2, 2, 4, 6]
    assert (first[HELD], second[HELD], first[COLUMNS.index("p50_ms")]) == (100, 300, 5.0)


def test_downloads_hold_the_run_with_its_machine_and_date() -> None:
    session = played(replace(MODELLED, b=Setup(policy="static"), requests=poisson(20, (200,), (30,), 6)))
    for kind in ("json", "csv", "perfetto"):
        session.handle({"cmd": "export", "kind": kind})
    told, table, trace = session.files
    found = json.loads(told["text"])
    assert found["machine"].startswith("H100")
    assert found["settings"]["B"]["policy"] == "static"
    assert [r["output_tokens"] for r in found["sides"]["A"]["requests"]] == [30] * 6
    rows = list(csv.DictReader(io.StringIO(table["text"])))
    assert {row["side"] for row in rows} == {"A", "B"}
    assert len(rows) == sum(len(side.record.rows) for side in session.sides)
    events = json.loads(trace["text"])["traceEvents"]
    assert len({event["pid"] for event in events}) == 4
    again = Session(session.preset.with_record(found["recipe"]), timer=Timer())
    finish(again)
    assert again.compared() == session.compared()


def reversed_queue(original: Callable[..., Any]) -> Callable[..., Any]:
    def schedule(self: Scheduler, step: int, now_s: float, more_to_come: bool) -> Any:
        found = original(self, step, now_s, more_to_come)
        calls.append(step)
        return found

    calls: list[int] = []
    schedule.calls = calls  # type: ignore[attr-defined]
    return schedule


def test_a_function_of_the_reader_takes_the_place_of_the_engines() -> None:
    mine = reversed_queue(Scheduler.schedule)
    session = played(replace(MODELLED, requests=every(0.0, (32,), (4,), 2)), replace={"scheduler.schedule": mine})
    assert len(mine.calls) >= session.sides[0].engine.num_steps > 0  # type: ignore[attr-defined]


def test_a_function_that_raises_is_told_and_the_desk_can_start_again() -> None:
    def schedule(self: Scheduler, step: int, now_s: float, more_to_come: bool) -> Any:
        raise ZeroDivisionError("mine")

    session = Session(
        replace(MODELLED, requests=every(0.0, (32,), (4,), 2)), timer=Timer(), replace={"scheduler.schedule": schedule}
    )
    session.advance(0.05)
    assert "ZeroDivisionError: mine" in session.notes[-1]["text"]
    assert session.rests or session.sides[0].failed
    assert session.news()["sides"][0]["failed"]


def test_rounds_of_a_measured_comparison_run_by_themselves_and_then_end() -> None:
    session = played(
        Recipe(requests=every(0.02, ("The state of our union",), (6,), 4), b=Setup(prefix_cache="off"), rounds=3)
    )
    assert [len(found) for found in session.rounds] == [3, 3]
    assert all(row["clear"] is not None for row in session.compared()["rows"])


def test_another_model_is_read_while_the_run_goes_on() -> None:
    session = Session(Recipe(requests=every(0.0, ("The state of our union",), (12,), 1)))
    prepared = session.prepare("machine/numpy", "tiny-draft")
    session.advance(0.01)
    assert session.machine is not prepared
    session.handle({"cmd": "machine", "clock": "machine/numpy", "model": "tiny-draft"})
    assert session.machine is prepared
    finish(session)
    assert session.sides[0].record.lanes[1].output_tokens == 12
    told = session.everything()
    assert "MB in memory" in told["models"]["tiny"]
    assert told["models"]["smollm2"]


def test_a_lever_of_requests_needs_no_new_engine() -> None:
    session = Session(Recipe(requests=(Ask(0.0, "The state of our union", 6),), a=Setup(temperature="1")))
    generation, engine = session.generation, session.sides[0].engine
    session.handle({"cmd": "lever", "side": "A", "name": "temperature", "value": "0"})
    assert "for the requests that come from now on" in session.notes[-1]["text"]
    session.handle({"cmd": "send", "prompt": "The state of our union", "max_tokens": 6})
    finish(session)
    assert (session.generation, session.sides[0].engine) == (generation, engine)
    assert [r.params.temperature for r in session.sides[0].requests.values()] == [1.0, 0.0]
    assert Recipe().opened(session.packed()).a.temperature == "0"
