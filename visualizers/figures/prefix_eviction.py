"""What is found in a prefix cache that cannot keep everything: hit rates by pool size, eviction and traffic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt

from minillm import catalog
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import colour_scale, rows
from visualizers.palette import colour
from visualizers.runs import prefix_trace
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
COLOURS = {title: f"series-{i + 1}" for i, title in enumerate(TITLES.values())}


def compute(inputs: Mapping[str, Any]) -> Data:
    """The trace from every pool under every policy."""
    traffic, pool = inputs["traffic"], int(inputs["pool"])
    served = {(size, policy): prefix_trace.serve(traffic, size, policy) for size in POOLS for policy in POLICIES}
    here = {policy: prefix_trace.serve(traffic, pool, policy) for policy in POLICIES}
    unlimited = prefix_trace.serve(traffic, None)
    uncached = prefix_trace.serve(traffic, None, None)
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
    return Data(
        values,
        {
            "points": [
                {"pool": size, "policy": TITLES[policy], "rate": _rate(outcome), "ms": round(1e3 * _ttft(outcome), 3)}
                for (size, policy), outcome in served.items()
            ],
            "most": [
                {"rate": _rate(unlimited), "ms": round(1e3 * _ttft(unlimited), 3), "label": "room for everything"}
            ],
            "chosen": [{"pool": pool}],
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


def figure(data: Data) -> dict[str, Any]:
    """Hit rate and mean TTFT over the size of the pool, a line for each policy."""
    return _chart()


@cache
def _chart() -> dict[str, Any]:
    rates = _lines("rate", "Prompt tokens found in the cache", alt.Axis(format=".0%", title=None), legend=True)
    times = _lines("ms", "Mean TTFT in milliseconds (modelled)", alt.Axis(title=None), legend=False)
    found: dict[str, Any] = alt.vconcat(rates, times, spacing=22).resolve_scale(color="shared").to_dict()
    return found


def _lines(field: str, title: str, axis: Any, *, legend: bool) -> Any:
    x = alt.X(
        "pool:Q",
        title=None if legend else "tokens of KV memory",
        scale=alt.Scale(type="log", base=2, domain=[POOLS[0], POOLS[-1]], nice=False),
        axis=alt.Axis(values=POOLS, format=",d", labelFlush=True),
    )
    y = alt.Y(f"{field}:Q", scale=alt.Scale(zero=False), axis=axis)
    base = alt.Chart(rows("points")).encode(
        x=x,
        y=y,
        color=alt.Color(
            "policy:N", scale=colour_scale(COLOURS), legend=alt.Legend(symbolType="stroke") if legend else None
        ),
    )
    most = alt.Chart(rows("most")).encode(y=y)
    rule = most.mark_rule(color=colour("muted"), strokeDash=[3, 3])
    label = most.mark_text(align="left", baseline="bottom" if legend else "top", dx=4, dy=-3 if legend else 4).encode(
        x=alt.value(0), text="label:N", color=alt.value(colour("muted"))
    )
    chosen = alt.Chart(rows("chosen")).mark_rule(color=colour("axis"), strokeWidth=1).encode(x=x)
    layers = [chosen, rule, base.mark_line(), base.mark_point()]
    return alt.layer(*layers, *([label] if legend else []), height=150, title=title)


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
        "under uses × cost. With room for everything it would be {hit_rate_unlimited|percent1}. The mean TTFT is "
        "{ttft_lru|seconds}, {ttft_lfu|seconds} and {ttft_cost|seconds}; without a cache it is {ttft_uncached|seconds}."
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


_PER_POLICY = {"hit_rate": "", "ttft": "s"}

VISUALIZER = Visualizer(
    name="prefix-eviction",
    title="A prefix cache under pressure",
    badge="simulated",
    chapters=("5.5",),
    summary="Conversations under shared system prompts, served from pools of several sizes under three evictions.",
    formula="hit rate = prompt tokens found / prompt tokens, over all requests of the conversations",
    inputs=(
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
        ),
    ),
    units={
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
    source=("minillm.core.eviction", "minillm.core.prefix", "minillm.core.radix"),
)
