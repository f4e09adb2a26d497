"""Conversations under a few system prompts, served from a pool too small for all that they could find again.

The scheduler, the prefix index and the eviction are the engine's own; no model runs, and time is modelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from typing import Literal

from minillm import catalog
from minillm.backends.simulated import Weightless
from minillm.catalog import Model
from minillm.core.config import IndexName
from minillm.core.kv.eviction import EvictionName
from minillm.core.request import Request
from minillm.core.sampling import uniform
from visualizers.runs.bench import Bench
from visualizers.runs.modelled import step_time

Traffic = Literal["conversations", "documents", "new-prompts", "salts"]
MODEL, ACCELERATOR = "llama-3.1-8b", "h100-sxm"
POLICIES: tuple[EvictionName, ...] = ("lru", "lfu", "cost")
POOLS = (4096, 8192, 16384, 32768)  # tokens
SYSTEM_PROMPTS = (1000, 800, 600, 400)  # tokens of each, the most popular first
NUM_CONVERSATIONS = 32
TURNS = (2, 6)  # of a conversation, fewest and most
MESSAGE = (20, 120)  # tokens of a user's message
ANSWER_TOKENS = 8
DOCUMENT = (1000, 2000)  # tokens of a document that comes once
THINK_S = 20.0  # mean time between an answer and the next message
_ARRIVAL_S = 4.0  # mean time between two conversations
_DOCUMENTS = 0.3  # of all requests, where there are any
_TENANTS = 3
_RUNNING = 8
_SEED = 5


@dataclass(frozen=True)
class Conversation:
    """Its start, whose it is, and the tokens of its messages; the answers lie between them."""

    start_s: float
    tenant: str
    system: tuple[int, ...]
    messages: tuple[tuple[int, ...], ...]
    thinks_s: tuple[float, ...]  # before each message but the first


@dataclass(frozen=True)
class Workload:
    conversations: tuple[Conversation, ...]
    documents: tuple[tuple[float, tuple[int, ...]], ...]  # arrival and tokens


@dataclass(frozen=True)
class Outcome:
    """Of the conversations' requests: prompt tokens and those found, the mean TTFT."""

    requests: int
    prompt_tokens: int
    found_tokens: int
    ttft_s: float
    end_s: float  # of the run

    @property
    def hit_rate(self) -> float:
        return self.found_tokens / self.prompt_tokens


@cache
def workload(traffic: Traffic) -> Workload:
    """The conversations are the same in all traffics; only what is served beside them, or under them, differs."""
    draws = (uniform(_SEED, i) for i in count())
    ids = count(1)  # every text is a new one; 0 is what the model answers
    first, second = ([_text(ids, n) for n in SYSTEM_PROMPTS] for _ in range(2))
    found, now_s = [], 0.0
    for i in range(NUM_CONVERSATIONS):
        now_s += _exponential(draws, _ARRIVAL_S)
        agent, tenant = _popular(draws), int(next(draws) * _TENANTS)
        turns = _between(draws, TURNS)
        prompts = second if traffic == "new-prompts" and i >= NUM_CONVERSATIONS // 2 else first
        messages = tuple(_text(ids, _between(draws, MESSAGE)) for _ in range(turns))
        thinks = tuple(_exponential(draws, THINK_S) for _ in range(turns - 1))
        found.append(Conversation(now_s, f"t{tenant}", prompts[agent], messages, thinks))
    requests = sum(len(c.messages) for c in found)
    number = round(requests * _DOCUMENTS / (1 - _DOCUMENTS)) if traffic == "documents" else 0
    documents = [(next(draws) * now_s, _text(ids, _between(draws, DOCUMENT))) for _ in range(number)]
    return Workload(tuple(found), tuple(sorted(documents)))


@cache
def serve(
    traffic: Traffic, pool_tokens: int | None, policy: EvictionName | None = "lru", index: IndexName = "hash"
) -> Outcome:
    """The workload from a pool of so many tokens; None has room for everything. Without a policy nothing is cached."""
    _, run = prepared(traffic, pool_tokens, policy, index)
    return run(lambda: None)


def prepared(
    traffic: Traffic,
    pool_tokens: int | None,
    policy: EvictionName | None,
    index: IndexName = "hash",
    *,
    record_trace: bool = False,
) -> tuple[Bench, Callable[[Callable[[], None]], Outcome]]:
    """An engine that has been asked for the workload, and what runs it: ``look`` is called after every step."""
    model, machine = catalog.model(MODEL), catalog.accelerator(ACCELERATOR)
    work = workload(traffic)
    bench = Bench.modelled(
        Weightless(max_model_len=4096, vocab_size=1 << 20, crossover_tokens=_crossover_tokens(model)),
        step_time(model, machine),
        pool_tokens or 1 << 18,
        max_running_requests=_RUNNING,
        prefix_caching=policy is not None,
        prefix_index=index,
        eviction=policy or "lru",
        record_trace=record_trace,
    )
    talks = _converse(bench, work.conversations, salted=traffic == "salts")
    for arrival_s, document in work.documents:
        bench.ask(document, ANSWER_TOKENS, arrival_s=arrival_s)

    def run(look: Callable[[], None]) -> Outcome:
        while bench.engine.has_work():
            for event in bench.engine.step():
                if event.kind == "finish":
                    talks(event.request_id, event.time_s)
            look()
        return _outcome(bench)

    return bench, run


def _outcome(bench: Bench) -> Outcome:
    asked = [r for r in bench.requests if r.request_id.startswith("c")]
    return Outcome(
        requests=len(asked),
        prompt_tokens=sum(r.num_prompt for r in asked),
        found_tokens=sum(r.num_cached for r in asked),
        ttft_s=sum(r.token_times_s[0] - r.arrival_s for r in asked) / len(asked),
        end_s=max(r.token_times_s[-1] for r in bench.requests),
    )


def _converse(bench: Bench, talks: Sequence[Conversation], *, salted: bool) -> Callable[[str, float], None]:
    """Sends each conversation's first message; what is returned sends the next one when a request has ended."""
    said: dict[str, tuple[int, int]] = {}  # request: conversation and turn

    def send(number: int, turn: int, history: Sequence[int], arrival_s: float) -> None:
        talk = talks[number]
        salt = talk.tenant if salted else None
        request_id = f"c{number}.{turn}"
        said[request_id] = (number, turn)
        prompt = [*history, *talk.messages[turn]]
        bench.ask(prompt, ANSWER_TOKENS, name=request_id, arrival_s=arrival_s, salt=salt)

    def go_on(request_id: str, time_s: float) -> None:
        number, turn = said.get(request_id, (0, len(talks[0].messages)))
        if turn + 1 < len(talks[number].messages):
            history: Request = bench.engine.requests[request_id]
            send(number, turn + 1, history.token_ids, time_s + talks[number].thinks_s[turn])

    for number, talk in enumerate(talks):
        send(number, 0, talk.system, talk.start_s)
    return go_on


def _crossover_tokens(model: Model) -> float:
    """The context over which a token's attention costs what its matrices do."""
    here, further = (model.geometry.step_flops([1], [cached], 0) for cached in (0, 1))
    attention = further - here
    return float((here - attention) / attention)


def _text(ids: Iterator[int], tokens: int) -> tuple[int, ...]:
    return tuple(islice(ids, tokens))


def _between(draws: Iterator[float], ends: tuple[int, int]) -> int:
    low, high = ends
    return low + int(next(draws) * (high - low + 1))


def _exponential(draws: Iterator[float], mean: float) -> float:
    return -math.log1p(-next(draws)) * mean


def _popular(draws: Iterator[float]) -> int:
    """A system prompt: the first is twice as popular as the second, three times as the third (Zipf's law)."""
    weights = [1 / (i + 1) for i in range(len(SYSTEM_PROMPTS))]
    left = next(draws) * sum(weights)
    for i, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return i
    return len(weights) - 1
