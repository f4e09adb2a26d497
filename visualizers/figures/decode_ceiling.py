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
from minillm.costs.arithmetic import maximum, minimum, where
from visualizers.catalogued import LIMIT_SENTENCE, LIMIT_UNITS, context_limit, model_choice
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.formats import format_value
from visualizers.levels.charts import Spec, colour_scale, constant, either, rows, seconds_text, spec
from visualizers.palette import colour

BATCHES = tuple(sorted({2**n for n in range(11)} | {3 * 2**n for n in range(9)}))  # two an octave
NAMED = 7  # the batch, by its place, at which the two bounds are named
PIPES = ("l4", "a100-80gb-sxm", "h100-sxm", "b200")  # drawn beside the chosen one, the narrowest first
WEIGHTS, CACHE, COMPUTE = "weights", "KV cache", "arithmetic, meanwhile"
COLOURS = {WEIGHTS: "weights", CACHE: "kv", COMPUTE: "compute"}
BY_BYTES, BY_FLOPS, BOUND = "if bytes were all", "if arithmetic were all", "at most"
LINES = {BY_BYTES: "bandwidth", BY_FLOPS: "compute", BOUND: "decode"}


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
            **_pipes(model, chosen, dtype, context, batch),
            "curves": (curves := _curves(model, chosen, dtype, context)),
            "point": [{"batch": batch, "rate": batch / step_s}],
            "ends": [
                {"line": BY_BYTES, **curves[NAMED], "below": True},
                {"line": BY_FLOPS, **curves[NAMED], "below": False},
            ],
            "accelerators": [_row(a, model.peak_flops(a, dtype), batch, read, flops, needed) for a in _by_bandwidth()],
        },
    )


def _memory(accelerator: Accelerator) -> float:
    """The bytes that its driver reports, which are more than the data sheet's GB."""
    return accelerator.reported_memory_bytes or accelerator.memory_bytes


def _by_bandwidth() -> list[Accelerator]:
    return sorted(catalog.accelerators().values(), key=lambda a: a.memory_bandwidth)


def _pipes(model: Model, chosen: Accelerator, dtype: str, context: Any, batch: Any) -> dict[str, list[dict[str, Any]]]:
    """A pipe for each of a few accelerators: as high as its bandwidth, and as long as the bytes take. Seconds."""
    drawn = [a for a in _by_bandwidth() if a.slug in PIPES or a == chosen]
    widest = drawn[-1].memory_bandwidth
    read, flops = model.decode_bytes(context, batch, dtype), model.decode_flops(context, batch)
    cached = model.kv_bytes(context, "bf16", batch)
    bytes_rows, names = [], []
    for place, machine in enumerate(drawn):
        half = 0.34 * machine.memory_bandwidth / widest
        weights_s, end_s = (read - cached) / machine.memory_bandwidth, read / machine.memory_bandwidth
        by_flops = flops / model.peak_flops(machine, dtype)
        pipe = {"top": place - half, "bottom": place + half}
        bytes_rows += [
            {"kind": WEIGHTS, "from": 0, "to": weights_s, **pipe},
            {"kind": CACHE, "from": weights_s, "to": end_s, **pipe},
            {"kind": COMPUTE, "from": 0, "to": by_flops, "top": place + 0.42, "bottom": place + 0.48},
        ]
        step_s = maximum(end_s, by_flops)
        names.append({"place": place - 0.44, "name": machine.title, "step": step_s, "chosen": machine == chosen})
    return {"pipes": bytes_rows, "names": names}


def _curves(model: Model, accelerator: Accelerator, dtype: str, context: Any) -> list[dict[str, Any]]:
    """Tokens/s of all sequences at each batch, by either bound and by the lower of both."""
    found = []
    for batch in BATCHES:
        by_bytes = batch * accelerator.memory_bandwidth / model.decode_bytes(context, batch, dtype)
        by_flops = batch * model.peak_flops(accelerator, dtype) / model.decode_flops(context, batch)
        found.append({"batch": batch, BY_BYTES: by_bytes, BY_FLOPS: by_flops, BOUND: minimum(by_bytes, by_flops)})
    return found


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
    """Above: the bytes of a step through the pipes of a few accelerators. Below: tokens/s against the batch."""
    return _chart()


@cache
def _chart() -> Spec:
    """The chart, which is the same in every state: built once, since Altair is slow to check it."""
    return spec(alt.vconcat(_pictures(), _batches(), spacing=26).resolve_scale(color="independent"))


def _pictures() -> Any:
    x = alt.X("from:Q", axis=None, scale=alt.Scale(zero=True, nice=False))
    y = alt.Y("top:Q", axis=None, scale=alt.Scale(reverse=True, nice=False, zero=False, padding=20))
    kind = alt.Color("kind:N", scale=colour_scale(COLOURS), legend=alt.Legend())
    pipes = alt.Chart(rows("pipes")).mark_rect().encode(x=x, x2="to:Q", y=y, y2="bottom:Q", color=kind)
    named = alt.Chart(rows("names")).transform_calculate(
        amount=f"{seconds_text('datum.step')} + ' · ' + format(1 / datum.step, '.3~r') + '/s'",
    )
    ink = either(alt.ColorValue, "datum.chosen", colour("text"), colour("muted"))
    names = named.mark_text(align="left", baseline="bottom", fontWeight=600).encode(
        x=constant(alt.XValue, 0), y=alt.Y("place:Q"), text="name:N", color=ink
    )
    amounts = named.mark_text(align="right", baseline="bottom").encode(
        x=constant(alt.XValue, "width"), y=alt.Y("place:Q"), text="amount:N", color=ink
    )
    title = alt.TitleParams("A step's bytes through a pipe", subtitle="high: bandwidth · long: time")
    return alt.layer(pipes, names, amounts, height=270, title=title)


def _batches() -> Any:
    x = alt.X(
        "batch:Q",
        title="sequences in the batch",
        scale=alt.Scale(type="log", base=2, domain=[1, BATCHES[-1]], nice=False),
        axis=alt.Axis(values=[4**n for n in range(6)], format=","),
    )
    y = alt.Y(
        "rate:Q",
        title=None,
        scale=alt.Scale(type="log"),
        axis=alt.Axis(
            values=[10**n for n in range(-2, 10)], labelExpr="format(datum.value, datum.value < 1e4 ? ',' : '~s')"
        ),
    )
    ink = alt.Color("line:N", scale=colour_scale(LINES), legend=None)
    curves = alt.Chart(rows("curves")).transform_fold(list(LINES), as_=["line", "rate"])
    is_bound = f"datum.line === '{BOUND}'"
    lines = curves.mark_line().encode(
        x=x,
        y=y,
        color=ink,
        strokeWidth=either(alt.StrokeWidthValue, is_bound, 3.5, 1.5),
        strokeDash=either(alt.StrokeDashValue, is_bound, [1, 0], [5, 4]),
    )
    ends = alt.Chart(rows("ends")).transform_calculate(rate="datum[datum.line]")
    over = ends.transform_filter("!datum.below").mark_text(align="left", baseline="bottom", dx=4, dy=-7)
    under = ends.transform_filter("datum.below").mark_text(align="left", baseline="top", dx=8, dy=7)
    names = alt.layer(*(mark.encode(x=x, y=y, color=ink, text="line:N") for mark in (over, under)))
    point = alt.Chart(rows("point")).mark_point(size=140, color=colour("decode"), opacity=1)
    layers = (lines, names, point.encode(x=x, y=y))
    return alt.layer(*layers, height=190, title="Tokens/s of all sequences, at most")


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
        Number("batch", "Batch", "sequences", 1, 1, BATCHES[-1], "Sequences that decode together.", log=True),
        Number(
            "context", "Context", "tokens", 2048, 1, 2**17, "Tokens in the cache of each sequence.", log=True, more=True
        ),
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
            more=True,
        ),
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
