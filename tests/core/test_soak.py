"""What has ended is let go of: a process that serves for days has the memory that it had after its first requests."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from minillm.backends.hash_model import HashModel
from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.sampling import SamplingParams, uniform
from minillm.speculate.ngram import NgramDrafter
from minillm.speculate.speculator import Speculation

CONFIGS = {
    "default": EngineConfig(block_size=4, num_blocks=257),
    "radix": EngineConfig(block_size=4, num_blocks=257, prefix_index="radix", overlap=1),
    "swap": EngineConfig(block_size=4, num_blocks=33, preemption="swap", num_host_blocks=64, order="shortest"),
    "dynamic": EngineConfig(
        block_size=4, num_blocks=257, policy="dynamic", max_wait_s=0.5, max_running_requests=16, order="fair"
    ),
    "speculation": EngineConfig(block_size=4, num_blocks=257, order="deadline"),
}


def held_bytes(model: HashModel) -> int:
    model.compact()  # which it does by itself only now and then
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def serve(engine: Engine, first: int, count: int) -> None:
    """``count`` small requests of random prompts, 32 at a time; some are of two outputs, some are aborted."""
    for start in range(first, first + count, 32):
        for number in range(start, min(start + 32, first + count)):
            prompt = [int(8 * uniform(number, place)) for place in range(1 + int(9 * uniform(number, 99)))]
            params = SamplingParams(temperature=float(number % 2), max_tokens=1 + number % 5, n=1 + (number % 16 == 1))
            request = engine.add_request(prompt, params, arrival_s=engine.clock() if number % 3 else None)
            if number % 37 == 0:
                engine.abort(request.request_id)
        for _ in engine.run():
            pass


def grown_bytes(name: str, before: int, after: int, keep_ended: int) -> tuple[Engine, int]:
    """The engine after so many requests, and by how much its memory has grown since ``before``."""
    speculation = Speculation(NgramDrafter(), 3) if name == "speculation" else None
    tracemalloc.start()
    try:
        clock = VirtualClock()
        model = HashModel(vocab_size=8)
        engine = Engine(model, replace(CONFIGS[name], keep_ended=keep_ended), clock=clock, speculation=speculation)
        serve(engine, 0, before)
        held = held_bytes(model)
        serve(engine, before, after - before)
        return engine, held_bytes(model) - held
    finally:
        tracemalloc.stop()


def test_the_requests_kept_are_the_last_and_names_stay_new() -> None:
    engine = Engine(HashModel(vocab_size=8), EngineConfig(num_blocks=65, keep_ended=3))
    for _ in range(9):
        engine.add_request([1], SamplingParams(temperature=0, max_tokens=1))
        list(engine.run())
    assert list(engine.requests) == ["r6", "r7", "r8"]
    assert [one.request_id for one in engine.metrics().requests] == ["r6", "r7", "r8"]
    assert len(engine.metrics().steps) == 3
    assert engine.add_request([1], SamplingParams()).request_id == "r9"


def test_outputs_of_one_prompt_are_kept_until_the_last_has_ended() -> None:
    engine = Engine(HashModel(vocab_size=8), EngineConfig(num_blocks=65, keep_ended=1))
    several = engine.add_request([1], SamplingParams(temperature=1, max_tokens=9, n=2, ignore_eos=True))
    engine.step()
    engine.abort("r0/1")
    for _ in range(3):
        engine.add_request([1], SamplingParams(temperature=0, max_tokens=1))
        engine.step()
    assert {"r0", "r0/1"} <= engine.requests.keys()
    assert engine.abort("r0")
    list(engine.run())
    assert several.is_finished
    assert len(engine.requests) == 1


def test_all_are_kept_where_that_is_asked_for() -> None:
    engine = Engine(HashModel(vocab_size=8), EngineConfig(num_blocks=65, keep_ended=None))
    for _ in range(1100):
        engine.add_request([1], SamplingParams(temperature=0, max_tokens=1))
    list(engine.run())
    assert len(engine.requests) == len(engine.metrics().requests) == 1100


# --- time ------------------------------------------------------------------------------------------------


def waiting(delay_s: float) -> Engine:
    engine = Engine(HashModel(vocab_size=8), EngineConfig(num_blocks=65))
    engine.add_request([1], SamplingParams(temperature=0, max_tokens=2), arrival_s=engine.clock() + delay_s)
    return engine


def test_steps_do_not_sleep_and_tell_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s")

    monkeypatch.setattr(time, "sleep", sleep)
    engine = waiting(0.2)
    assert engine.wait_s() == 0  # nothing was tried yet
    steps: Iterator[list[object]] = iter(engine.run_steps())  # type: ignore[arg-type]
    assert next(steps) == []
    assert 0 < engine.wait_s() <= 0.2
    assert next(steps) == []
    now = engine.add_request([2], SamplingParams(temperature=0, max_tokens=3))
    next(steps)
    assert engine.wait_s() == 0
    while not now.is_finished:
        next(steps)


def test_an_event_loop_does_other_things_while_the_engine_waits() -> None:
    engine, ticks = waiting(0.15), []

    async def tick() -> None:
        while engine.has_work():
            ticks.append(1)
            await asyncio.sleep(0.01)

    async def serve_all() -> list[str]:
        kinds = []
        for events in engine.run_steps():
            kinds += [event.kind for event in events]
            await asyncio.sleep(engine.wait_s())
        return kinds

    async def both() -> list[str]:
        other = asyncio.create_task(tick())
        kinds = await serve_all()
        await other
        return kinds

    assert asyncio.run(both()) == ["token", "token", "finish"]
    assert len(ticks) > 3


def test_run_sleeps_by_what_it_is_given() -> None:
    engine, slept = waiting(0.1), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        time.sleep(seconds)

    assert [event.kind for event in engine.run(sleep)] == ["token", "token", "finish"]
    assert 0 < sum(slept) < 0.3


# --- memory, last for they take longest ---------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_many_requests_leave_nothing_behind(name: str) -> None:
    engine, grown = grown_bytes(name, 400, 1_000, keep_ended=100)
    assert len(engine.requests) <= 100
    assert len(engine.metrics().steps) <= 100
    assert grown < 100_000, f"{grown:,} bytes more after 600 more requests"
    assert not engine.trace.events


@pytest.mark.slow
def test_two_hundred_thousand_requests_leave_nothing_behind() -> None:
    _, grown = grown_bytes("default", 2_000, 200_000, keep_ended=1024)
    assert grown < 200_000, f"{grown:,} bytes more after 198,000 more requests"
