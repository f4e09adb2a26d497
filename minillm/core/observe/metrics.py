"""What a run cost its users and its machine: latencies of each request, throughput and memory of the run.

TTFT: arrival to first token. ITL: the gaps between steps that yielded tokens; with speculation a step may
yield several, which come at once. TPOT: (end to end - TTFT) / (tokens - 1), the mean time of a token
whatever came together. All times are seconds of the engine's clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from minillm.core.request import DraftCounts, FinishReason, Request


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Latencies of one request; None where it did not get so far."""

    request_id: str
    tenant: str
    arrival_s: float
    prompt_tokens: int
    cached_tokens: int  # of the prompt, found in the prefix cache
    output_tokens: int
    output_steps: int  # that yielded them
    drafted_tokens: int
    accepted_tokens: int  # of the drafted ones
    preemptions: int
    swaps: int  # preemptions that kept the K/V on the host
    queue_s: float | None  # arrival to first admission
    ttft_s: float | None
    itl_s: tuple[float, ...]  # output_steps - 1 gaps
    tpot_s: float | None  # from two tokens on
    e2e_s: float | None  # arrival to end
    slo_met: bool | None  # both objectives it brought; None without any, or while it is not known
    finish_reason: FinishReason | None


def request_metrics(request: Request) -> RequestMetrics:
    times, drafts = request.token_times_s, request.draft_counts
    chunk_times = [times[end - 1] for end in accumulate(request.chunk_sizes)]
    # A request that was aborted ends after its last token: that wait belongs to no token.
    last_s = times[-1] if times else request.finished_s
    ended = request.finished_s is not None
    ttft_s = times[0] - request.arrival_s if times else None
    tpot_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None
    return RequestMetrics(
        request_id=request.request_id,
        tenant=request.tenant,
        arrival_s=request.arrival_s,
        prompt_tokens=request.num_prompt,
        cached_tokens=request.num_cached,
        output_tokens=request.num_output,
        output_steps=len(request.chunk_sizes),
        drafted_tokens=drafts.num_drafted if drafts is not None else 0,
        accepted_tokens=drafts.num_accepted if drafts is not None else 0,
        preemptions=request.num_preemptions,
        swaps=request.num_swaps,
        queue_s=None if request.admitted_s is None else request.admitted_s - request.arrival_s,
        ttft_s=ttft_s,
        itl_s=tuple(b - a for a, b in pairwise(chunk_times)),
        tpot_s=tpot_s,
        e2e_s=last_s - request.arrival_s if ended and last_s is not None else None,
        slo_met=_slo_met(request, ttft_s, tpot_s) if ended else None,
        finish_reason=request.finish_reason,
    )


def _slo_met(request: Request, ttft_s: float | None, tpot_s: float | None) -> bool | None:
    """Whether an ended request kept the objectives it brought. An answer of one token has no TPOT to miss."""
    if request.ttft_slo_s is None and request.tpot_slo_s is None:
        return None
    if ttft_s is None or request.finish_reason not in ("stop", "length"):
        return False
    ttft_met = request.ttft_slo_s is None or ttft_s <= request.ttft_slo_s
    return ttft_met and (request.tpot_slo_s is None or tpot_s is None or tpot_s <= request.tpot_slo_s)


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step that ran: when it ended, how long the backend took, what it ran and what it left used."""

    time_s: float
    elapsed_s: float
    num_requests: int
    num_tokens: int
    used_blocks: int


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """A whole run."""

    requests: tuple[RequestMetrics, ...]
    steps: tuple[StepSample, ...]
    preemptions: int
    output_tokens: int
    duration_s: float  # first arrival to the end of the last step
    tokens_per_s: float  # output tokens over that duration
    goodput_per_s: float  # requests that kept their objectives, over that duration
    prefix_hit_rate: float  # prompt tokens found in the cache, of those of all admitted requests
    peak_used_blocks: int
    tokens_per_step: float  # output tokens of a request in a step that yields any: 1 without speculation
    acceptance_rate: float | None  # accepted tokens of the drafted ones; None where nothing was drafted
    # By depth, from 0: of the drafts that had a token so deep, the share of which one so deep was accepted.
    acceptance_at: tuple[float, ...]


def run_metrics(requests: Iterable[Request], steps: Iterable[StepSample], preemptions: int) -> RunMetrics:
    requests, steps = list(requests), tuple(steps)
    output_tokens = sum(r.num_output for r in requests)
    duration_s = steps[-1].time_s - min(r.arrival_s for r in requests) if steps and requests else 0.0
    measured = tuple(request_metrics(r) for r in requests)
    admitted = [r for r in requests if r.admitted_s is not None]
    prompt_tokens = sum(r.num_prompt for r in admitted)
    output_steps = sum(len(r.chunk_sizes) for r in requests)
    drafts = draft_counts(requests)
    return RunMetrics(
        requests=measured,
        steps=steps,
        preemptions=preemptions,
        output_tokens=output_tokens,
        duration_s=duration_s,
        tokens_per_s=output_tokens / duration_s if duration_s > 0 else 0.0,
        goodput_per_s=sum(r.slo_met is True for r in measured) / duration_s if duration_s > 0 else 0.0,
        prefix_hit_rate=sum(r.num_cached for r in admitted) / prompt_tokens if prompt_tokens else 0.0,
        peak_used_blocks=max((s.used_blocks for s in steps), default=0),
        tokens_per_step=output_tokens / output_steps if output_steps else 0.0,
        acceptance_rate=drafts.num_accepted / drafts.num_drafted if drafts.num_drafted else None,
        acceptance_at=tuple(a / n for a, n in zip(drafts.accepted_at, drafts.drafts_at, strict=True)),
    )


def draft_counts(requests: Iterable[Request]) -> DraftCounts:
    """Of all requests together."""
    total = DraftCounts()
    for counts in (r.draft_counts for r in requests if r.draft_counts is not None):
        total.merge(counts)
    return total
