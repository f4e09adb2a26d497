"""``LLM`` as its users call it: by turns, broken off half way, and with what is no parameter at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import pytest

from minillm.chat import Conversation
from minillm.core.config import EngineConfig
from minillm.core.engine import Event
from minillm.core.sampling import SamplingParams
from minillm.llm import LLM
from minillm.speculation import Speculate

PROMPTS = ["The people of the", "A dog", "Once upon a time"]
GREEDY = SamplingParams(temperature=0, max_tokens=9)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", backend="numpy", dtype="float32")


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events)


@pytest.mark.parametrize("overlap", [0, 1])
def test_streams_read_by_turns_lose_nothing_to_each_other(overlap: int) -> None:
    llm = LLM("tiny", backend="numpy", config=EngineConfig(overlap=overlap))
    alone = [one.text for one in llm.generate(PROMPTS, GREEDY)]
    heard: list[list[Event]] = [[] for _ in PROMPTS]
    for turn in zip_longest(*(llm.stream(prompt, GREEDY) for prompt in PROMPTS)):
        for events, event in zip(heard, turn, strict=True):
            events.extend([event] if event else [])
    assert [text_of(events) for events in heard] == alone
    assert [[event.kind for event in events].count("finish") for events in heard] == [1] * len(PROMPTS)


def test_what_runs_between_two_events_of_a_stream_takes_none_of_them(llm: LLM) -> None:
    alone = llm.generate(PROMPTS[0], GREEDY)[0].text
    stream, broken_off = llm.stream(PROMPTS[0], GREEDY), llm.stream(PROMPTS[1], GREEDY)
    events = [next(stream)]
    next(broken_off)
    broken_off.close()
    events.append(next(stream))
    llm.generate(PROMPTS[2], GREEDY)
    assert text_of([*events, *stream]) == alone


def test_a_stream_of_an_engine_that_is_gone_ends_nobody_elses_request(llm: LLM) -> None:
    llm.restart()
    old = llm.stream(PROMPTS[0], GREEDY)
    next(old)
    llm.restart()
    new = llm.stream(PROMPTS[0], GREEDY)
    events = [next(new)]
    old.close()
    events.extend(new)
    assert text_of(events) == llm.generate(PROMPTS[0], GREEDY)[0].text


def test_an_interrupted_batch_does_not_run_on_behind_the_next_one(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = llm.backend.run, []

    def interrupted(plan: Any) -> Any:
        calls.append(plan)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(plan)

    with monkeypatch.context() as patch:
        patch.setattr(llm.backend, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, GREEDY)
    [one] = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=1))
    assert one.finish_reason == "length"
    assert all(request.is_finished for request in llm.engine.requests.values())
    assert max(request.num_output for request in list(llm.engine.requests.values())[-4:-1]) <= 3


_AT_THE_ENDS: list[dict[str, Any]] = [
    *({"repetition_penalty": penalty, "temperature": t} for penalty in (0.01, 100) for t in (0, 1)),
    *({"temperature": t} for t in (5e-324, 1e-5, 1e308)),
    *({name: 5e-324} for name in ("top_p", "typical_p", "min_p")),
    *({"presence_penalty": sign * 2, "frequency_penalty": sign * 2, "temperature": 0} for sign in (1, -1)),
    {"logit_bias": {5: 100.0, 6: -100.0}, "min_p": 1.0, "top_k": 1},
]


@pytest.mark.parametrize("speculate", [None, "draft", "ngram"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_parameters_at_their_ends_fail_neither_their_request_nor_its_mates(backend: str, speculate: Any) -> None:
    llm = LLM("tiny", backend=backend, dtype="float32", speculate=speculate)
    [alone] = llm.generate(PROMPTS[0], GREEDY)
    prompt = llm.encode(PROMPTS[0])
    mate = llm.engine.add_request(prompt, GREEDY)
    for fields in _AT_THE_ENDS:
        llm.engine.add_request(prompt, SamplingParams(max_tokens=4, **fields))
    list(llm.engine.run())
    assert {request.finish_reason for request in llm.engine.requests.values()} <= {"length", "stop"}
    assert mate.output_ids == alone.token_ids


class _Plain:
    """A template that adds nothing of its own."""

    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        return " ".join(message["content"] for message in messages)

    def encode(self, messages: Any, tokenizer: Any, add_generation_prompt: bool, skip_characters: int) -> list[int]:
        ids: list[int] = tokenizer.encode(self.render(messages, add_generation_prompt)[skip_characters:])
        return ids


def test_two_conversations_by_turns_keep_their_own_replies(llm: LLM) -> None:
    talks = [Conversation(llm, _Plain()) for _ in range(2)]  # type: ignore[arg-type]
    heard: list[list[Event]] = [[], []]
    for turn in zip_longest(*(talk.say(prompt, GREEDY) for talk, prompt in zip(talks, PROMPTS, strict=False))):
        for events, event in zip(heard, turn, strict=True):
            events.extend([event] if event else [])
    assert [talk.messages[-1]["content"] for talk in talks] == [text_of(events) for events in heard]
    assert heard[0] != heard[1]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda llm: llm.generate(None), "prompts are None"),
        (lambda llm: llm.generate(5), "prompts are 5"),
        (lambda llm: llm.generate([b"text"]), "not b'text'"),
        (lambda llm: llm.generate("a", {"temperature": 0}), "params is {'temperature': 0}"),
        (lambda llm: next(llm.stream("a", 3)), "params is 3"),
        (lambda llm: LLM("tiny", config={"block_size": 1}), "config is {'block_size': 1}"),  # type: ignore[arg-type]
        (lambda llm: LLM("tiny", speculate=3), "speculate is 3"),  # type: ignore[arg-type]
        (lambda llm: Speculate("ngram", adaptive="yes"), "adaptive is 'yes'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_parameter_is_refused_by_name(llm: LLM, call: Callable[[Any], object], named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        call(llm)
