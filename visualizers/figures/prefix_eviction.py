"""What is found in a prefix cache that cannot keep everything: hit rates by pool size, eviction and traffic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt

from minillm import catalog
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, colour_scale, constant, rows, spec
from visualizers.palette import colour
from visualizers.runs import eviction_moments, prefix_trace
from visualizers.runs.eviction_moments import CELLS, EMPTY, HELD, MOMENTS, SYSTEM, TALK, UNWANTED
from visualizers.runs.prefix_trace import (
    ACCELERATOR,
    MODEL,
    NUM_CONVERSATIONS,
    POLICIES,
    POOLS,
    SYSTEM_PROMPTS,
    Outcome,
)

TITLES = {"lru": "least recently used", "lfu": "least often used", "cost": "uses × cost, ageing"}
KIND_COLOURS = {SYSTEM: "shared", TALK: "kv", UNWANTED: "free", EMPTY: "grid", HELD: "decode"}
EARLY = (SYSTEM, TALK)  # whose eviction is paid for later
_STRIP = 52  # pixels of a policy
COLOURS = {title: f"series-{i + 1}" for i, title in enumerate(TITLES.values())}


def compute(inputs: Mapping[str, Any]) -> Data:
    """The trace from every pool under every policy."""
    traffic, pool = inputs["traffic"], int(inputs["pool"])
    served = {(size, policy): prefix_trace.serve(traffic, size, policy) for size in POOLS for policy in POLICIES}
    here = {policy: prefix_trace.serve(traffic, pool, policy) for policy in POLICIES}
    unlimited = prefix_trace.serve(traffic, None)
    uncached = prefix_trace.serve(traffic, None, None)
    now = {policy: eviction_moments.moments(traffic, pool, policy)[int(inputs["moment"])] for policy in POLICIES}
    values: dict[str, Any] = {
        "pool_tokens": pool,
        "pool_bytes": pool * catalog.model(MODEL).kv_bytes_per_token("bf16"),
        "requests": unlimited.requests,
        "prompt_tokens": unlimited.prompt_tokens,
        "hit_rate_unlimited": _rate(unlimited),
        "ttft_unlimited": _ttft(unlimited),
        "ttft_uncached": _ttft(uncached),
    }
    for policy, outcome in here.items():
        values |= {f"hit_rate_{policy}": _rate(outcome), f"ttft_{policy}": _ttft(outcome)}
        values |= {f"early_{policy}": sum(now[policy].dead[kind] for kind in EARLY)}
    values["moment_s"] = now["lru"].time_s
    return Data(
        values,
        {
            "points": [
                {"pool": size, "policy": TITLES[policy], "rate": _rate(outcome), "ms": round(1e3 * _ttft(outcome), 3)}
                for (size, policy), outcome in served.items()
            ],
            "most": [{"rate": _rate(unlimited), "label": "room for everything"}],
            "chosen": [{"pool": pool}],
            "cells": [
                {"policy": TITLES[policy], "at": at, "kind": kind}
                for policy, moment in now.items()
                for at, kind in enumerate(moment.cells)
            ],
            "policies": [{"policy": TITLES[policy], "early": values[f"early_{policy}"]} for policy in POLICIES],
            "ends": [
                {"side": "left", "text": "← evicted next"},
                {"side": "right", "text": "in use →"},
            ],
            "early": [
                {"key": f"{policy} {kind}", "policy": TITLES[policy], "kind": kind, "from": start, "to": end}
                for policy, moment in now.items()
                for kind, start, end in (
                    (EARLY[0], 0, moment.dead[EARLY[0]]),
                    (EARLY[1], moment.dead[EARLY[0]], moment.dead[EARLY[0]] + moment.dead[EARLY[1]]),
                )
            ],
            "pools": [
                {
                    "pool": size,
                    **{f"rate_{policy}": _rate(served[size, policy]) for policy in POLICIES},
                    **{f"ttft_{policy}": _ttft(served[size, policy]) for policy in POLICIES},
                }
                for size in POOLS
            ],
        },
    )


def _rate(outcome: Outcome) -> float:
    return round(outcome.hit_rate, 6)


def _ttft(outcome: Outcome) -> float:
    return round(outcome.ttft_s, 6)


def figure(data: Data) -> Spec:
    """The pool under each policy, what died too early, and the hit rate over the size of the pool."""
    return _chart()


@cache
def _chart() -> Spec:
    charts = (_pools(), _early(), _rates())
    return spec(alt.vconcat(*charts, spacing=24).resolve_scale(color="independent", x="independent"))


def _policies(**options: Any) -> Any:
    return alt.Y("policy:N", axis=None, scale=alt.Scale(domain=list(TITLES.values()), padding=0, **options))


def _pools() -> Any:
    """The pool under each policy as a queue: what is evicted next stands at the left."""
    x = alt.X("at:Q", axis=None, scale=alt.Scale(domain=[0, CELLS], nice=False))
    cells = (
        alt.Chart(rows("cells"))
        .transform_calculate(end="datum.at + 0.86")
        .mark_bar(height=22, yOffset=7)
        .encode(
            x=x,
            x2="end:Q",
            y=_policies(),
            color=alt.Color(
                "kind:N", scale=colour_scale(KIND_COLOURS), legend=alt.Legend(values=[SYSTEM, TALK, UNWANTED, HELD])
            ),
        )
    )
    names = (
        alt.Chart(rows("policies"))
        .mark_text(align="left", yOffset=-13, fontWeight="bold")
        .encode(x=constant(alt.XValue, 0), y=_policies(), text="policy:N")
    )
    ends = alt.Chart(rows("ends")).mark_text(fontSize=11, color=colour("muted"), baseline="top")
    left, right = (ends.transform_filter(f"datum.side === '{side}'") for side in ("left", "right"))
    below = constant(alt.YValue, len(TITLES) * _STRIP + 4)
    return alt.layer(
        cells,
        names,
        left.mark_text(fontSize=11, color=colour("muted"), baseline="top", align="left").encode(
            x=constant(alt.XValue, 0), y=below, text="text:N"
        ),
        right.mark_text(fontSize=11, color=colour("muted"), baseline="top", align="right").encode(
            x=constant(alt.XValue, "width"), y=below, text="text:N"
        ),
        height=len(TITLES) * _STRIP,
        title=alt.Title("The pool at this moment", frame="group"),
    )


def _early() -> Any:
    """What was evicted so far and is asked for again: the tokens that a better guess would have kept."""
    y = _policies()
    bars = (
        alt.Chart(rows("early"))
        .mark_bar(height=10, yOffset=7)
        .encode(
            x=alt.X("from:Q", title="tokens", axis=alt.Axis(tickCount=4), scale=alt.Scale(domainMin=0)),
            x2="to:Q",
            y=y,
            color=alt.Color("kind:N", scale=colour_scale(KIND_COLOURS), legend=None),
        )
    )
    names = (
        alt.Chart(rows("policies"))
        .transform_calculate(said="datum.policy + ': ' + format(datum.early, ',')")
        .mark_text(align="left", yOffset=-7, fontSize=11)
        .encode(x=constant(alt.XValue, 0), y=y, text="said:N")
    )
    return alt.layer(
        bars, names, height=len(TITLES) * 36, title=alt.Title("Evicted so far, asked for again", frame="group")
    )


def _rates() -> Any:
    x = alt.X(
        "pool:Q",
        title="tokens of KV memory",
        scale=alt.Scale(type="log", base=2, domain=[POOLS[0], POOLS[-1]], nice=False),
        axis=alt.Axis(values=POOLS, format=",d", labelFlush=True),
    )
    y = alt.Y("rate:Q", scale=alt.Scale(zero=False), axis=alt.Axis(format=".0%", title=None, tickCount=4))
    colours = alt.Color("policy:N", scale=colour_scale(COLOURS), legend=alt.Legend(symbolType="stroke"))
    base = alt.Chart(rows("points")).encode(x=x, y=y, color=colours)
    most = alt.Chart(rows("most")).encode(y=y)
    rule = most.mark_rule(color=colour("muted"), strokeDash=[3, 3])
    label = most.mark_text(align="left", baseline="bottom", dx=4, dy=-3, color=colour("muted")).encode(
        x=constant(alt.XValue, 0), text="label:N"
    )
    chosen = alt.Chart(rows("chosen")).mark_rule(color=colour("axis"), strokeWidth=1).encode(x=x)
    title = alt.Title("Found in all, by size of the pool", frame="group")
    return alt.layer(chosen, rule, base.mark_line(), base.mark_point(), label, height=120, title=title)


def table(data: Data) -> Table:
    """Each size of the pool."""
    short = {"lru": "LRU", "lfu": "least often", "cost": "uses × cost"}
    return Table(
        (
            Column("pool", "Pool", "tokens", "int"),
            *(Column(f"rate_{policy}", f"Found, {short[policy]}", "", "percent1") for policy in POLICIES),
            *(Column(f"ttft_{policy}", f"TTFT, {short[policy]}", "", "seconds") for policy in POLICIES),
        ),
        data.rows["pools"],
    )


def sentence(data: Data) -> str:
    """Who keeps what is asked for again."""
    return (
        "With room for {pool_tokens|int} tokens ({pool_bytes|bytes}), {hit_rate_lru|percent1} of the prompt tokens are "
        "found under least recently used, {hit_rate_lfu|percent1} under least often used and {hit_rate_cost|percent1} "
        "under uses × cost; with room for everything it would be {hit_rate_unlimited|percent1}. After "
        "{moment_s|sig3} s the three have evicted {early_lru|int}, {early_lfu|int} and {early_cost|int} tokens that "
        "are asked for again."
    )


def provenance() -> str:
    """What is real, and what is modelled."""
    return (
        "Scheduler, prefix index and eviction are the engine's own, so what is found is counted, not modelled. A step "
        f"lasts as long as the roofline says: {MODEL} in bf16 on {ACCELERATOR}. {NUM_CONVERSATIONS} conversations "
        f"under {len(SYSTEM_PROMPTS)} system prompts of {min(SYSTEM_PROMPTS)} to {max(SYSTEM_PROMPTS):,} tokens, "
        f"{prefix_trace.TURNS[0]} to {prefix_trace.TURNS[1]} turns each, {prefix_trace.THINK_S:.0f} s between them on "
        "average; blocks of 16 tokens."
    )


_PER_POLICY = {"hit_rate": "", "ttft": "s", "early": "tokens"}

VISUALIZER = Visualizer(
    name="prefix-eviction",
    title="A prefix cache under pressure",
    badge="simulated",
    chapters=("5.5",),
    summary="Conversations under shared system prompts, served from pools of several sizes under three evictions.",
    formula="hit rate = prompt tokens found / prompt tokens, over all requests of the conversations",
    inputs=(
        Number(
            "moment",
            "Moment",
            f"of {MOMENTS}",
            20,
            0,
            MOMENTS,
            "How far the run has come.",
            instant="grid",
            play=True,
        ),
        Choice(
            "traffic",
            "Traffic",
            "conversations",
            {
                "conversations": "conversations alone",
                "documents": "and documents that come once",
                "new-prompts": "new system prompts halfway",
                "salts": "tenants kept apart by salts",
            },
            "What is served beside the conversations, or changes under them.",
        ),
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
            more=True,
        ),
    ),
    units={
        "moment_s": "s",
        "pool_tokens": "tokens",
        "pool_bytes": "bytes",
        "requests": "requests",
        "prompt_tokens": "tokens",
        "hit_rate_unlimited": "",
        "ttft_unlimited": "s",
        "ttft_uncached": "s",
        **{f"{name}_{policy}": unit for policy in POLICIES for name, unit in _PER_POLICY.items()},
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.core.kv.eviction", "minillm.core.kv.prefix", "minillm.core.kv.radix"),
)
