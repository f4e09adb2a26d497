"""The engine's events in words: what a step planned, and what it left when it had run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minillm.core.observe.trace import TraceEvent


def told_plan(events: Sequence[TraceEvent]) -> str:
    """Arrivals, preemptions, admissions with their hits, and blocks taken."""
    parts = []
    arrived = [e.request_id for e in events if e.kind == "arrive"]
    if arrived:
        parts.append(f"{listed(arrived)} {'arrives' if len(arrived) == 1 else 'arrive'}")
    known = {e.request_id: e.tokens for e in events if e.kind == "admit"}
    hits = {e.request_id: e for e in events if e.kind == "hit"}
    evicted: tuple[int, ...] = ()
    for position, event in enumerate(events):
        name = event.request_id
        match event.kind:
            case "preempt":
                given = events[position + 1]
                parts.append(
                    f"no block is free, so {name}, the last to come, is preempted and gives back "
                    f"{numbered(given.blocks)}"
                )
            case "admit":
                parts.append(f"{name} starts{shared(hits.get(name), known[name])}")
            case "evict":
                evicted = event.blocks
            case "allocate":
                lost = f" and what was cached in {numbered(evicted)} is lost" if evicted else ""
                parts.append(f"{name} takes {numbered(event.blocks)}{lost}")
                evicted = ()
    return sentence(parts)


def shared(hit: TraceEvent | None, known: int) -> str:
    """What a starting request found in the cache."""
    if hit is None:
        return f" with {known} tokens to compute"
    return f" on cached {numbered(hit.blocks)}: {hit.tokens} of its {known} tokens are computed already"


def told_landing(runs: Sequence[TraceEvent], events: Sequence[TraceEvent]) -> str:
    """Tokens computed and sampled, blocks that others may hit now, requests that ended."""
    one = [e.request_id for e in runs if e.tokens == 1]
    work = [f"{e.tokens} tokens of {e.request_id}" for e in runs if e.tokens > 1]
    work += [f"1 token {'each ' if len(one) > 1 else ''}of {listed(one)}"] if one else []
    parts = [f"the step computes {listed(work)}"]
    parts += [f"{e.request_id} fills {numbered(e.blocks)}" for e in events if e.kind == "index"]
    frees = {e.request_id: e.blocks for e in events if e.kind == "free"}
    for event in events:
        if event.kind == "finish":
            parts.append(f"{event.request_id} ends and gives back {numbered(frees[event.request_id])}")
    return sentence(parts)


def sentence(parts: Sequence[str]) -> str:
    """The parts as one sentence."""
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def listed(words: Sequence[str]) -> str:
    """``A, B and C``."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def numbered(blocks: Iterable[int]) -> str:
    """``block 3``, ``blocks 1 to 4 and 9``: neighbours as ranges."""
    ordered = sorted(blocks)
    ranges: list[list[int]] = []
    for block in ordered:
        if ranges and block == ranges[-1][-1] + 1:
            ranges[-1].append(block)
        else:
            ranges.append([block])
    words = [w for r in ranges for w in ([f"{r[0]} to {r[-1]}"] if len(r) > 2 else map(str, r))]
    return f"{'block' if len(ordered) == 1 else 'blocks'} {listed(words)}"
