"""Six requests after each other that share beginnings, served by the engine with its prefix cache and without.

Nobody waits for anybody: a request is sent when the one before it has ended, so its TTFT is its prefill.
Of each TTFT the median of a few runs counts, and their spread is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from minillm.core.backend import Backend
from minillm.core.observe.metrics import request_metrics
from visualizers.runs import bundled
from visualizers.runs.bench import Bench
from visualizers.runs.measure import one_thread, thread_clock

SYSTEM_TOKENS = (60, 250)
BLOCK_SIZES = (1, 16, 64, 256)
ANSWER_TOKENS = 24  # of the first request, which goes on with a second turn
REPEATS = 7
_POOL_TOKENS = 4096  # room for all: nothing is evicted
_SYSTEM = (
    "You write the messages of the President to the Congress. Be plain and brief, name the year and the sum of each "
    "account, and keep to the facts that the Departments report. Speak of the public debt, the revenue, the Army and "
    "the Navy, the Indian tribes, the public lands and the trade with foreign nations, in this order. Praise nobody. "
    "Where a law is needed, say what it should do and why, and leave the words of the law to the Congress. "
    "Close with the wish that peace may last. "
)
_QUESTIONS = {
    "A": "Tell the Congress what the harvest and the taxes of this year have brought to the people.",
    "B": "What does the Navy need in the coming year? Give the number of ships and men.",
    "C": " And how does this compare with the year before? Answer in one sentence.",
    "E": "On Monday, the first of December, at ten o'clock: ",
    "F": "Report on the treaties that were signed with the tribes in the West.",
}


@dataclass(frozen=True)
class Sent:
    """A request: what it shares with earlier ones is in its tokens. A tenant is whose cache it may hit."""

    name: str
    tenant: str
    tokens: tuple[int, ...]
    output_tokens: int = 1


@dataclass(frozen=True)
class Served:
    """What became of it. ``hit_tokens`` were found in the cache; ``written`` are its output ids."""

    sent: Sent
    hit_tokens: int
    ttft_s: float
    written: tuple[int, ...]


@cache
def repeats(system_tokens: int, block_size: int, salted: bool, caching: bool) -> tuple[tuple[Served, ...], ...]:
    """The six requests, ``REPEATS`` times: the runs differ in times alone."""
    with one_thread():
        return tuple(
            tuple(serve(bundled.backend(), bundled.encode, system_tokens, block_size, salted, caching, thread_clock()))
            for _ in range(REPEATS)
        )


def run(system_tokens: int, block_size: int, salted: bool, caching: bool) -> tuple[Served, ...]:
    """The six requests, each with the median of its TTFTs."""
    runs = repeats(system_tokens, block_size, salted, caching)
    return tuple(
        Served(same[0].sent, same[0].hit_tokens, median(s.ttft_s for s in same), same[0].written)
        for same in zip(*runs, strict=True)
    )


def serve(
    backend: Backend,
    encode: Callable[[str], list[int]],
    system_tokens: int,
    block_size: int,
    salted: bool,
    caching: bool,
    clock: Callable[[], float],
) -> list[Served]:
    """One run on an engine of its own. ``salted`` keeps tenants from each other's blocks."""
    bench = Bench(backend, _POOL_TOKENS, block_size=block_size, clock=clock, prefix_caching=caching)
    found: list[Served] = []
    for name in "ABCDEF":
        sent = _request(name, encode, system_tokens, found)
        request = bench.ask(sent.tokens, sent.output_tokens, salt=sent.tenant if salted else None)
        bench.run()
        ttft_s = request_metrics(request).ttft_s
        if ttft_s is None:
            raise RuntimeError(f"request {name} ended without a token: {request.error}")
        found.append(Served(sent, request.num_cached, ttft_s, tuple(request.output_ids)))
    return found


def _request(name: str, encode: Callable[[str], list[int]], system_tokens: int, before: Sequence[Served]) -> Sent:
    """The request of this letter; C goes on from what A was answered."""
    text = encode(_SYSTEM)
    system = [text[i % len(text)] for i in range(system_tokens)]
    question = encode(_QUESTIONS.get(name, ""))
    match name:
        case "A":
            return Sent(name, "one", (*system, *question), ANSWER_TOKENS)
        case "C":
            first = before[0]
            return Sent(name, "one", (*first.sent.tokens, *first.written, *question))
        case "D":
            return Sent(name, "one", before[0].sent.tokens)
        case "E":
            return Sent(name, "one", (*question, *before[0].sent.tokens))
    return Sent(name, "other" if name == "F" else "one", (*system, *question))


def shared_tokens(sent: Sent, before: Sequence[Served], salted: bool) -> int:
    """Tokens at its beginning that an earlier request began with too, its answer included.

    The last token of an answer is left out: it was drawn and never computed.
    """
    longest = 0
    for other in before:
        if salted and other.sent.tenant != sent.tenant:
            continue
        known = (*other.sent.tokens, *other.written[:-1])
        same = next((i for i, (a, b) in enumerate(zip(sent.tokens, known, strict=False)) if a != b), None)
        longest = max(longest, min(len(sent.tokens), len(known)) if same is None else same)
    return longest
