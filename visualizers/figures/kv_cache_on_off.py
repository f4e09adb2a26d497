"""The time of the next token with the KV cache and without it, measured on the engine's own NumPy backend."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt
import numpy as np

from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, colour_scale, either, rows, spec
from visualizers.levels.lines import end_labels, labelled_ends
from visualizers.levels.links import linked, linker
from visualizers.levels.words import fitting, measured, visible
from visualizers.palette import colour
from visualizers.runs.cache_race import MODEL, PROMPT, REPEATS, Race, race, step_flops, totals
from visualizers.runs.measure import Times

STOPS = (16, 32, 64, 128, 192, 256, 384, 512)
WITH, WITHOUT, ARITHMETIC = "with the cache", "without: every row again", "its arithmetic alone"
COLOURS = {WITHOUT: "compute", ARITHMETIC: "muted", WITH: "kv"}
NEW, AGAIN, LATER = "computed in any case", "again, without the cache", ""
DRAWN = 12  # tokens of the text whose rows are drawn


def compute(inputs: Mapping[str, Any]) -> Data:
    """The race up to a length."""
    runner = race()
    laps = runner.reach(int(inputs["length"]))
    spec, last = runner.spec, laps[-1]
    flops_without = [step_flops(spec, lap.length, 0) for lap in laps]
    flops_with = [step_flops(spec, 1, lap.length - 1) for lap in laps]
    rate = max(flops / lap.without_s for flops, lap in zip(flops_without, laps, strict=True))
    sums = {WITH: totals(laps, "with_s"), WITHOUT: totals(laps, "without_s")}
    by_sum = inputs["show"] == "sum"
    bands, points = [], []
    for i, lap in enumerate(laps):
        each = {WITHOUT: lap.without_s, WITH: lap.with_s}
        for series, seconds in each.items():
            points.append(
                {"length": lap.length, "series": series, "ms": 1e3 * (sums[series][i] if by_sum else seconds)}
            )
        if not by_sum:
            for series, times in ((WITHOUT, lap.whole), (WITH, lap.cached)):
                bands.append(
                    {"length": lap.length, "series": series, "low": 1e3 * times.low_s, "high": 1e3 * times.high_s}
                )
            points.append({"length": lap.length, "series": ARITHMETIC, "ms": 1e3 * flops_without[i] / rate})
    return Data(
        values={
            "show": inputs["show"],
            "length": last.length,
            "with_s": last.with_s,
            "without_s": last.without_s,
            "spread_with": _spread(last.cached),
            "spread_without": _spread(last.whole),
            "apart": "more than" if last.whole.differs_from(last.cached) else "no more than",
            "repeats": REPEATS,
            "rows_without": last.length,
            "rows_total_without": last.length * (last.length + 1) // 2,
            "time_ratio": last.without_s / last.with_s,
            "total_with_s": sums[WITH][-1],
            "total_without_s": sums[WITHOUT][-1],
            "total_ratio": sums[WITHOUT][-1] / sums[WITH][-1],
            "flops_with": flops_with[-1],
            "flops_without": flops_without[-1],
            "flops_ratio": flops_without[-1] / flops_with[-1],
            "flops_per_s": rate,
            "max_difference": max(lap.max_difference for lap in laps),
            "largest_logit": max(lap.largest_logit for lap in laps),
            "compared_lengths": len(laps),
            "same_tokens": sum(lap.same_token for lap in laps),
            "kv_bytes": last.length * runner.kv_bytes_per_token,
        },
        rows={
            "points": points,
            "bands": bands,
            "ends": _ends(points),
            "cells": _cells(runner),
            "laps": [
                {
                    "length": lap.length,
                    "with_s": lap.with_s,
                    "without_s": lap.without_s,
                    "spread": f"{_spread(lap.cached):.0%}, {_spread(lap.whole):.0%}",
                    "ratio": lap.without_s / lap.with_s,
                    "flops_ratio": without / one,
                    "difference": lap.max_difference,
                }
                for lap, without, one in zip(laps, flops_without, flops_with, strict=True)
            ],
        },
    )


def _spread(times: Times) -> float:
    """Between the quartiles, as a share of the median."""
    return (times.high_s - times.low_s) / times.median_s


def _ends(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where the lines are named: at their ends, and the dotted one from its middle on, below."""
    ends = {p["series"]: (p["length"], p["ms"]) for p in points if p["series"] != ARITHMETIC}
    dotted = [p for p in points if p["series"] == ARITHMETIC]
    names = [{**end, "side": "end", "below": False} for end in labelled_ends(ends, "length", "ms")]
    for point in dotted[len(dotted) // 2 : len(dotted) // 2 + 1]:
        names.append(
            {"line": ARITHMETIC, "length": point["length"], "ms": point["ms"], "below": True, "side": "middle"}
        )
    return names


def _cells(runner: Race) -> list[dict[str, Any]]:
    """A row of cells for each step: the tokens that it computes, and those that it would compute again."""
    words = runner.words(DRAWN)
    cells = []
    for known in range(runner.prompt_tokens, DRAWN + 1):
        step = "prompt" if known == runner.prompt_tokens else f"after {visible(words[known - 1])}"
        for place in range(DRAWN):
            is_new = place == known - 1 or known == runner.prompt_tokens
            kind = LATER if place >= known else NEW if is_new else AGAIN
            cells.append(
                {"step": f"{known} · {step}", "token": place + 1, "kind": kind, "columns": DRAWN}
                | {"group": place, **measured(words[place] if kind else "")}
            )
    return cells


def figure(data: Data) -> Spec:
    """The rows that each step computes, and below how long the next token takes with its spread."""
    return _chart(data.values["show"] == "sum")


@cache
def _chart(by_sum: bool) -> Spec:
    stack = alt.concat(_rows(), _times(by_sum), spacing=24, columns=1, align="none")
    return spec(stack.resolve_scale(color="independent", fill="independent"))


def _rows() -> Any:
    kinds = {NEW: "compute", AGAIN: "kv", LATER: "page"}
    x = alt.X("token:O", axis=None)
    y = alt.Y("step:O", sort=None, axis=alt.Axis(title=None, labelLimit=110))
    base = alt.Chart(rows("cells"))
    cells = base.mark_rect(cornerRadius=2, strokeWidth=1.5).encode(
        x=x,
        y=y,
        color=alt.Color("kind:N", scale=colour_scale(kinds), legend=alt.Legend(values=[NEW, AGAIN], columns=1)),
        fillOpacity=either(alt.FillOpacityValue, f"datum.kind === '{NEW}'", 0.75, 0.3),
        stroke=linked(),
    )
    words = fitting(base).mark_text(fontSize=11).encode(x=x, y=y, text="fits:N")
    return alt.layer(linker(cells, "cells"), words, height=alt.Step(19), title="Rows that each step computes")


def _times(by_sum: bool) -> Any:
    title = "Milliseconds for all tokens so far" if by_sum else "Milliseconds for the next token"
    x = alt.X("length:Q", title="tokens in the sequence", scale=alt.Scale(domainMin=0, nice=False))
    y = alt.Y("ms:Q", title=None, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=4))
    inks = alt.Color("series:N", scale=colour_scale(COLOURS), legend=None)
    base = alt.Chart(rows("points")).encode(x=x, y=y, color=inks)
    measured = base.transform_filter(f"datum.series !== '{ARITHMETIC}'")
    dotted = base.transform_filter(f"datum.series === '{ARITHMETIC}'")
    layers = [measured.mark_line(), measured.mark_point(size=22, opacity=1), _names(x, y)]
    if not by_sum:
        band = alt.Chart(rows("bands")).mark_area(opacity=0.3)
        layers[:0] = [
            band.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=inks),
            dotted.mark_line(strokeDash=[3, 5], strokeWidth=1.5),
        ]
    return alt.layer(*layers, height=200, title=title)


def _names(x: Any, y: Any) -> Any:
    ends = end_labels("ends", x, y, COLOURS).transform_filter("datum.side === 'end'")
    middle = alt.Chart(rows("ends")).transform_filter("datum.side === 'middle'")
    text = middle.mark_text(align="left", baseline="top", dx=4, dy=6, fontSize=12, color=colour("muted"))
    return alt.layer(ends, text.encode(x=x, y=y, text="line:N"))


def table(data: Data) -> Table:
    """Each measured length."""
    return Table(
        (
            Column("length", "Tokens", "", "int"),
            Column("with_s", "Next token with the cache", "", "seconds"),
            Column("without_s", "without", "", "seconds"),
            Column("spread", "Spread with, without"),
            Column("ratio", "Time, ratio", "", "sig3"),
            Column("flops_ratio", "FLOPs, ratio", "", "sig3"),
            Column("difference", "Largest difference of a logit", "", "sig2"),
        ),
        data.rows["laps"],
    )


def sentence(data: Data) -> str:
    """What the cache saves at this length, what it takes, and that it changes nothing."""
    same = data.values["same_tokens"] == data.values["compared_lengths"]
    return (
        "After {length|int} tokens the next one takes {with_s|seconds} with the cache, for one row, and "
        "{without_s|seconds} without, for {rows_without|int}: {time_ratio|sig2} times as long for {flops_ratio|sig3} "
        "times the arithmetic. These are medians of {repeats|int}, whose middle halves spread by "
        "{spread_with|percent} and {spread_without|percent}: the difference is {apart} that. All tokens up to "
        "here take {total_with_s|seconds} against {total_without_s|seconds}. The cache holds {kv_bytes|bytes}. At "
        "all {compared_lengths|int} compared lengths the two ways "
        + ("choose the same token" if same else "chose the same token {same_tokens|int?never:once:# times}")
        + ", and no logit differs by more than {max_difference|sig2} (the largest is {largest_logit|sig3})."
    )


def provenance() -> str:
    """On what the race was run."""
    machine = platform.processor() or platform.machine()
    return (
        f"Model {MODEL} on the NumPy backend, float32, greedy after “{PROMPT}”; at each length the median of "
        f"{REPEATS} steps, the band between the quartiles, in "
        f"processor time of one thread; {machine}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, {datetime.date.today()}."
    )


VISUALIZER = Visualizer(
    name="kv-cache-on-off",
    title="The KV cache, on and off",
    badge="run",
    chapters=("1.6", "1.5"),
    summary="The rows that each step computes, with the KV cache and with every token again, and the time they take.",
    formula=(
        "with the cache: a step of 1 row that reads n - 1 cached keys and values; without: a step of n rows\n"
        "FLOPs = 2 * weights * rows + layers * 4 * heads * head size * pairs; pairs = n with the cache, "
        "n (n + 1) / 2 without\n"
        "arithmetic alone = FLOPs / the highest FLOP/s of the runs without"
    ),
    inputs=(
        Number(
            "length",
            "Length reached",
            "tokens",
            256,
            STOPS[0],
            STOPS[-1],
            "How far the text has come.",
            instant="grid",
            stops=STOPS,
        ),
        Choice(
            "show",
            "Time of",
            "each",
            {"each": "the next token", "sum": "all tokens so far"},
            "One token grows with the length; the sum of all grows with its square.",
            more=True,
        ),
    ),
    units={
        "show": "",
        "length": "tokens",
        "with_s": "s",
        "without_s": "s",
        **dict.fromkeys(("spread_with", "spread_without", "apart", "repeats"), ""),
        "rows_without": "tokens",
        "rows_total_without": "tokens",
        "time_ratio": "",
        "total_with_s": "s",
        "total_without_s": "s",
        "total_ratio": "",
        "flops_with": "FLOP",
        "flops_without": "FLOP",
        "flops_ratio": "",
        "flops_per_s": "FLOP/s",
        "max_difference": "",
        "largest_logit": "",
        "compared_lengths": "",
        "same_tokens": "",
        "kv_bytes": "bytes",
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.ops.numpy_ops", "minillm.models.decoder"),
)
