"""How large the KV cache of a model is, by its own attention and by other kinds in its place.

Each what-if changes one thing of the model and keeps the rest: the number of KV heads, a latent vector
in place of keys and values (the 512 + 64 numbers of DeepSeek-V3), or the windows of its layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt

from minillm import catalog
from minillm.catalog import Geometry, LatentAttention, Model
from minillm.costs import (
    CacheGroup,
    growth_bytes_per_token,
    kv_allocated_bytes,
    kv_logical_bytes,
    kv_values_per_token,
    latent_values_per_token,
)
from minillm.costs.arithmetic import floor, maximum
from visualizers.catalogued import LIMIT_SENTENCE, LIMIT_UNITS, context_limit, model_choice
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, colour_scale, constant, either, rows, spec
from visualizers.palette import colour

LATENT = (512, 64)  # latent and rotated key of DeepSeek-V3, in numbers
WINDOW, GLOBAL_EVERY = 1024, 6  # Gemma 3: five layers with this window, then one without
GROUPED = 8  # KV heads of most models with grouped-query attention
MEMORIES = (("l4", 1, "L4"), ("h100-sxm", 1, "H100"), ("h100-sxm", 8, "8 × H100"))
READ, RESERVED = "keys and values", "reserved in whole blocks"


@dataclass(frozen=True)
class Variant:
    """A way to build the model's attention, and the caches that its layers then have."""

    label: str
    groups: Sequence[CacheGroup]
    own: bool = False


def variants(model: Model) -> list[Variant]:
    """The model as built, then the what-ifs that differ from it."""
    g = model.geometry
    kind, windows = model.attention_kind, g.windows
    own = [Variant(f"as built: {_described(model)}", g.cache_groups(), own=True)]
    heads = {"MHA": model.heads, "GQA": GROUPED, "MQA": 1}
    for name, kv_heads in heads.items():
        if name != kind and not (name == "GQA" and (model.heads <= GROUPED or model.heads % GROUPED)):
            own.append(Variant(f"if {name}: {_counted(kv_heads)}", _groups(windows, _values(g, kv_heads))))
    if kind != "MLA":
        own.append(
            Variant(f"if MLA: {LATENT[0]} + {LATENT[1]} numbers", _groups(windows, latent_values_per_token(*LATENT)))
        )
    values = g.attention.values_per_token(False)
    if any(windows):
        return [*own, Variant("if no layer had a window", _groups([None] * g.layers, values))]
    local = [None if (i + 1) % GLOBAL_EVERY == 0 else WINDOW for i in range(g.layers)]
    return [*own, Variant(f"if 5 of 6 layers saw {WINDOW:,} tokens", _groups(local, values))]


def _described(model: Model) -> str:
    kind = model.attention_kind
    attention = model.geometry.attention
    if isinstance(attention, LatentAttention):
        text = f"{kind}, {attention.kv_lora_rank} + {attention.rope_dim} numbers"
    else:
        text = f"{kind}, {_counted(model.kv_heads)}"
    return f"{text}, windows" if any(model.geometry.windows) else text


def _windows(groups: Sequence[CacheGroup]) -> str:
    """Which layers see the last tokens only."""
    layers = sum(g.layers for g in groups)
    texts = [f"{g.layers} of {layers} layers: {g.window:,} tokens" for g in groups if g.window is not None]
    return "; ".join(texts) or "none"


def _counted(kv_heads: int) -> str:
    return f"{kv_heads} KV head{'s' if kv_heads > 1 else ''}"


def _values(geometry: Geometry, kv_heads: int) -> int:
    attention = geometry.attention
    return int(kv_values_per_token(kv_heads, attention.head_dim, attention.value_head_dim))


def _groups(windows: Sequence[int | None], values: int) -> list[CacheGroup]:
    return [CacheGroup(layers, values, window) for window, layers in Counter(windows).items()]


def compute(inputs: Mapping[str, Any]) -> Data:
    """Bytes for each variant; the values are those of the model as built."""
    model = catalog.model(inputs["model"])
    context, batch, block, dtype = (inputs[name] for name in ("context", "batch", "block_size", "dtype"))
    found = variants(model)
    records = []
    for variant in found:
        logical = kv_logical_bytes(variant.groups, context, dtype, batch)
        records.append(
            {
                "label": variant.label,
                "own": variant.own,
                "windows": _windows(variant.groups),
                "values": sum(g.layers * g.values_per_token for g in variant.groups),
                "bytes_per_token": growth_bytes_per_token(variant.groups, dtype),
                "total_bytes": logical,
                "allocated_bytes": kv_allocated_bytes(variant.groups, context, dtype, block, batch),
            }
        )
    own = records[0]
    groups = found[0].groups
    multi_head = _groups(model.geometry.windows, _values(model.geometry, model.heads))
    h100 = catalog.accelerator("h100-sxm")
    free = max(0, (h100.reported_memory_bytes or h100.memory_bytes) - model.weight_bytes())
    one = kv_logical_bytes(groups, context, dtype)
    return Data(
        values={
            "model_title": model.title,
            "attention_kind": model.attention_kind,
            "context_tokens": context,
            "sequences": batch,
            "bytes_per_token": own["bytes_per_token"],
            "next_token_bytes": growth_bytes_per_token(groups, dtype, context),
            "total_bytes": own["total_bytes"],
            "allocated_bytes": own["allocated_bytes"],
            "allocated_behind_window_freed_bytes": kv_allocated_bytes(
                groups, context, dtype, block, batch, frees_behind_window=True
            ),
            "multi_head_ratio": kv_logical_bytes(multi_head, context, dtype) / one,
            "weight_bytes": model.weight_bytes(),
            "h100_sequences": maximum(0, floor(free / one)),
            **context_limit(model, context),
        },
        rows={
            "variants": records,
            "points": [
                {"label": r["label"], "own": r["own"], "kind": kind, "bytes": r[key]}
                for r in records
                for kind, key in ((RESERVED, "allocated_bytes"), (READ, "total_bytes"))
            ],
            "memories": [
                {"name": name, "bytes": count * catalog.accelerator(slug).memory_bytes}
                for slug, count, name in MEMORIES
            ],
        },
    )


# The chart's axis, in bytes: fixed, so that the points move and the memories stay.
_LOW, _HIGH = 2**22, 2**42
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def _in_units(field: str, style: str) -> str:
    """A Vega expression that writes a number of bytes in the unit that suits it."""
    text = f"{field} + ' B'"
    for size, unit in reversed(_UNITS):
        text = f"{field} >= {size} ? format({field} / {size}, '{style}') + ' {unit}' : {text}"
    return text


def figure(data: Data) -> Spec:
    """A point for each variant on a logarithmic axis, and the memories of accelerators as lines across."""
    return _chart()


@cache
def _chart() -> Spec:
    """The chart, which is the same in every state: built once, since Altair takes half a second for it."""
    scale = alt.Scale(type="log", base=2, domain=[_LOW, _HIGH], clamp=True, nice=False)
    axis = alt.Axis(values=[2**n for n in (25, 30, 35, 40)], labelExpr=_in_units("datum.value", ".0f"), title=None)
    y = alt.Y("label:N", sort=None, axis=None)

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=scale, axis=axis)

    memories = alt.Chart(rows("memories"))
    lines = memories.mark_rule(strokeDash=[3, 3], color=colour("axis")).encode(x=x("bytes"))
    names = memories.mark_text(dx=3, dy=-4, align="left", baseline="bottom", fontSize=11, color=colour("muted")).encode(
        x=x("bytes"), y=constant(alt.YValue, 0), text="name:N"
    )
    by_variant = alt.Chart(rows("variants"))
    stems = by_variant.mark_rule(color=colour("kv"), strokeWidth=2).encode(
        x=x("total_bytes"), x2=constant(alt.X2Value, 0), y=y
    )
    unread = by_variant.mark_rule(color=colour("free"), strokeWidth=2).encode(
        x=x("total_bytes"), x2="allocated_bytes:Q", y=y
    )
    points = (
        alt.Chart(rows("points"))
        .mark_point(opacity=1, strokeWidth=0)
        .encode(
            x=x("bytes"),
            y=y,
            fill=alt.Fill(
                "kind:N",
                scale=colour_scale({READ: "kv", RESERVED: "free"}),
                legend=alt.Legend(orient="bottom"),
            ),
            size=either(alt.SizeValue, f"datum.kind === '{READ}'", 90, 230),
        )
    )
    labels = by_variant.mark_text(align="left", dy=-13).encode(
        x=constant(alt.XValue, 0), y=y, text="label:N", opacity=either(alt.OpacityValue, "datum.own", 1, 0.8)
    )
    amounts = (
        by_variant.transform_calculate(amount=_in_units("datum.total_bytes", ".3~r"))
        .mark_text(align="right", dy=-13)
        .encode(x=constant(alt.XValue, "width"), y=y, text="amount:N")
    )
    chart = alt.layer(lines, names, stems, unread, points, labels, amounts, height=alt.Step(46))
    return spec(chart)


def table(data: Data) -> Table:
    """The variants, with what a token and all tokens take."""
    return Table(
        columns=(
            Column("label", "Attention"),
            Column("windows", "Windows"),
            Column("values", "Numbers a token"),
            Column("bytes_per_token", "A token, no window full", "", "bytes"),
            Column("total_bytes", "All tokens", "", "bytes"),
            Column("allocated_bytes", "Reserved in whole blocks", "", "bytes"),
        ),
        rows=data.rows["variants"],
    )


def sentence(data: Data) -> str:
    """What the model's own cache takes, against multi-head attention and an H100."""
    against = {
        "MHA": "which is what multi-head attention costs",
        "MLA": "{multi_head_ratio|sig2} times less than with the keys and values of all heads in it",
    }.get(data.values["attention_kind"], "{multi_head_ratio|sig2} times less than with a KV head for each query head")
    return (
        "A token takes {bytes_per_token|bytes} in the cache of {model_title}. {sequences|int} "
        "{sequences|int?sequence:sequences} of {context_tokens|int} {context_tokens|int?token:tokens} "
        f"{{sequences|int?takes:take}} {{total_bytes|bytes}}, {against}; an engine with whole blocks and one table "
        "for all layers reserves {allocated_bytes|bytes}. Beside the weights as published, an H100 has room for "
        "{h100_sequences|int} {h100_sequences|int?sequence:sequences} of this length, before anything "
        "else that a server keeps in memory." + LIMIT_SENTENCE
    )


VISUALIZER = Visualizer(
    name="kv-cache-size",
    title="Size of the KV cache",
    badge="computed",
    chapters=("1.6", "5.1", "5.4"),
    summary="Bytes of the KV cache a token and in all, for a model's own attention and for other kinds in its place.",
    formula=(
        "total = sequences * sum over layers of min(context, window) * numbers a token * bytes a number; numbers a "
        "token: KV heads * (key length + value length), or for MLA latent + rotated key; reserved = the same with "
        "ceil(context / block) * block tokens in every layer"
    ),
    inputs=(
        model_choice(),
        Number("context", "Context", "tokens", 8192, 1, 2**20, "Tokens of each sequence.", log=True),
        Number("batch", "Batch", "sequences", 1, 1, 1024, "Sequences at once.", log=True),
        Choice(
            "dtype",
            "Numbers of the cache",
            "bf16",
            {"fp32": "fp32", "bf16": "bf16", "fp8": "fp8", "q8_0": "Q8_0 (8.5 bits)", "q4_0": "Q4_0 (4.5 bits)"},
            "The cache has its own format: that of the weights does not change it.",
        ),
        Number("block_size", "Block", "tokens", 16, 1, 256, "Tokens in a block of the engine.", log=True),
    ),
    units={
        "model_title": "",
        "attention_kind": "",
        "context_tokens": "tokens",
        "sequences": "sequences",
        "bytes_per_token": "bytes",
        "next_token_bytes": "bytes",
        "total_bytes": "bytes",
        "allocated_bytes": "bytes",
        "allocated_behind_window_freed_bytes": "bytes",
        "multi_head_ratio": "",
        "weight_bytes": "bytes",
        "h100_sequences": "sequences",
        **LIMIT_UNITS,
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
)
