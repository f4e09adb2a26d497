"""One list of requests from a pool too small for all of them: who is preempted, and what coming back costs.

Scheduler, blocks and swapping are the engine's own; no model runs, and time is modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from minillm import catalog
from minillm.backends.simulated import Weightless
from minillm.core.observe.metrics import request_metrics
from minillm.core.observe.replay import Replay
from minillm.core.observe.trace import TraceEvent
from minillm.core.sampling import uniform
from minillm.costs import pcie_bytes_per_s
from visualizers.runs.bench import BLOCK_SIZE, Bench
from visualizers.runs.modelled import step_time

Mode = Literal["recompute", "cached", "swap"]
MODES: tuple[Mode, ...] = ("recompute", "cached", "swap")
MODEL, ACCELERATOR, PCIE = "llama-3.1-8b", "h100-sxm", 5
POOLS = (4096, 6144, 8192, 12288, 16384)  # tokens
LIMITS = (3, 6, 12)  # requests at once
NUM_REQUESTS = 12
PROMPTS = (256, 1536)  # shortest and longest, tokens
OUTPUTS = (128, 384)
MOMENTS = 90  # of a run, at which the pool is looked at
_ARRIVE_S = 0.02  # between two of them
_SEED = 7

# What a request does, from one moment to the next.
WAITS, PREFILL, DECODE, OUT, AGAIN = "waits", "prefill", "decode", "preempted", "computed again"


@dataclass(frozen=True)
class Job:
    """A request of the workload: when it arrives, and its lengths in tokens."""

    arrival_s: float
    prompt: int
    output: int


@dataclass(frozen=True)
class Span:
    """One request does one thing from ``start_s`` to ``end_s``."""

    request: int
    start_s: float
    end_s: float
    kind: str


@dataclass(frozen=True)
class Outcome:
    """What the run was like. Latencies are over all requests."""

    spans: tuple[Span, ...]
    held: tuple[tuple[float, tuple[int, ...]], ...]  # moments, and the tokens that each request's blocks have then
    preemptions: int
    computed_tokens: int
    again_tokens: int  # of the computed ones, that had been computed before
    swapped_bytes: int  # out and in
    e2e_s: float  # mean, arrival to end
    ttft_s: float  # mean
    longest_gap_s: float  # between two tokens of a request
    end_s: float


@cache
def workload() -> tuple[Job, ...]:
    """Requests at even intervals, of mixed lengths."""
    jobs = []
    for i in range(NUM_REQUESTS):
        prompt, output = (
            low + int(uniform(_SEED, 2 * i + k) * (high - low + 1)) for k, (low, high) in enumerate((PROMPTS, OUTPUTS))
        )
        jobs.append(Job(round(i * _ARRIVE_S, 6), prompt, output))
    return tuple(jobs)


@cache
def serve(pool_tokens: int, limit: int, mode: Mode) -> Outcome:
    """The workload from a pool of so many tokens, at most ``limit`` requests at once.

    ``"recompute"`` finds nothing of what a preempted request had computed, ``"cached"`` what of it was not
    overwritten; ``"swap"`` keeps it on the host.
    """
    model, machine = catalog.model(MODEL), catalog.accelerator(ACCELERATOR)
    block_bytes = BLOCK_SIZE * model.kv_bytes_per_token("bf16")
    link = pcie_bytes_per_s(PCIE)
    swapped = 0

    def copy_time(pairs: Sequence[tuple[int, int]]) -> float:
        nonlocal swapped
        swapped += len(pairs) * block_bytes
        return float(len(pairs) * block_bytes / link)

    jobs = workload()
    longest = max(job.prompt + job.output for job in jobs)
    bench = Bench.modelled(
        Weightless(max_model_len=longest, vocab_size=1 << 20),
        step_time(model, machine),
        pool_tokens,
        copy_time=copy_time,
        num_host_blocks=-(-longest // BLOCK_SIZE) * NUM_REQUESTS if mode == "swap" else 0,
        preemption="swap" if mode == "swap" else "recompute",
        max_running_requests=limit,
        prefix_caching=mode == "cached",
        record_trace=True,
    )
    first_id = 1  # no prompt shares a token with another; 0 is what the model answers
    for i, job in enumerate(jobs):
        bench.ask(range(first_id, first_id + job.prompt), job.output, name=str(i), arrival_s=job.arrival_s)
        first_id += job.prompt
    bench.run()
    told = _tell(bench.engine.trace.events, jobs)
    measured = [request_metrics(request) for request in bench.requests]
    ends = [m.arrival_s + (m.e2e_s or 0.0) for m in measured]
    return Outcome(
        spans=tuple(told.spans),
        held=_held(bench.engine.trace.events, max(ends)),
        preemptions=bench.engine.scheduler.num_preemptions,
        computed_tokens=told.computed,
        again_tokens=told.again,
        swapped_bytes=swapped,
        e2e_s=sum(m.e2e_s or 0.0 for m in measured) / len(measured),
        ttft_s=sum(m.ttft_s or 0.0 for m in measured) / len(measured),
        longest_gap_s=max(max(m.itl_s) for m in measured),
        end_s=max(ends),
    )


def _held(events: Sequence[TraceEvent], end_s: float) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """The pool at ``MOMENTS`` even moments of the run, from the events alone."""
    replay, found, todo = Replay(1 + max(b for e in events for b in e.blocks)), [], list(reversed(events))
    for moment in range(MOMENTS + 1):
        now_s = end_s * (moment / MOMENTS)
        while todo and todo[-1].time_s <= now_s:
            replay.apply([todo.pop()])
        tables = [replay.tables.get(str(i), ()) for i in range(NUM_REQUESTS)]
        found.append((now_s, tuple(BLOCK_SIZE * len(table) for table in tables)))
    return tuple(found)


@dataclass
class _Told:
    """What the trace says, while it is read."""

    spans: list[Span] = field(default_factory=list)
    computed: int = 0
    again: int = 0


def _tell(events: Sequence[TraceEvent], jobs: Sequence[Job]) -> _Told:
    """Who did what when, and how many tokens were computed more than once."""
    told = _Told()
    doing = {i: (job.arrival_s, WAITS) for i, job in enumerate(jobs)}
    reached = [0] * len(jobs)  # tokens of each that were computed at least once

    def turn(request: int, time_s: float, kind: str) -> None:
        since_s, before = doing[request]
        if kind != before:
            if time_s > since_s:
                told.spans.append(Span(request, since_s, time_s, before))
            doing[request] = (time_s, kind)

    for event in events:
        if event.kind not in ("schedule", "preempt", "finish"):
            continue
        request = int(event.request_id)
        if event.kind == "preempt":
            turn(request, event.time_s, OUT)
        elif event.kind == "finish":
            turn(request, event.time_s, "")
        else:
            end = event.computed + event.tokens
            told.computed += event.tokens
            told.again += max(0, min(end, reached[request]) - event.computed)
            kind = PREFILL if event.computed < jobs[request].prompt else DECODE
            turn(request, event.time_s, AGAIN if event.computed < reached[request] else kind)
            reached[request] = max(reached[request], end)
    return told
