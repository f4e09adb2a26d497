"""``LLM`` as its users call it: by turns, broken off half way, and with what is no parameter at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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


class Smaller:
    """A tokenizer that lacks the ids from ``vocab_size`` on, as where a model's vocabulary is padded."""

    def __init__(self, whole: Any, vocab_size: int) -> None:
        self._whole, self.vocab_size = whole, vocab_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def token_bytes(self, token_id: int) -> bytes:
        if token_id >= self.vocab_size:
            raise ValueError(f"token id {token_id} is outside the vocabulary")
        return bytes(self._whole.token_bytes(token_id))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        if any(token_id >= self.vocab_size for token_id in ids):
            raise ValueError("an id is outside the vocabulary")
        return str(self._whole.decode(ids, skip_special=skip_special))


@pytest.mark.parametrize("speculate", [None, "ngram", "draft"])
def test_ids_that_the_model_has_and_the_tokenizer_lacks_are_ids_like_all_others(speculate: Any) -> None:
    llm = LLM("tiny", backend="numpy", speculate=speculate)
    llm.tokenizer = Smaller(llm.tokenizer, 4000)
    llm.restart(speculate)
    params = SamplingParams(temperature=0, max_tokens=6, logit_bias={4001: 100.0}, logprobs=3, prompt_logprobs=1)
    one, other = llm.generate([[4002, 5, 6], "The people of the"], params)
    assert one.token_ids == other.token_ids == [4001] * 6
    assert one.text == other.text == ""
    assert one.prompt == llm.tokenizer.decode([5, 6])
    assert one.logprobs is not None
    assert one.logprobs[0].token == ""
    shaped = llm.generate("The people", SamplingParams(temperature=0, max_tokens=20), regex="[a-z ]{3,5}")[0]
    assert shaped.matches_grammar
    assert max(shaped.token_ids) < 4000
    assert text_of(list(llm.stream([4003], params))) == ""


def test_control_tokens_are_not_in_the_text(llm: LLM) -> None:
    end = min(llm.tokenizer.eos_ids)
    params = SamplingParams(temperature=0, max_tokens=3, logit_bias={end: 100.0}, ignore_eos=True, stop=("end",))
    (one,) = llm.generate(["The people"], params)
    assert (one.token_ids, one.text, one.finish_reason) == ([end] * 3, "", "length")


def test_what_raises_before_a_batch_runs_leaves_nobody_queued(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise RuntimeError("no text")

    with monkeypatch.context() as patch:
        patch.setattr(llm.tokenizer, "decode", fail)
        with pytest.raises(RuntimeError, match="no text"):
            llm.generate([[1, 2, 3], [2]], GREEDY)
    assert not llm.engine.has_work()
    with monkeypatch.context() as patch:
        add, calls = llm.engine.add_request, []

        def second_fails(*arguments: Any, **named: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise MemoryError("full")
            return add(*arguments, **named)

        patch.setattr(llm.engine, "add_request", second_fails)
        with pytest.raises(MemoryError):
            llm.generate(PROMPTS, GREEDY)
    list(llm.engine.run())
    assert llm.last_request().finish_reason == "abort"
