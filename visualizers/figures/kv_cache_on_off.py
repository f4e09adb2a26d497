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
from visualizers.palette import colour
from visualizers.runs.cache_race import LONGEST, MODEL, PROMPT, REPEATS, race, step_flops, totals

STOPS = (16, 32, 64, 128, 192, 256, 384, 512)
WITH, WITHOUT, ARITHMETIC = "with the cache", "without: every token again", "without, arithmetic alone"


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
    points = []
    for i, lap in enumerate(laps):
        each = {WITHOUT: lap.without_s, WITH: lap.with_s}
        for series, seconds in each.items():
            points.append(
                {"length": lap.length, "series": series, "ms": 1e3 * (sums[series][i] if by_sum else seconds)}
            )
        if not by_sum:
            points.append({"length": lap.length, "series": ARITHMETIC, "ms": 1e3 * flops_without[i] / rate})
    return Data(
        values={
            "show": inputs["show"],
            "length": last.length,
            "with_s": last.with_s,
            "without_s": last.without_s,
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
            "laps": [
                {
                    "length": lap.length,
                    "with_s": lap.with_s,
                    "without_s": lap.without_s,
                    "ratio": lap.without_s / lap.with_s,
                    "flops_ratio": without / one,
                    "difference": lap.max_difference,
                }
                for lap, without, one in zip(laps, flops_without, flops_with, strict=True)
            ],
        },
    )


def figure(data: Data) -> Spec:
    """Two measured lines, and for single tokens what the arithmetic alone would take."""
    return _chart(data.values["show"] == "sum")


@cache
def _chart(by_sum: bool) -> Spec:
    names = {WITHOUT: "compute", WITH: "kv"} | ({} if by_sum else {ARITHMETIC: "compute"})
    title = "milliseconds for all tokens so far" if by_sum else "milliseconds for the next token"
    base = alt.Chart(rows("points")).encode(
        x=alt.X("length:Q", title="tokens in the sequence", scale=alt.Scale(domain=[0, LONGEST], nice=False)),
        y=alt.Y("ms:Q", title=title, scale=alt.Scale(zero=True)),
    )
    lines = base.mark_line(interpolate="linear").encode(
        color=alt.Color(
            "series:N",
            scale=colour_scale(names),
            legend=alt.Legend(symbolType="stroke", symbolSize=220, orient="bottom"),
        ),
        strokeDash=alt.StrokeDash(
            "series:N", scale=alt.Scale(domain=list(names), range=[[1, 0], [1, 0], [3, 5]][: len(names)])
        ),
    )
    # The legend has the lines; the points show where was measured, and hide behind them.
    measured = base.transform_filter(f"datum.series !== '{ARITHMETIC}'").mark_point(size=24, opacity=1)
    points = measured.encode(
        color=either(alt.ColorValue, f"datum.series === '{WITH}'", colour("kv"), colour("compute"))
    )
    return spec(alt.layer(lines, points))


def table(data: Data) -> Table:
    """Each measured length."""
    return Table(
        (
            Column("length", "Tokens", "", "int"),
            Column("with_s", "Next token with the cache", "", "seconds"),
            Column("without_s", "without", "", "seconds"),
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
        "After {length|int} tokens the next one takes {with_s|seconds} with the cache and {without_s|seconds} without: "
        "{time_ratio|sig2} times as long for {flops_ratio|sig3} times the arithmetic. All tokens up to here take "
        "{total_with_s|seconds} against {total_without_s|seconds}. The cache holds {kv_bytes|bytes}. At all "
        "{compared_lengths|int} compared lengths the two ways "
        + ("choose the same token" if same else "chose the same token {same_tokens|int?never:once:# times}")
        + ", and no logit differs by more than {max_difference|sig2} (the largest is {largest_logit|sig3})."
    )


def provenance() -> str:
    """On what the race was run."""
    machine = platform.processor() or platform.machine()
    return (
        f"Model {MODEL} on the NumPy backend, float32, greedy after “{PROMPT}”; at each length the quickest of "
        f"{REPEATS} steps, in processor time of one thread; {machine}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, {datetime.date.today()}."
    )


VISUALIZER = Visualizer(
    name="kv-cache-on-off",
    title="The KV cache, on and off",
    badge="run",
    chapters=("1.6", "1.5"),
    summary="Time of the next token on the real engine, with the KV cache and with every token computed again.",
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
        ),
    ),
    units={
        "show": "",
        "length": "tokens",
        "with_s": "s",
        "without_s": "s",
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
