"""What happens when the KV pool is full: requests over time, preemptions, and what they cost by the way back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt

from minillm import catalog
from minillm.costs import pcie_bytes_per_s
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.formats import format_value
from visualizers.levels.charts import Spec, colour_scale, constant, either, rows, spec
from visualizers.levels.links import linked, linker
from visualizers.palette import colour, ink
from visualizers.runs import preemption_run
from visualizers.runs.bench import BLOCK_SIZE
from visualizers.runs.preemption_run import (
    ACCELERATOR,
    AGAIN,
    DECODE,
    LIMITS,
    MODEL,
    MODES,
    NUM_REQUESTS,
    OUT,
    PCIE,
    POOLS,
    PREFILL,
    WAITS,
    Outcome,
)

TITLES = {"recompute": "computed again", "cached": "what is still cached is found", "swap": "swapped to the host"}
KINDS = {WAITS: "waiting", PREFILL: "prefill", DECODE: "decode", OUT: "free", AGAIN: "compute"}
HALF = LIMITS[1]  # half of the requests at once
HOLDER, LOSER = "held", "held by a request that is preempted"
OWNERS = {HOLDER: "kv", LOSER: "cached"}
THIN = (WAITS, OUT)  # a thin line holds no memory
_ROW = 13  # pixels of a request


def compute(inputs: Mapping[str, Any]) -> Data:
    """The run at the chosen pool, and every pool under every way back."""
    pool, limit, mode = int(inputs["pool"]), int(inputs["limit"]), inputs["mode"]
    here, half, roomy = (
        preemption_run.serve(size, most, mode) for size, most in ((pool, limit), (pool, HALF), (POOLS[-1], LIMITS[-1]))
    )
    jobs = preemption_run.workload()
    ways = {m: preemption_run.serve(pool, limit, m) for m in MODES}
    return Data(
        {
            "pool_tokens": pool,
            "pool_bytes": pool * catalog.model(MODEL).kv_bytes_per_token("bf16"),
            "limit": limit,
            "requests": len(jobs),
            "needed_tokens": sum(job.prompt + job.output for job in jobs),
            "preemptions": here.preemptions,
            "computed_tokens": here.computed_tokens,
            "again_tokens": here.again_tokens,
            "again_share": here.again_tokens / here.computed_tokens,
            "swapped_bytes": here.swapped_bytes,
            **_latencies(here),
            "e2e_roomy": _latencies(roomy)["e2e"],
            "gap_roomy": _latencies(roomy)["longest_gap"],
            "e2e_half": _latencies(half)["e2e"],
            "gap_half": _latencies(half)["longest_gap"],
            "again_cached": ways["cached"].again_tokens,
            "bytes_swap": ways["swap"].swapped_bytes,
            **{f"e2e_{m}": _latencies(outcome)["e2e"] for m, outcome in ways.items()},
        },
        {
            "spans": _spans(here),
            "losses": [
                {"row": s.request, "start": round(s.start_s, 4), "request": s.request + 1}
                for s in here.spans
                if s.kind == OUT
            ],
            "names": [
                {"row": i, "request": i + 1, "start": min(s.start_s for s in here.spans if s.request == i)}
                for i in range(NUM_REQUESTS)
            ],
            "held": _held(here),
            "shares": _shares(here),
            "pool": [{"tokens": pool, "label": f"the pool: {pool:,} tokens"}],
            "pools": [_pool(size, {m: preemption_run.serve(size, limit, m) for m in MODES}) for size in POOLS],
        },
    )


def _spans(outcome: Outcome) -> list[dict[str, Any]]:
    """What each request does; the n-th span of a request is the n-th in every state."""
    count: Counter[int] = Counter()
    found = []
    for s in outcome.spans:
        count[s.request] += 1
        found.append(
            {
                "key": f"{s.request}.{count[s.request]}",
                "row": s.request,
                "group": str(s.request + 1),
                "start": round(s.start_s, 4),
                "end": round(s.end_s, 4),
                "kind": s.kind,
            }
        )
    return found


def _held(outcome: Outcome) -> list[dict[str, Any]]:
    """Whose tokens the pool holds at each moment, one on top of the other; who lost its blocks is told apart."""
    lost = {s.request for s in outcome.spans if s.kind == OUT}
    found = []
    for time_s, tokens in outcome.held:
        below = 0
        for request, own in enumerate(tokens):
            found.append(
                {
                    "request": request + 1,
                    "group": str(request + 1),
                    "time": round(time_s, 3),
                    "from": below,
                    "to": below + own,
                    "owner": LOSER if request in lost else HOLDER,
                }
            )
            below += own
    return found


def _shares(outcome: Outcome) -> list[dict[str, Any]]:
    """Where a request's number stands in the pool: in its share, half way through the time when that is large."""
    held, found = _held(outcome), []
    for request in range(1, NUM_REQUESTS + 1):
        own = [row for row in held if row["request"] == request]
        largest = max(row["to"] - row["from"] for row in own)
        large = [row for row in own if row["to"] - row["from"] > 0.7 * largest]
        chosen = large[len(large) // 2]
        found.append({**chosen, "at": (chosen["from"] + chosen["to"]) / 2})
    return found


def _latencies(outcome: Outcome) -> dict[str, float]:
    """To a tenth of a millisecond: modelled time says no more."""
    return {
        "e2e": round(outcome.e2e_s, 4),
        "ttft": round(outcome.ttft_s, 4),
        "longest_gap": round(outcome.longest_gap_s, 4),
        "end": round(outcome.end_s, 4),
    }


def _pool(size: int, served: Mapping[str, Outcome]) -> dict[str, Any]:
    return {
        "pool": size,
        "preemptions": served["recompute"].preemptions,
        "again": served["recompute"].again_tokens,
        "again_cached": served["cached"].again_tokens,
        "swapped": served["swap"].swapped_bytes,
        **{f"e2e_{mode}": _latencies(outcome)["e2e"] for mode, outcome in served.items()},
    }


def figure(data: Data) -> Spec:
    """The requests along time; under them, on the same time, whose tokens fill the pool."""
    return _chart()


@cache
def _chart() -> Spec:
    return spec(alt.vconcat(_requests(), _pool_chart(), spacing=26).resolve_scale(x="shared", color="independent"))


def _time(field: str, axis: Any = None) -> Any:
    return alt.X(f"{field}:Q", axis=axis, scale=alt.Scale(nice=False))


def _losses(axis: Any = None) -> Any:
    """A line through both charts where somebody is preempted."""
    return (
        alt.Chart(rows("losses"))
        .mark_rule(color=colour("text"), strokeDash=[2, 3], strokeWidth=1)
        .encode(x=_time("start", axis))
    )


def _requests() -> Any:
    scale = alt.Scale(domain=[-0.6, NUM_REQUESTS - 0.4], reverse=True, nice=False, zero=False)
    y = alt.Y("row:Q", scale=scale, axis=None)
    colours = alt.Color("kind:N", scale=colour_scale(KINDS), legend=alt.Legend(values=list(KINDS)))
    thin = " || ".join(f"datum.kind === '{kind}'" for kind in THIN)

    def bars(test: str, height: int) -> Any:
        return (
            alt.Chart(rows("spans"))
            .transform_filter(test)
            .mark_bar(height=height)
            .encode(x=_time("start"), x2="end:Q", y=y, color=colours)
        )

    names = alt.Chart(rows("names")).mark_text(align="right", dx=-3, fontSize=10, color=colour("muted"))
    losers = alt.Chart(rows("losses")).mark_point(shape="cross", angle=45, size=55, color=colour("text"), opacity=1)
    return alt.layer(
        _losses(),
        bars(thin, 2),
        bars(f"!({thin})", _ROW - 2),
        names.encode(x=_time("start"), y=y, text="request:N"),
        losers.encode(x=_time("start"), y=y),
        # The request that is pointed at has a line around it, here and in the pool.
        linker(
            alt.Chart(rows("spans"))
            .mark_bar(height=_ROW, fill="transparent", strokeWidth=2)
            .encode(x=_time("start"), x2="end:Q", y=y, stroke=linked()),
            "requests",
        ),
        height=NUM_REQUESTS * _ROW,
        title=alt.Title("Requests (✕: loses its blocks)", frame="group"),
    )


def _pool_chart() -> Any:
    axis = alt.Axis(title="seconds")
    y = alt.Y("from:Q", axis=None, scale=alt.Scale(domainMin=0, nice=False))
    areas = (
        alt.Chart(rows("held"))
        .mark_area(strokeWidth=1.5)
        .encode(
            x=_time("time", axis),
            y=y,
            y2="to:Q",
            detail="group:N",
            stroke=linked(off=colour("page")),
            color=alt.Color("owner:N", scale=colour_scale(OWNERS), legend=alt.Legend(values=[LOSER], offset=24)),
        )
    )
    pool = alt.Chart(rows("pool")).encode(y=alt.Y("tokens:Q", axis=None))
    line = pool.mark_rule(color=colour("text"), strokeWidth=1.5)
    label = pool.mark_text(align="right", baseline="bottom", dy=-3, fontSize=11).encode(
        x=constant(alt.XValue, "width"), text="label:N"
    )
    numbers = (
        alt.Chart(rows("shares"))
        .mark_text(fontSize=10, dx=-4, align="right")
        .encode(
            x=_time("time", axis),
            y=alt.Y("at:Q", axis=None),
            text="request:N",
            color=either(alt.ColorValue, f"datum.owner === '{LOSER}'", ink("cached"), ink("kv")),
        )
    )
    title = alt.Title("The pool, request on request", frame="group")
    return alt.layer(linker(areas, "pool"), _losses(axis), line, label, numbers, height=130, title=title)


def table(data: Data) -> Table:
    """Each size of the pool."""
    return Table(
        (
            Column("pool", "Pool", "tokens", "int"),
            Column("preemptions", "Preemptions", "", "int"),
            Column("again", "Computed again", "tokens", "int"),
            Column("again_cached", "The same, with a prefix cache", "tokens", "int"),
            Column("swapped", "Swapped instead, out and in", "", "bytes"),
            *(Column(f"e2e_{mode}", f"Mean time, {TITLES[mode]}", "", "seconds") for mode in MODES),
        ),
        data.rows["pools"],
    )


def sentence(data: Data) -> str:
    """How often, at what cost, and what it does to the users."""
    v = data.values
    if not v["preemptions"]:
        cost = "Nobody is preempted."
    elif v["swapped_bytes"]:
        cost = (
            "{preemptions|int} {preemptions|int?preemption takes:preemptions take} {swapped_bytes|bytes} over the "
            "link, out and in."
        )
    else:
        cost = (
            "{preemptions|int} {preemptions|int?preemption makes:preemptions make} {again_tokens|int} "
            "{again_tokens|int?token:tokens} be computed again, {again_share|percent} of all that is computed."
        )
    return (
        "{requests|int} requests, in the end {needed_tokens|int} tokens, at most {limit|int} at once in a pool of "
        "{pool_tokens|int} tokens ({pool_bytes|bytes}). " + cost + " A request takes {e2e|seconds} on average, the "
        "longest gap between two tokens is {longest_gap|seconds}; with room for everybody it would be "
        "{e2e_roomy|seconds} and {gap_roomy|seconds}."
    )


def provenance() -> str:
    """What is real, and what is modelled."""
    link = format_value(pcie_bytes_per_s(PCIE), "compact")
    return (
        "Scheduler, blocks and swapping are the engine's own, so preemptions, tokens and bytes are counted. A step "
        f"lasts as long as the roofline says, {MODEL} in bf16 on {ACCELERATOR}; a swap stops the engine for its bytes "
        f"over PCIe {PCIE}.0 x16, {link}B/s each way. {NUM_REQUESTS} requests, 20 ms apart, prompts of "
        f"{preemption_run.PROMPTS[0]} to {preemption_run.PROMPTS[1]} tokens, answers of {preemption_run.OUTPUTS[0]} to "
        f"{preemption_run.OUTPUTS[1]}; blocks of {BLOCK_SIZE}."
    )


VISUALIZER = Visualizer(
    name="preemption",
    title="Requests in a pool too small for them",
    badge="simulated",
    chapters=("6.4",),
    summary="One list of requests from KV pools of several sizes: preemptions, what is computed again or swapped, and "
    "how long everybody waits.",
    formula=(
        "a running request that finds no free block preempts the one that ranks last; computed again = tokens "
        "scheduled at positions that were computed before"
    ),
    inputs=(
        Number(
            "pool",
            "KV memory",
            "tokens",
            8192,
            POOLS[0],
            POOLS[-1],
            "How many tokens the pool has room for.",
            instant="grid",
            stops=POOLS,
        ),
        Choice(
            "mode", "Way back", "recompute", TITLES, "How a preempted request gets its keys and values back.", more=True
        ),
        Number(
            "limit",
            "Requests at once",
            "requests",
            LIMITS[-1],
            LIMITS[0],
            LIMITS[-1],
            "The most requests that run together, whatever the pool would admit.",
            instant="grid",
            stops=LIMITS,
            more=True,
        ),
    ),
    units={
        "pool_tokens": "tokens",
        "pool_bytes": "bytes",
        "limit": "requests",
        "requests": "requests",
        "needed_tokens": "tokens",
        "preemptions": "",
        "computed_tokens": "tokens",
        "again_tokens": "tokens",
        "again_share": "",
        "swapped_bytes": "bytes",
        "e2e": "s",
        "ttft": "s",
        "longest_gap": "s",
        "end": "s",
        "e2e_roomy": "s",
        "gap_roomy": "s",
        "e2e_half": "s",
        "gap_half": "s",
        "again_cached": "tokens",
        "bytes_swap": "bytes",
        **{f"e2e_{mode}": "s" for mode in MODES},
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.core.scheduler", "minillm.core.kv.swap", "minillm.costs.preemption"),
)
