"""Whatever raises ends the requests of its step and no others; ids without a token are ids like all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from adversaries import DRAFTERS
from core_harness import AsyncModel, AuditedModel, audit_planning, audit_state
from text_callers import Bytes

from minillm.backends.hash_model import HashModel
from minillm.completion import completion
from minillm.core.blocks import PoolError
from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.detokenizer import Detokenizer
from minillm.core.engine import Engine, EngineError
from minillm.core.observe.replay import Replay
from minillm.core.plan import StepPlan, StepResult
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams
from minillm.speculate.speculator import Speculation

GREEDY = SamplingParams(temperature=0, max_tokens=6)
CONFIG = EngineConfig(block_size=2, num_blocks=41, max_model_len=16, debug_checks=True, record_trace=True)


class FaultError(Exception):
    """Planted."""


def once(function: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
    """``function``, but for the first call of which ``when`` is true: that one raises."""
    raised: list[bool] = []

    def faulty(*arguments: Any, **named: Any) -> Any:
        if not raised and when(*arguments):
            raised.append(True)
            raise FaultError("planted")
        return function(*arguments, **named)

    return faulty


def engine_of(config: EngineConfig = CONFIG, *, is_async: bool = False, **options: Any) -> Engine:
    clock = VirtualClock()
    model = (AsyncModel if is_async else AuditedModel)(clock, vocab_size=5)
    engine = Engine(model, config, clock=clock, **options)
    model.engine = engine
    audit_planning(engine, model)
    return engine


def finish(engine: Engine) -> tuple[list[str], dict[str, list[str]]]:
    """What was raised on the way to the end, and the kinds of each request's events."""
    raised, kinds, replay = [], {name: [] for name in engine.requests}, Replay(engine.kv.pool.num_blocks)
    for _ in range(300):
        if not engine.has_work():
            break
        try:
            events = engine.step()
        except (FaultError, EngineError) as error:
            raised.append(str(error))
            events = []
        audit_state(engine, replay)
        for event in events:
            kinds[event.request_id].append(event.kind)
    assert not engine.has_work(), "stuck"
    assert engine.kv.pool.num_used == 0
    return raised, kinds


def sound(engine: Engine, kinds: dict[str, list[str]]) -> None:
    for name, request in engine.requests.items():
        assert kinds[name][-1] == ("error" if request.finish_reason == "error" else "finish")
        assert kinds[name][:-1] == ["token"] * (len(kinds[name]) - 1)
    after = engine.add_request([1, 2], GREEDY)
    list(engine.run())
    assert after.finish_reason == "length", "the engine serves no one after the fault"


def commits(engine: Engine, fault: Callable[[Engine], None]) -> tuple[set[str], set[str]]:
    """Ids of those that were in the step that failed, and of those that ended with an error."""
    failed: set[str] = set()
    commit = engine.commit_step

    def watched(step: Any, result: Any) -> Any:
        try:
            return commit(step, result)
        except BaseException:
            failed.update(request.request_id for request in step.requests)
            raise

    engine.commit_step = watched  # type: ignore[method-assign]
    fault(engine)
    raised, kinds = finish(engine)
    assert raised, "the fault was not met"
    sound(engine, kinds)
    return failed, {name for name, one in engine.requests.items() if one.finish_reason == "error"}


def fault_in(owner: Callable[[Engine], Any], method: str, when: Callable[..., bool]) -> Callable[[Engine], None]:
    def plant(engine: Engine) -> None:
        found = owner(engine)
        setattr(found, method, once(getattr(found, method), when))

    return plant


def is_second(request: Request, *_: object) -> bool:
    return request.request_id == "r1" and request.num_output > 0


IN_COMMIT = {
    "blocks": fault_in(lambda engine: engine.kv, "commit", is_second),
    "order": fault_in(lambda engine: engine.order, "on_token", is_second),
    "measured times": fault_in(lambda engine: engine.step_times, "observe", lambda *_: True),
    "the end": fault_in(lambda engine: engine.scheduler, "remove", is_second),
    "the checks": fault_in(lambda engine: engine, "check", lambda *_: True),
}


@pytest.mark.parametrize("overlap", [0, 1, 2])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fault", IN_COMMIT)
def test_what_raises_in_a_commit_ends_the_requests_of_that_step_and_no_others(
    fault: str, is_async: bool, overlap: int
) -> None:
    config = replace(CONFIG, overlap=overlap, max_running_requests=2, order="fair")
    engine = engine_of(config, is_async=is_async)
    for i in range(4):
        engine.add_request([1, 2, 3 - i % 2], replace(GREEDY, max_tokens=3 + i))
    in_step, ended = commits(engine, IN_COMMIT[fault])
    assert ended <= in_step
    assert ended
    assert len(ended) < 4


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_commit_leaves_nobody_in_flight(interrupt: type[BaseException]) -> None:
    engine = engine_of()
    engine.add_request([1], GREEDY)

    def on_token(request: Request) -> None:
        raise interrupt

    engine.order.on_token = on_token  # type: ignore[method-assign]
    with pytest.raises(interrupt):
        engine.step()
    del engine.order.on_token
    _, kinds = finish(engine)
    sound(engine, kinds)


@pytest.mark.parametrize("overlap", [0, 1, 2])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_backend_that_raises_ends_no_one_of_a_later_step(number: int, is_async: bool, overlap: int) -> None:
    """With steps in flight behind the one that fails, of which one brings requests that were not in it."""
    engine = engine_of(replace(CONFIG, overlap=overlap, num_host_blocks=8, preemption="swap"), is_async=is_async)

    def fails(plan: StepPlan) -> bool:
        if plan.step == number:
            in_step.update(plan.request_ids)
            return True
        return False

    engine.backend.run = once(engine.backend.run, fails)  # type: ignore[method-assign]
    if is_async:
        engine.backend.submit = once(engine.backend.submit, fails)  # type: ignore[attr-defined]
    in_step: set[str] = set()
    for i in range(6):
        engine.add_request([i % 5, 1, 3], GREEDY, arrival_s=max(0.0, i - 0.5))
    raised, kinds = finish(engine)
    assert raised
    sound(engine, kinds)
    assert {name for name, one in engine.requests.items() if one.finish_reason == "error"} == in_step


def test_requests_that_go_on_after_a_fault_have_the_ids_that_they_have_alone() -> None:
    for overlap in (0, 1, 2):
        engine = engine_of(replace(CONFIG, overlap=overlap))
        engine.backend.run = once(engine.backend.run, lambda plan: plan.step == 2)  # type: ignore[method-assign]
        engine.add_request([1, 2, 3], GREEDY)
        others = [engine.add_request([4, i], GREEDY, arrival_s=3.0 + i / 2) for i in range(3)]
        finish(engine)
        for request in others:
            alone = engine_of()
            expected = alone.add_request(request.prompt_ids, GREEDY)
            finish(alone)
            assert request.finish_reason == "length"
            assert request.output_ids == expected.output_ids


@pytest.mark.parametrize("when", [1, 2, 4])
def test_what_raises_while_a_step_is_planned_ends_those_who_have_a_part_in_it(when: int) -> None:
    engine = engine_of(replace(CONFIG, overlap=1))
    calls: list[int] = []

    def at(*_: object) -> bool:
        calls.append(1)
        return len(calls) == when

    engine.kv.copies.take = once(engine.kv.copies.take, at)  # type: ignore[method-assign]
    engine.add_request([1, 2, 3], GREEDY)
    engine.add_request([2, 2, 3], GREEDY, arrival_s=9.0)
    raised, kinds = finish(engine)
    assert raised
    sound(engine, kinds)
    assert [request.finish_reason for request in engine.requests.values()][:2] == ["error", "length"]


def test_who_cannot_be_looked_up_ends_and_those_behind_are_served() -> None:
    engine = engine_of()
    engine.kv.lookup = once(engine.kv.lookup, lambda request: request.request_id == "r0")  # type: ignore[method-assign]
    engine.add_request([1, 2, 3], GREEDY)
    engine.add_request([2, 2, 3], GREEDY)
    raised, kinds = finish(engine)
    assert raised
    sound(engine, kinds)
    assert [request.finish_reason for request in engine.requests.values()][:2] == ["error", "length"]


def test_who_waits_for_room_does_not_end_with_the_step_that_has_none() -> None:
    engine = engine_of(replace(CONFIG, max_running_requests=1))
    engine.kv.copies.take = once(engine.kv.copies.take, lambda: True)  # type: ignore[method-assign]
    engine.add_request([1, 2, 3], GREEDY)
    engine.add_request([2, 2, 3], GREEDY)
    raised, kinds = finish(engine)
    assert raised
    sound(engine, kinds)
    assert [request.finish_reason for request in engine.requests.values()][:2] == ["error", "length"]


def test_outputs_that_part_in_a_step_that_breaks_off_end_with_it() -> None:
    engine = engine_of()
    engine.add_request([1, 2], SamplingParams(temperature=1, n=3, max_tokens=4))
    other = engine.add_request([3], GREEDY, arrival_s=9.0)
    engine.order.on_token = once(engine.order.on_token, lambda request: request.request_id == "r0/1")  # type: ignore[method-assign]
    raised, kinds = finish(engine)
    assert raised
    sound(engine, kinds)
    assert other.finish_reason == "length"


@pytest.mark.parametrize("method", ["propose", "forget"])
@pytest.mark.parametrize("drafter", ["ngram", "random tree", "draft model"])
def test_a_drafter_that_raises_ends_the_requests_of_that_step(drafter: str, method: str) -> None:
    engine = engine_of(speculation=Speculation(DRAFTERS[drafter](), 3))
    assert engine.speculator is not None
    found = engine.speculator.drafter
    setattr(found, method, once(getattr(found, method), lambda *_: True))
    engine.add_request([1, 2, 1, 2], GREEDY)
    engine.add_request([2, 2, 3], GREEDY, arrival_s=20.0)
    raised, kinds = finish(engine)
    assert raised
    sound(engine, kinds)
    assert list(engine.requests.values())[1].finish_reason == "length"


def test_events_made_before_a_fault_are_delivered() -> None:
    engine = engine_of()
    first, second = engine.add_request([1], replace(GREEDY, max_tokens=1)), engine.add_request([2], GREEDY)
    engine.step_times.observe = once(engine.step_times.observe, lambda *_: True)  # type: ignore[method-assign]
    _, kinds = finish(engine)
    assert kinds[first.request_id] == ["token", "finish"]
    assert kinds[second.request_id] == ["token", "error"]
    assert second.error == "FaultError: planted"


def test_copies_put_back_come_before_those_decided_since() -> None:
    engine = engine_of()
    copies = engine.kv.copies
    copies.add(1, 2)
    first = copies.take()
    copies.add(2, 3)
    copies.add(4, 2)
    second = copies.take()
    copies.put_back(second)
    copies.put_back(first)
    assert copies.go_to([3])
    assert copies.come_from([1])
    copies.add(3, 5)
    assert sorted(copies.take()) == [(1, 3), (1, 5), (4, 2)]
    assert copies.take() == []


# --- ids that the model has and the tokenizer lacks --------------------------------------------------------


class Lacking(Bytes):
    """Knows ids 0 to 2, of which 0 is a control token; one id has no token, one raises otherwise."""

    def token_bytes(self, token_id: int) -> bytes:
        if token_id == 3:
            raise ValueError("outside the vocabulary")
        return super().token_bytes(token_id)  # IndexError for 4

    def is_special(self, token_id: int) -> bool:
        return token_id == 0


PIECES = [b"<|im_start|>", b"a", b"b"]


def test_ids_without_a_token_are_drawn_shown_and_counted_and_have_no_text() -> None:
    tokenizer = Lacking(PIECES)
    engine = engine_of(tokenizer=tokenizer)
    for token_id in (3, 4):
        engine.add_request([token_id, 1], replace(GREEDY, logit_bias={token_id: 100.0}, logprobs=5, prompt_logprobs=2))
    other = engine.add_request([1], GREEDY)
    raised, kinds = finish(engine)
    assert not raised
    sound(engine, kinds)
    for request, token_id in zip(engine.requests.values(), (3, 4), strict=False):
        assert request.output_ids == [token_id] * 6
        assert request.text == ""
        done = completion("", request, tokenizer)
        assert done.logprobs is not None
        assert [token.token for token in done.logprobs] == [""] * 6
        assert {likely.token for likely in done.logprobs[0].top} == {"<|im_start|>", "a", "b", ""}
    assert other.finish_reason == "length"


def test_a_control_token_has_no_text_in_outputs_events_and_stop_strings() -> None:
    engine = engine_of(tokenizer=Lacking(PIECES))
    request = engine.add_request(
        [1], replace(GREEDY, logit_bias={0: 100.0}, stop=("im_start",), ignore_eos=True, max_tokens=3)
    )
    events = list(engine.run())
    assert request.output_ids == [0, 0, 0]
    assert request.finish_reason == "length"
    assert request.text == "".join(event.text for event in events) == ""


def test_a_stop_string_is_found_across_tokens_without_text() -> None:
    detokenizer = Detokenizer(Lacking(PIECES), ("ab",))
    assert [detokenizer.push(token_id) for token_id in (2, 1, 0, 3, 4, 2)] == [
        ("b", False),
        *[("", False)] * 4,
        ("", True),
    ]


def test_a_faulty_pool_is_named() -> None:
    engine = engine_of()
    request = engine.add_request([1], GREEDY)

    def observe(*_: object) -> None:
        raise PoolError("counts differ")

    engine.step_times.observe = observe  # type: ignore[method-assign]
    with pytest.raises(PoolError, match="counts differ"):
        engine.step()
    assert request.error == "PoolError: counts differ"


class Silent(HashModel):
    """Leaves out what a plan asks for."""

    def run(self, plan: StepPlan) -> StepResult:
        return replace(super().run(plan), logprobs={})


def test_a_backend_that_leaves_something_out_ends_its_step_and_no_more() -> None:
    engine = Engine(Silent(vocab_size=5), EngineConfig(num_blocks=9))
    beams = engine.add_request([1], SamplingParams(temperature=0, beam_width=2, max_tokens=3))
    with pytest.raises(KeyError):
        list(engine.run())
    other = engine.add_request([1], GREEDY)
    list(engine.run())
    assert (beams.finish_reason, other.finish_reason) == ("error", "length")
