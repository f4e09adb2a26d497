"""The gaps between tokens while a long prompt arrives: computed whole in one step, and in chunks beside the others."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import altair as alt
import numpy as np

from visualizers.contract import Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import colour_scale, rows
from visualizers.palette import colour
from visualizers.runs import chunked_run
from visualizers.runs.bundled import MODEL
from visualizers.runs.chunked_run import BUDGETS, DECODERS, PROMPTS, REPEATS, Served

EVERY = (32, 64, 128, 256)  # tokens of a decoding request for one long prompt
WHOLE, CHUNKED = "whole, in one step", "in chunks"
QUIET_STEP, BUSY_STEP = "decode alone", "decode with prefill"
STEP_COLOURS = {QUIET_STEP: "decode", BUSY_STEP: "prefill"}
RUN_COLOURS = {WHOLE: "series-2", CHUNKED: "series-1"}
_TICKS_MS = (1, 2, 5, 10, 20, 50, 100, 200)
_LABEL_ROOM = 20  # pixels above the bars
_FLOOR = 0.003  # of the axis of shares: below one gap of the rarest traffic


def compute(inputs: Mapping[str, Any]) -> Data:
    """Both runs of one workload, and what their gaps amount to at a rate of long prompts."""
    prompt, decoders, every = int(inputs["prompt"]), int(inputs["decoders"]), int(inputs["every"])
    served = {
        WHOLE: chunked_run.run(None, prompt, decoders),
        CHUNKED: chunked_run.run(int(inputs["budget"]), prompt, decoders),
    }
    whole, chunked = (_figures(run, every) for run in served.values())
    compared = [
        a == b
        for one, other in zip(*(run.written for run in served.values()), strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    values = {
        "budget": int(inputs["budget"]),
        "prompt_tokens": prompt,
        "decoders": decoders,
        "every": every,
        "chunks": chunked["prompt_steps"],
        **{f"{name}_whole": value for name, value in whole.items() if name != "prompt_steps"},
        **{f"{name}_chunked": value for name, value in chunked.items() if name != "prompt_steps"},
        "stall_ratio": whole["max"] / whole["p50"],
        "ttft_ratio": chunked["ttft"] / whole["ttft"],
        "compared_tokens": len(compared),
        "same_tokens": sum(compared),
    }
    return Data(
        values,
        {
            "whole": _bars(served[WHOLE]),
            "chunked": _bars(served[CHUNKED]),
            "extent": [
                {
                    "end": round(1e3 * max(run["total"] for run in (whole, chunked)), 3),
                    "ms": round(1e3 * max(run["max"] for run in (whole, chunked)), 3),
                }
            ],
            "first_token": [
                {"run": name, "at": round(1e3 * (run.arrival_s + run.ttft_s), 3), "label": "its first token"}
                for name, run in served.items()
            ],
            "tail": [row for name, run in served.items() for row in _tail(name, run, every)],
            "percentiles": [{"share": 0.5, "name": "P50"}, {"share": 0.01, "name": "P99"}],
            "figures": [
                {"figure": label, "whole": whole[name], "chunked": chunked[name]} for name, label in _LABELS.items()
            ],
        },
    )


_LABELS = {
    "p50": "Gap between tokens, P50",
    "p99": "Gap between tokens, P99",
    "max": "Longest gap",
    "mean": "Mean gap (TPOT)",
    "ttft": "TTFT of the long prompt",
    "total": "All tokens of the run",
}


def _figures(run: Served, every: int) -> dict[str, float]:
    weights = weighted(run, every)
    found = {
        "p50": percentile(weights, 0.5),
        "p99": percentile(weights, 0.99),
        "max": max(gap for gap, _ in weights),
        "mean": sum(gap * weight for gap, weight in weights) / every,
        "ttft": run.ttft_s,
        "total": sum(step.gap_s for step in run.steps),
        "prompt_steps": sum(step.prompt_tokens > 0 for step in run.steps),
    }
    return {name: round(value, 6) for name, value in found.items()}  # to the microsecond


def weighted(run: Served, every: int) -> list[tuple[float, float]]:
    """(gap, how often it comes in ``every`` gaps), the shortest first.

    One long prompt comes in ``every`` gaps, so each gap in which some of it ran comes once; the rest
    are as the run's quiet ones.
    """
    busy = [step.gap_s for step in run.steps if step.prompt_tokens]
    quiet = [step.gap_s for step in run.steps if not step.prompt_tokens]
    each = (every - len(busy)) / len(quiet)
    return sorted([(gap, 1.0) for gap in busy] + [(gap, each) for gap in quiet])


def percentile(weights: Sequence[tuple[float, float]], share: float) -> float:
    """The smallest gap that at least ``share`` of all gaps do not exceed."""
    wanted, seen = share * sum(weight for _, weight in weights), 0.0
    for gap, weight in weights:
        seen += weight
        if seen >= wanted - 1e-9:
            return gap
    return weights[-1][0]


def _bars(run: Served) -> list[dict[str, Any]]:
    """A bar for each gap, as wide as it is high: both are its time."""
    found, start = [], 0.0
    for step in run.steps:
        end = round(start + 1e3 * step.gap_s, 3)
        kind = BUSY_STEP if step.prompt_tokens else QUIET_STEP
        found.append({"start": start, "end": end, "ms": round(end - start, 3), "kind": kind})
        start = end
    return found


def _tail(name: str, run: Served, every: int) -> list[dict[str, Any]]:
    """The share of gaps that are longer than each gap; on a logarithmic axis nothing ends at the floor."""
    weights = weighted(run, every)
    found = [{"run": name, "ms": round(1e3 * weights[0][0], 3), "share": 1.0}]
    left = float(every)
    for gap, weight in weights:
        left -= weight
        found.append({"run": name, "ms": round(1e3 * gap, 3), "share": max(round(left / every, 6), _FLOOR)})
    return found


def figure(data: Data) -> dict[str, Any]:
    """The gaps of both runs along one axis of time, and the shares of long gaps."""
    return _chart()


@cache
def _chart() -> dict[str, Any]:
    charts = (_gaps("whole", WHOLE), _gaps("chunked", CHUNKED), _tail_chart())
    found: dict[str, Any] = alt.vconcat(*charts, spacing=22).resolve_scale(color="independent").to_dict()
    return found


def _gaps(name: str, title: str) -> Any:
    first = title == WHOLE
    x = alt.X(
        "start:Q",
        axis=alt.Axis(title=None if first else "milliseconds", labels=not first, ticks=not first),
        scale=alt.Scale(nice=False),
    )
    y = alt.Y("zero:Q", title=None, axis=alt.Axis(tickCount=3))
    legend = alt.Legend(offset=_LABEL_ROOM) if first else None
    steps = (
        alt.Chart(rows(name))
        .transform_calculate(zero="0")
        .mark_rect(stroke=colour("page"), strokeWidth=0.5)
        .encode(
            x=x, x2="end:Q", y=y, y2="ms:Q", color=alt.Color("kind:N", scale=colour_scale(STEP_COLOURS), legend=legend)
        )
    )
    # Both runs are drawn on the axes of the longer gap and the longer run.
    extent = alt.Chart(rows("extent")).mark_point(opacity=0).encode(x="end:Q", y="ms:Q")
    first_token = alt.Chart(rows("first_token")).transform_filter(f"datum.run === '{title}'").encode(x="at:Q")
    line = first_token.mark_rule(color=colour("text"), strokeDash=[2, 2])
    label = first_token.mark_text(baseline="bottom", fontSize=11).encode(y=alt.value(-2), text="label:N")
    heading = alt.Title(f"{title[0].upper()}{title[1:]}: ms between tokens", offset=8 if first else _LABEL_ROOM)
    return alt.layer(steps, extent, line, label, height=96, title=heading)


def _tail_chart() -> Any:
    x = alt.X(
        "ms:Q",
        title="milliseconds",
        scale=alt.Scale(type="log", domainMin=1, nice=False),
        axis=alt.Axis(values=_TICKS_MS, tickCount=len(_TICKS_MS), labelExpr="format(datum.value, 'd')"),
    )
    y = alt.Y(
        "share:Q",
        title=None,
        scale=alt.Scale(type="log", domain=[_FLOOR, 1], nice=False),
        axis=alt.Axis(values=[0.01, 0.1, 1], format="%"),
    )
    lines = (
        alt.Chart(rows("tail"))
        .mark_line(interpolate="step-after")
        .encode(
            x=x,
            y=y,
            color=alt.Color("run:N", scale=colour_scale(RUN_COLOURS), legend=alt.Legend(symbolType="stroke")),
        )
    )
    ranks = alt.Chart(rows("percentiles"))
    rules = ranks.mark_rule(color=colour("muted"), strokeDash=[2, 2]).encode(y=y)
    names = ranks.mark_text(align="left", baseline="bottom", dx=2, dy=-2, color=colour("muted")).encode(
        x=alt.value(0), y=y, text="name:N"
    )
    return alt.layer(rules, names, lines, height=150, title="Share of gaps that are longer")


def table(data: Data) -> Table:
    """The figures of both runs."""
    return Table(
        (
            Column("figure", "What"),
            Column("whole", "Prompt whole", "", "seconds"),
            Column("chunked", "Prompt in chunks", "", "seconds"),
        ),
        data.rows["figures"],
    )


def sentence(data: Data) -> str:
    """The stall, what chunks make of it, and what they cost."""
    same = data.values["same_tokens"] == data.values["compared_tokens"]
    return (
        "Computed whole, a prompt of {prompt_tokens|int} tokens makes everyone who decodes wait {max_whole|seconds} "
        "for one token, {stall_ratio|sig2} times the usual {p50_whole|seconds}. Under a budget of {budget|int} tokens "
        "a step it runs in {chunks|int} "
        + ("chunk" if data.values["chunks"] == 1 else "chunks")
        + ", no gap is longer than {max_chunked|seconds}, and its own first token comes after {ttft_chunked|seconds} "
        "instead of {ttft_whole|seconds}. With one such prompt in {every|int} tokens, P99 is {p99_whole|seconds} whole "
        "and {p99_chunked|seconds} in chunks. "
        + (
            "All {compared_tokens|int} output tokens are the same."
            if same
            else "Of {compared_tokens|int} output tokens {same_tokens|int} are the same."
        )
    )


def provenance() -> str:
    """On what the runs were made."""
    machine = platform.processor() or platform.machine()
    return (
        f"Model {MODEL} on the NumPy backend, float32, greedy; each step the quickest of {REPEATS} runs, in processor "
        f"time of one thread; {machine}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{datetime.date.today()}."
    )


_PER_RUN = dict.fromkeys(("p50", "p99", "max", "mean", "ttft", "total"), "s")

VISUALIZER = Visualizer(
    name="chunked-prefill",
    title="A long prompt, whole and in chunks",
    badge="run",
    chapters=("6.2", "1.5"),
    summary="The real gaps between tokens while a long prompt arrives, with and without chunked prefill.",
    formula=(
        "chunk = budget - decoding requests; chunks = ceil(prompt / chunk)\n"
        "of N gaps, those in which a part of the prompt ran come once, the others are as the run's quiet ones; "
        "P99 = the smallest gap that 99% of them do not exceed"
    ),
    inputs=(
        Number(
            "budget",
            "Token budget",
            "tokens",
            64,
            BUDGETS[0],
            BUDGETS[-1],
            "The most tokens that a step computes, of the run in chunks.",
            instant="grid",
            stops=BUDGETS,
        ),
        Number(
            "prompt",
            "Arriving prompt",
            "tokens",
            512,
            PROMPTS[0],
            PROMPTS[-1],
            "How long the prompt is that arrives while the others decode.",
            instant="grid",
            stops=PROMPTS,
        ),
        Number(
            "decoders",
            "Decoding",
            "requests",
            4,
            DECODERS[0],
            DECODERS[-1],
            "How many requests decode meanwhile.",
            instant="grid",
            stops=DECODERS,
        ),
        Number(
            "every",
            "Prompt every",
            "tokens",
            64,
            EVERY[0],
            EVERY[-1],
            "How many tokens a decoding request gets for each prompt that arrives: the percentiles hang on it.",
            instant="grid",
            stops=EVERY,
        ),
    ),
    units={
        "budget": "tokens",
        "prompt_tokens": "tokens",
        "decoders": "requests",
        "every": "tokens",
        "chunks": "",
        **{f"{name}_whole": unit for name, unit in _PER_RUN.items()},
        **{f"{name}_chunked": unit for name, unit in _PER_RUN.items()},
        "stall_ratio": "",
        "ttft_ratio": "",
        "compared_tokens": "tokens",
        "same_tokens": "tokens",
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.core.scheduler", "minillm.core.metrics"),
)
