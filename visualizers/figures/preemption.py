"""What happens when the KV pool is full: requests over time, preemptions, and what they cost by the way back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt

from minillm import catalog
from minillm.costs import pcie_bytes_per_s
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.formats import format_value
from visualizers.levels.charts import Spec, colour_scale, rows, spec
from visualizers.palette import colour
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
COLOURS = {f"{limit} at once": f"series-{i + 1}" for i, limit in enumerate(LIMITS)}
KINDS = {WAITS: "waiting", PREFILL: "prefill", DECODE: "decode", OUT: "free", AGAIN: "compute"}
HALF = LIMITS[1]  # half of the requests at once
THIN = (WAITS, OUT)  # a thin line holds no memory
_ROW = 11  # pixels of a request


def compute(inputs: Mapping[str, Any]) -> Data:
    """The run at the chosen pool; every pool under every limit, and under every way back."""
    pool, limit, mode = int(inputs["pool"]), int(inputs["limit"]), inputs["mode"]
    limited = {(size, most): preemption_run.serve(size, most, mode) for size in POOLS for most in LIMITS}
    here, roomy = limited[pool, limit], limited[POOLS[-1], LIMITS[-1]]
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
            "e2e_half": _latencies(limited[pool, HALF])["e2e"],
            "gap_half": _latencies(limited[pool, HALF])["longest_gap"],
            "again_cached": ways["cached"].again_tokens,
            "bytes_swap": ways["swap"].swapped_bytes,
            **{f"e2e_{m}": _latencies(outcome)["e2e"] for m, outcome in ways.items()},
        },
        {
            "spans": [
                {"row": s.request, "start": round(s.start_s, 4), "end": round(s.end_s, 4), "kind": s.kind}
                for s in here.spans
            ],
            "points": [
                {"pool": size, "limit": f"{most} at once", "s": found["e2e"], "gap": found["longest_gap"]}
                for (size, most), found in ((key, _latencies(outcome)) for key, outcome in limited.items())
            ],
            "chosen": [{"pool": pool}],
            "pools": [_pool(size, {m: preemption_run.serve(size, limit, m) for m in MODES}) for size in POOLS],
        },
    )


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
    """The requests along time; below, the latencies over the size of the pool."""
    return _chart()


@cache
def _chart() -> Spec:
    latencies = (_lines("s", "Mean time of a request (s)", first=True), _lines("gap", "Longest gap (s)"))
    charts = (_gantt(), *latencies)
    return spec(alt.vconcat(*charts, spacing=24).resolve_scale(color="independent"))


def _gantt() -> Any:
    scale = alt.Scale(domain=[-0.6, NUM_REQUESTS - 0.4], reverse=True, nice=False, zero=False)
    colours = alt.Color("kind:N", scale=colour_scale(KINDS), legend=alt.Legend(values=list(KINDS)))
    thin = " || ".join(f"datum.kind === '{kind}'" for kind in THIN)

    def bars(test: str, height: int) -> Any:
        return (
            alt.Chart(rows("spans"))
            .transform_filter(test)
            .mark_bar(height=height)
            .encode(
                x=alt.X("start:Q", axis=alt.Axis(title="time (s)"), scale=alt.Scale(nice=False)),
                x2="end:Q",
                y=alt.Y("row:Q", scale=scale, axis=None),
                color=colours,
            )
        )

    return alt.layer(bars(thin, 2), bars(f"!({thin})", _ROW - 2), height=NUM_REQUESTS * _ROW)


def _lines(field: str, title: str, *, first: bool = False) -> Any:
    x = alt.X(
        "pool:Q",
        title=None if first else "tokens of KV memory",
        scale=alt.Scale(type="log", base=2, domain=[POOLS[0], POOLS[-1]], nice=False),
        axis=alt.Axis(values=POOLS, format=",d", labelFlush=True),
    )
    lines = alt.Chart(rows("points")).encode(
        x=x,
        y=alt.Y(f"{field}:Q", scale=alt.Scale(domainMin=0), axis=alt.Axis(title=None, tickCount=4)),
        color=alt.Color(
            "limit:N", scale=colour_scale(COLOURS), legend=alt.Legend(symbolType="stroke") if first else None
        ),
    )
    chosen = alt.Chart(rows("chosen")).mark_rule(color=colour("axis"), strokeWidth=1).encode(x=x)
    return alt.layer(chosen, lines.mark_line(), lines.mark_point(), height=110, title=title)


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
        Choice("mode", "Way back", "recompute", TITLES, "How a preempted request gets its keys and values back."),
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
    source=("minillm.core.scheduler", "minillm.core.swap", "minillm.costs.preemption"),
)
