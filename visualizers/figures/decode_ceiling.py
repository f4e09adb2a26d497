"""How fast a model can decode at most: the bytes that a step reads over bandwidth, and its FLOPs over peak.

The points of our own engine are measured, by ``benchmarks/decode_speed.py``; ``decode_ceiling.json`` holds
what it printed, with machine and date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import altair as alt

from minillm import catalog
from minillm.catalog import Accelerator, Model
from minillm.costs import step_time_s
from minillm.costs.arithmetic import maximum, where
from visualizers.catalogued import LIMIT_SENTENCE, LIMIT_UNITS, context_limit, model_choice
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.formats import format_value
from visualizers.levels.charts import Spec, colour_scale, either, rows, spec
from visualizers.palette import colour

BATCHES = tuple(sorted({2**n for n in range(11)} | {3 * 2**n for n in range(9)}))  # two an octave
BYTES = (1e6, 1e12)  # the axis of bytes a step
RATES = (0.01, 3e7)  # the axis of tokens/s of a sequence: no line leaves it, or its slope would be wrong
ENDS = ("l4", "b200")  # the slowest and the fastest are always named
MACHINE = "our CPU"  # short: its name stands between two lines
BANDWIDTH, COMPUTE, BOUND = "bytes ÷ bandwidth", "FLOPs ÷ peak", "the lower of both"


@cache
def measured() -> dict[str, Any]:
    """What the benchmark printed on some machine, with its date."""
    file = resources.files("visualizers.figures") / "decode_ceiling.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def compute(inputs: Mapping[str, Any]) -> Data:
    """The bound of one step, the same for each accelerator, and how it grows with the batch."""
    model, chosen = catalog.model(inputs["model"]), catalog.accelerator(inputs["accelerator"])
    dtype, batch, context = inputs["dtype"], inputs["batch"], inputs["context"]
    read, flops = model.decode_bytes(context, batch, dtype), model.decode_flops(context, batch)
    peak = model.peak_flops(chosen, dtype)
    step_s = step_time_s(read, flops, chosen.memory_bandwidth, peak)
    needed = model.weight_bytes(dtype) + model.kv_bytes(context, "bf16", batch)
    memory = _memory(chosen)
    by_bandwidth = read / chosen.memory_bandwidth >= flops / peak
    return Data(
        values={
            "model_title": model.title,
            "accelerator_title": chosen.title,
            "sequences": batch,
            "bytes_per_step": read,
            "flops_per_step": flops,
            "step_s": step_s,
            "tokens_per_s_each": 1 / step_s,
            "tokens_per_s": batch / step_s,
            "limit": where(by_bandwidth, "memory bandwidth", "arithmetic"),
            "needed_bytes": needed,
            "memory_bytes": memory,
            "fits": where(needed <= memory, "fits into", "does not fit into"),
            **context_limit(model, context),
        },
        rows={
            "lines": _lines(),
            "chosen": [{"name": chosen.title, "bytes": end, "rate": chosen.memory_bandwidth / end} for end in BYTES],
            "point": [{"bytes": read, "rate": 1 / step_s, "batch": batch, "total": batch / step_s}],
            "measured": _measured_points(),
            "curves": _curves(model, chosen, dtype, context),
            "accelerators": [_row(a, model.peak_flops(a, dtype), batch, read, flops, needed) for a in _by_bandwidth()],
        },
    )


def _memory(accelerator: Accelerator) -> float:
    """The bytes that its driver reports, which are more than the data sheet's GB."""
    return accelerator.reported_memory_bytes or accelerator.memory_bytes


def _by_bandwidth() -> list[Accelerator]:
    return sorted(catalog.accelerators().values(), key=lambda a: a.memory_bandwidth)


def _lines() -> list[dict[str, Any]]:
    """The ceiling of every accelerator and of the machine that was measured, from end to end of the axis."""
    found = [
        {"name": a.title, "bytes": end, "rate": a.memory_bandwidth / end, "named": a.slug in ENDS and end == BYTES[0]}
        for a in _by_bandwidth()
        for end in BYTES
    ]
    bandwidth = max(r["bandwidth_gb_per_s"] for r in measured()["results"]) * 1e9
    return found + [{"name": MACHINE, "bytes": end, "rate": bandwidth / end, "named": end == BYTES[0]} for end in BYTES]


def _measured_points() -> list[dict[str, Any]]:
    return [
        {"name": f"{r['model']}, measured", "bytes": r["bytes_per_step"], "rate": r["tokens_per_s"] / r["batch"]}
        for r in measured()["results"]
    ]


def _curves(model: Model, accelerator: Accelerator, dtype: str, context: Any) -> list[dict[str, Any]]:
    """What a step of each batch needs and what the accelerator offers; the chart divides."""
    return [
        {
            "batch": batch,
            "read": model.decode_bytes(context, batch, dtype),
            "flops": model.decode_flops(context, batch),
            "bandwidth": accelerator.memory_bandwidth,
            "peak": model.peak_flops(accelerator, dtype),
        }
        for batch in BATCHES
    ]


def _row(accelerator: Accelerator, peak: float, batch: Any, read: Any, flops: Any, needed: Any) -> dict[str, Any]:
    by_bytes, by_flops = read / accelerator.memory_bandwidth, flops / peak
    step_s, memory = maximum(by_bytes, by_flops), _memory(accelerator)
    return {
        "name": accelerator.title,
        "bandwidth": accelerator.memory_bandwidth,
        "each": 1 / step_s,
        "total": batch / step_s,
        "limit": where(by_bytes >= by_flops, "bandwidth", "arithmetic"),
        "memory": memory,
        "fits": where(needed <= memory, "yes", "no"),
    }


def figure(data: Data) -> Spec:
    """Above: tokens/s against bytes a step, a line an accelerator. Below: tokens/s against the batch."""
    return _chart()


@cache
def _chart() -> Spec:
    """The chart, which is the same in every state: built once, since Altair is slow to check it."""
    return spec(alt.vconcat(_plane(), _batches(), spacing=34))


_BYTES_LABEL = "replace(replace(replace(format(datum.value, '.0~s'), 'M', ' M'), 'G', ' G'), 'T', ' T') + 'B'"


def _plane() -> Any:
    x = alt.X(
        "bytes:Q",
        title="bytes a step reads",
        scale=alt.Scale(type="log", domain=list(BYTES), clamp=True, nice=False),
        axis=alt.Axis(values=[10**n for n in range(6, 13)], labelExpr=_BYTES_LABEL),
    )
    y = alt.Y(
        "rate:Q",
        title="tokens/s of each sequence",
        scale=alt.Scale(type="log", domain=list(RATES), clamp=True, nice=False),
        axis=alt.Axis(values=[10**n for n in range(-2, 7, 2)], labelExpr="format(datum.value, ',')"),
    )
    lines = alt.Chart(rows("lines"))
    ceilings = lines.mark_line(color=colour("bandwidth"), strokeWidth=1, opacity=0.6).encode(x=x, y=y, detail="name:N")
    names = (
        lines.transform_filter("datum.named")
        .mark_text(align="left", dx=4, dy=-5, fontSize=11, color=colour("muted"))
        .encode(x=x, y=y, text="name:N")
    )
    chosen = alt.Chart(rows("chosen")).mark_line(color=colour("bandwidth"), strokeWidth=3).encode(x=x, y=y)
    own = alt.Chart(rows("measured"))
    diamonds = own.mark_point(shape="diamond", size=130, color=colour("decode"), filled=False, strokeWidth=2)
    own_names = own.mark_text(align="right", dx=8, dy=18, fontSize=11).encode(x=x, y=y, text="name:N")
    point = alt.Chart(rows("point")).mark_point(size=140, color=colour("decode"), opacity=1)
    return alt.layer(ceilings, chosen, names, diamonds.encode(x=x, y=y), own_names, point.encode(x=x, y=y), height=250)


def _batches() -> Any:
    x = alt.X(
        "batch:Q",
        title="sequences in the batch",
        scale=alt.Scale(type="log", base=2, domain=[1, BATCHES[-1]], nice=False),
        axis=alt.Axis(values=[4**n for n in range(6)], format=","),
    )
    y = alt.Y(
        "rate:Q",
        title="tokens/s of all sequences",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(values=[10**n for n in range(-2, 10)], labelExpr="format(datum.value, ',')"),
    )
    kinds = {BANDWIDTH: "bandwidth", COMPUTE: "compute", BOUND: "decode"}
    curves = (
        alt.Chart(rows("curves"))
        .transform_calculate(as_=BANDWIDTH, calculate="datum.batch * datum.bandwidth / datum.read")
        .transform_calculate(as_=COMPUTE, calculate="datum.batch * datum.peak / datum.flops")
        .transform_calculate(as_=BOUND, calculate=f"min(datum['{BANDWIDTH}'], datum['{COMPUTE}'])")
        .transform_fold(list(kinds), as_=["kind", "rate"])
        .mark_line()
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "kind:N",
                scale=colour_scale(kinds),
                legend=alt.Legend(orient="bottom", symbolType="stroke", symbolStrokeWidth=3),
            ),
            strokeWidth=either(alt.StrokeWidthValue, f"datum.kind === '{BOUND}'", 3.5, 1.5),
            strokeDash=either(alt.StrokeDashValue, f"datum.kind === '{BOUND}'", [1, 0], [5, 4]),
        )
    )
    point = alt.Chart(rows("point")).mark_point(size=140, color=colour("decode"), opacity=1)
    return alt.layer(curves, point.encode(x=x, y=alt.Y("total:Q")), height=200)


def table(data: Data) -> Table:
    """The same step on every accelerator of the catalogue."""
    return Table(
        columns=(
            Column("name", "Accelerator"),
            Column("bandwidth", "Bandwidth", "B/s", "compact"),
            Column("each", "Each sequence, at most", "tokens/s", "sig3"),
            Column("total", "All sequences, at most", "tokens/s", "sig3"),
            Column("limit", "Limit"),
            Column("memory", "Memory", "", "bytes10"),
            Column("fits", "Fits"),
        ),
        rows=data.rows["accelerators"],
    )


def sentence(data: Data) -> str:
    """The bound of the step, what sets it, and whether it could run at all."""
    return (
        "A step of {model_title} for a batch of {sequences|int} reads {bytes_per_step|bytes10}, which takes "
        "one {accelerator_title} at least {step_s|seconds}: at most {tokens_per_s_each|sig3} tokens/s for each "
        "sequence and {tokens_per_s|sig3} for all. The limit is {limit}. What the step needs, "
        "{needed_bytes|bytes10}, {fits} its {memory_bytes|bytes10} of memory." + LIMIT_SENTENCE
    )


def provenance() -> str:
    """Where the measured points are from."""
    record = measured()
    machine = record["machine"]
    points = "; ".join(
        f"{r['model']} in {r['dtype']}, {r['backend']} backend, {format_value(r['tokens_per_s'], 'sig3')} tokens/s, "
        f"{format_value(r['mbu'], 'percent')} of the ceiling from {format_value(r['bandwidth_gb_per_s'], 'sig3')} GB/s"
        for r in record["results"]
    )
    return (
        f"Lines are computed from data sheets. Measured points: minillm on {machine['cores']} cores of an "
        f"{machine['cpu']} (load average {machine['load_average']:.1f}) on {record['date']}: {points}, measured in the "
        f"same run. Repeat it: {record['command']}"
    )


VISUALIZER = Visualizer(
    name="decode-ceiling",
    title="The decode ceiling",
    badge="computed",
    chapters=("3.3",),
    summary="The most tokens/s that a model can decode on an accelerator, by the bytes and the FLOPs of a step.",
    formula=(
        "step time >= max((weights + sequences * context * KV bytes a token) / bandwidth, FLOPs / dense peak); "
        "tokens/s of each sequence <= 1 / step time. Of experts, a step reads those that its tokens choose; of an "
        "embedding that is not the output head as well, it reads next to nothing."
    ),
    inputs=(
        model_choice(),
        Choice(
            "accelerator",
            "Accelerator",
            "h100-sxm",
            {a.slug: a.title for a in reversed(_by_bandwidth())},
            "Bandwidth and dense peak from its data sheet.",
        ),
        Choice(
            "dtype",
            "Weights",
            "native",
            {"native": "as published", "bf16": "bf16", "fp8": "fp8", "int4_g128": "4 bits"},
            "Format of the matrices; tables, head and cache stay in bf16. 4 bits: groups of 128 with scale and zero.",
        ),
        Number("batch", "Batch", "sequences", 1, 1, BATCHES[-1], "Sequences that decode together.", log=True),
        Number("context", "Context", "tokens", 2048, 1, 2**17, "Tokens in the cache of each sequence.", log=True),
    ),
    units={
        "model_title": "",
        "accelerator_title": "",
        "sequences": "sequences",
        "bytes_per_step": "bytes",
        "flops_per_step": "FLOP",
        "step_s": "s",
        "tokens_per_s_each": "tokens/s",
        "tokens_per_s": "tokens/s",
        "limit": "",
        "needed_bytes": "bytes",
        "memory_bytes": "bytes",
        "fits": "",
        **LIMIT_UNITS,
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
)
