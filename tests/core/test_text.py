"""Detokenizer and stops: chunks joined are the one-shot decode cut at the stop (I31, I32, I30)."""

from __future__ import annotations

import pytest
from core_harness import GREEDY, make_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from text_callers import Bytes, random_texts

from minillm.core.config import EngineConfig
from minillm.core.detokenizer import Detokenizer
from minillm.core.engine import RequestError
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams
from minillm.core.stops import commit_tokens


def one_shot(data: bytes, stop: tuple[str, ...]) -> str:
    """The decode of all bytes, cut where the stop string that ends first begins."""
    text = data.decode("utf-8", errors="replace")
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    return text[: min(ends)[1]] if ends else text


PIECES = st.lists(
    st.sampled_from(["a", "ab", "b", "aba", "é", "日本", "🙂", ""]).map(str.encode)
    | st.binary(min_size=0, max_size=3)
    | st.sampled_from([b"\xf0\x9f", b"\x99\x82", b"\xe6", b"\x97\xa5", b"\xff"]),
    max_size=12,
)
STOPS = st.lists(st.sampled_from(["a", "ab", "ba", "aba", "abab", "bé", "本", "🙂a"]), max_size=3).map(tuple)


@given(PIECES, STOPS)
@settings(max_examples=500, deadline=None)
def test_i31_chunks_joined_are_the_one_shot_decode_cut_at_the_stop(pieces: list[bytes], stop: tuple[str, ...]) -> None:
    detokenizer = Detokenizer(Bytes(pieces), stop)
    chunks, stopped = [], False
    for i in range(len(pieces)):
        chunk, stopped = detokenizer.push(i)
        chunks.append(chunk)
        if stopped:
            break
    chunks.append(detokenizer.flush())
    assert "".join(chunks) == one_shot(b"".join(pieces), stop)
    for chunk in chunks:
        chunk.encode("utf-8")  # I32: no half of anything
    if stopped:
        assert any(s in b"".join(pieces).decode("utf-8", errors="replace") for s in stop)


def test_half_characters_and_half_stops_are_held_back() -> None:
    pieces = [b"x", "é".encode()[:1], "é".encode()[1:], b"<", b"/", b"s", b"</end>tail"]
    detokenizer = Detokenizer(Bytes(pieces), ("</end>",))
    assert [detokenizer.push(i) for i in range(7)] == [
        ("x", False),
        ("", False),
        ("é", False),
        ("", False),
        ("", False),
        ("</s", False),
        ("", True),
    ]
    assert detokenizer.flush() == ""


def test_the_stop_that_ends_first_counts_and_the_longer_one_on_a_tie() -> None:
    assert Detokenizer(Bytes([b"xabcd"]), ("abcd", "bc")).push(0) == ("xa", True)
    assert Detokenizer(Bytes([b"xabc"]), ("bc", "abc")).push(0) == ("x", True)


def make_request(**fields: object) -> Request:
    params = SamplingParams(temperature=0, **fields)  # type: ignore[arg-type]
    stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else {3})
    return Request(
        *("q", [0], params), arrival_s=0.0, index=0, seed=0, max_total_tokens=1 + params.max_tokens, stop_ids=stop_ids
    )


LETTERS = Bytes([b"a", b"b", b"c", b"<eos>"])


@pytest.mark.parametrize(
    ("fields", "tokens", "kept", "text", "reason"),
    [
        ({}, [0, 1, 3, 0], [0, 1, 3], "ab", "stop"),  # eos is an id, not text
        ({"ignore_eos": True}, [0, 3, 1], [0, 3, 1], "a<eos>b", None),
        ({"ignore_eos": True, "stop_token_ids": (3,)}, [0, 3, 1], [0, 3], "a", "stop"),
        ({"stop_token_ids": (1,)}, [0, 1, 2], [0, 1], "a", "stop"),
        ({"stop": ("bc",)}, [0, 1, 2, 0], [0, 1, 2], "a", "stop"),
        ({"max_tokens": 2}, [0, 1, 2], [0, 1], "ab", "length"),
        ({"max_tokens": 2, "stop": ("bc",)}, [0, 1, 2], [0, 1], "ab", "length"),  # what was held back comes out
        ({"max_tokens": 2, "stop": ("ab",)}, [0, 1, 2], [0, 1], "", "stop"),  # a stop beats the length
        ({"min_tokens": 3, "stop": ("a",)}, [0, 1, 0, 2], [0, 1, 0], "ab", "stop"),
        ({"min_tokens": 2, "stop": ("ab",)}, [0, 1, 2], [0, 1], "", "stop"),  # its end counts, not its beginning
        ({"min_tokens": 3, "stop": ("ab",)}, [0, 1, 2], [0, 1, 2], "abc", None),
    ],
)
def test_one_commit_function_for_every_stop(fields, tokens, kept, text, reason) -> None:
    request = make_request(**fields)
    detokenizer = Detokenizer(LETTERS, request.params.stop)
    committed = commit_tokens(request, tokens, detokenizer=detokenizer, time_s=0.0)
    assert request.output_ids == kept
    assert committed.finish_reason == reason
    assert request.text + ("" if reason else detokenizer.flush()) == text


def test_i30_tokens_that_come_several_at_once_end_as_if_they_came_one_by_one() -> None:
    tokens = [0, 1, 0, 1, 2, 3, 0, 1]
    for fields in ({"max_tokens": 4}, {"stop": ("ba",)}, {}, {"min_tokens": 7}):
        at_once, single = make_request(**fields), make_request(**fields)
        texts = (Detokenizer(LETTERS, at_once.params.stop), Detokenizer(LETTERS, single.params.stop))
        reason = commit_tokens(at_once, tokens, detokenizer=texts[0], time_s=0.0).finish_reason
        for token in tokens:
            step = commit_tokens(single, [token], detokenizer=texts[1], time_s=0.0)
            if step.finish_reason:
                break
        assert (at_once.output_ids, at_once.text, reason) == (single.output_ids, single.text, step.finish_reason)


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_whatever_comes_in_however_many_steps_ends_by_the_definition(seed: int) -> None:
    random_texts(range(seed, seed + 1))


@given(st.integers(0, 3), st.integers(1, 9), STOPS)
@settings(max_examples=60, deadline=None)
def test_texts_of_the_engines_events_joined_are_the_text(first: int, max_tokens: int, stop: tuple[str, ...]) -> None:
    pieces = [b"a", "é".encode()[:1], "é".encode()[1:], b"b"]
    engine, _ = make_engine(EngineConfig(num_blocks=9), vocab_size=4, tokenizer=Bytes(pieces))
    params = SamplingParams(temperature=3.0, max_tokens=max_tokens, stop=stop, seed=first)
    request = engine.add_request([first], params)
    events = list(engine.run())
    joined = "".join(e.text for e in events)
    assert joined == request.text == one_shot(b"".join(pieces[i] for i in request.output_ids), stop)
    assert events[-1].finish_reason == (
        "length" if request.num_output == max_tokens and not ended(joined, request, pieces) else "stop"
    )


def ended(text: str, request: Request, pieces: list[bytes]) -> bool:
    return text != b"".join(pieces[i] for i in request.output_ids).decode("utf-8", errors="replace")


def test_an_abort_releases_the_text_held_back() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=9), tokenizer=Bytes([b"a", b"a"]))
    request = engine.add_request([0], SamplingParams(temperature=0, stop=("aaaaaaaa",)))
    engine.step()
    engine.step()
    engine.abort(request.request_id)
    [event] = engine.step()
    assert (event.kind, event.finish_reason, event.text, request.text) == ("finish", "abort", "aa", "aa")


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=9))
    with pytest.raises(RequestError, match="give the engine a tokenizer"):
        engine.add_request([0], SamplingParams(stop=("x",)))
    engine.add_request([0], GREEDY)
