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
from visualizers.formats import format_value
from visualizers.levels.charts import Spec, colour_scale, constant, rows, spec
from visualizers.palette import colour
from visualizers.runs import chunked_run
from visualizers.runs.bundled import MODEL
from visualizers.runs.chunked_run import BUDGETS, DECODERS, PROMPTS, REPEATS, Served, medians
from visualizers.runs.measure import Times

EVERY = (32, 64, 128, 256)  # tokens of a decoding request for one long prompt
WHOLE, CHUNKED = "whole, in one step", "in chunks"
DECODED, PROMPT = "tokens of streams", "of the new prompt"
TITLES = {WHOLE: "Prompt whole", CHUNKED: "In chunks"}
PARTS = {DECODED: "decode", PROMPT: "prefill"}


def compute(inputs: Mapping[str, Any]) -> Data:
    """Both runs of one workload, repeated, and what their gaps amount to at a rate of long prompts."""
    prompt, decoders, every = int(inputs["prompt"]), int(inputs["decoders"]), int(inputs["every"])
    budget = int(inputs["budget"])
    repeats = {
        WHOLE: chunked_run.repeats(None, prompt, decoders),
        CHUNKED: chunked_run.repeats(budget, prompt, decoders),
    }
    served = {name: medians(runs) for name, runs in repeats.items()}
    whole, chunked = ({key: _times(runs, key, every) for key in _LABELS} for runs in repeats.values())
    compared = [
        a == b
        for one, other in zip(*(run.written for run in served.values()), strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    values = {
        "budget": budget,
        "prompt_tokens": prompt,
        "decoders": decoders,
        "every": every,
        "chunks": sum(step.prompt_tokens > 0 for step in served[CHUNKED].steps),
        **{f"{name}_whole": round(times.median_s, 6) for name, times in whole.items()},
        **{f"{name}_chunked": round(times.median_s, 6) for name, times in chunked.items()},
        "stall_ratio": whole["max"].median_s / whole["p50"].median_s,
        "ttft_ratio": chunked["ttft"].median_s / whole["ttft"].median_s,
        "ttft_differs": whole["ttft"].differs_from(chunked["ttft"]),
        "compared_tokens": len(compared),
        "same_tokens": sum(compared),
    }
    extent = {
        "end": round(1e3 * max(sum(step.gap_s for step in run.steps) for run in served.values()), 3),
        "tokens": prompt + decoders,
    }
    return Data(
        values,
        {
            "whole": _steps(served[WHOLE], decoders),
            "chunked": _steps(served[CHUNKED], decoders),
            "extent": [extent],
            "budget": [{"tokens": budget, "label": f"budget: {budget} tokens a step"}],
            "marks": [
                _marks(name, run, times["max"], extent["end"])
                for (name, run), times in zip(served.items(), (whole, chunked), strict=True)
            ],
            "figures": [
                {
                    "figure": label,
                    "whole": round(whole[name].median_s, 6),
                    "whole_spread": _spread(whole[name]),
                    "chunked": round(chunked[name].median_s, 6),
                    "chunked_spread": _spread(chunked[name]),
                }
                for name, label in _LABELS.items()
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


def _times(runs: Sequence[Served], name: str, every: int) -> Times:
    return Times.of([_figures(run, every)[name] for run in runs])


def _spread(times: Times) -> str:
    return f"{format_value(times.low_s, 'seconds')} to {format_value(times.high_s, 'seconds')}"


def _figures(run: Served, every: int) -> dict[str, float]:
    weights = weighted(run, every)
    return {
        "p50": percentile(weights, 0.5),
        "p99": percentile(weights, 0.99),
        "max": max(gap for gap, _ in weights),
        "mean": sum(gap * weight for gap, weight in weights) / every,
        "ttft": run.ttft_s,
        "total": sum(step.gap_s for step in run.steps),
    }


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


def _steps(run: Served, decoders: int) -> list[dict[str, Any]]:
    """Each step as it lies in time: the tokens that it computes, those of who decodes first."""
    found, start = [], 0.0
    for number, step in enumerate(run.steps):
        end = round(start + 1e3 * step.gap_s, 3)
        found.append(
            {
                "key": number,
                "start": start,
                "end": end,
                "decode": decoders,
                "all": decoders + step.prompt_tokens,
                "prompt": step.prompt_tokens,
            }
        )
        start = end
    return found


def _marks(name: str, run: Served, longest_gap: Times, extent: float) -> dict[str, Any]:
    """The longest gap between two tokens, and the first token of the prompt, in milliseconds of the run."""
    longest = max(range(len(run.steps)), key=lambda i: run.steps[i].gap_s)
    start = 1e3 * sum(step.gap_s for step in run.steps[:longest])
    end = start + 1e3 * run.steps[longest].gap_s
    first = round(1e3 * sum(step.gap_s for step in run.steps[: _last_busy(run)]), 3)
    return {
        "run": name,
        "start": round(start, 3),
        "end": round(end, 3),
        "middle": round((start + end) / 2, 3),
        "gap": f"longest gap {format_value(longest_gap.median_s, 'seconds')}",
        "first": first,
        "late": first > 0.7 * extent,  # its name stands where there is room
    }


def _last_busy(run: Served) -> int:
    """How many steps there were when all of the prompt was computed."""
    return 1 + max(i for i, step in enumerate(run.steps) if step.prompt_tokens)


def figure(data: Data) -> Spec:
    """The steps of both runs along one axis of time: as wide as they last, as high as they have tokens."""
    return _chart()


@cache
def _chart() -> Spec:
    charts = (_run("whole", WHOLE), _run("chunked", CHUNKED))
    return spec(alt.vconcat(*charts, spacing=26).resolve_scale(color="shared", x="shared", y="shared"))


def _run(name: str, title: str) -> Any:
    first = title == WHOLE
    axis = None if first else alt.Axis(title="milliseconds")

    def x(field: str) -> Any:
        return alt.X(f"{field}:Q", axis=axis, scale=alt.Scale(nice=False))

    y_axis = alt.Axis(title=None, tickCount=3)
    steps = alt.Chart(rows(name)).transform_calculate(zero="0")

    def part(low: str, high: str, kind: str) -> Any:
        return (
            steps.transform_calculate(kind=f"'{kind}'")
            .mark_rect(stroke=colour("page"), strokeWidth=0.75)
            .encode(
                x=x("start"),
                x2="end:Q",
                y=alt.Y(f"{low}:Q", axis=y_axis, scale=alt.Scale(nice=False)),
                y2=f"{high}:Q",
                color=alt.Color("kind:N", scale=colour_scale(PARTS), legend=alt.Legend() if first else None),
            )
        )

    # A tick for each token that everyone who decodes gets: where there is none, streams stand still.
    tokens = steps.mark_rule(color=colour("decode"), strokeWidth=1.5).encode(
        x=x("end"), y=constant(alt.YValue, -16), y2=constant(alt.Y2Value, -6)
    )
    marks = alt.Chart(rows("marks")).transform_filter(f"datum.run === '{title}'")
    gap = marks.mark_text(baseline="bottom", fontSize=11, fontWeight="bold").encode(
        x=x("middle"), y=constant(alt.YValue, -18), text="gap:N"
    )
    ended = marks.mark_rule(color=colour("text"), strokeDash=[2, 2]).encode(x=x("first"))
    said = marks.mark_text(
        align=alt.ExprRef("datum.late ? 'right' : 'left'"),
        dx=alt.ExprRef("datum.late ? -4 : 4"),
        baseline="top",
        fontSize=11,
        text="its first token",
    ).encode(x=x("first"), y=constant(alt.YValue, 2))
    # Both runs are drawn on the axes of the larger step and the longer run.
    extent = alt.Chart(rows("extent")).mark_point(opacity=0).encode(x=x("end"), y=alt.Y("tokens:Q", axis=y_axis))
    layers = [extent, part("decode", "all", PROMPT), part("zero", "decode", DECODED), tokens, gap, ended, said]
    if not first:
        budget = alt.Chart(rows("budget")).encode(y=alt.Y("tokens:Q", axis=y_axis))
        layers += [
            budget.mark_rule(color=colour("muted"), strokeDash=[4, 3]),
            budget.mark_text(align="left", baseline="bottom", dx=2, dy=-2, fontSize=11, color=colour("muted")).encode(
                x=constant(alt.XValue, 0), text="label:N"
            ),
        ]
    heading = alt.Title(f"{TITLES[title]}: tokens of each step", frame="group")
    return alt.layer(*layers, height=104, title=heading)


def table(data: Data) -> Table:
    """The figures of both runs."""
    return Table(
        (
            Column("figure", "What"),
            Column("whole", "Prompt whole", "", "seconds"),
            Column("whole_spread", "Half of its repeats"),
            Column("chunked", "Prompt in chunks", "", "seconds"),
            Column("chunked_spread", "Half of its repeats"),
        ),
        data.rows["figures"],
    )


def sentence(data: Data) -> str:
    """The stall, what chunks make of it, and what they cost."""
    v = data.values
    whole = (
        "Computed whole, a prompt of {prompt_tokens|int} tokens makes everyone who decodes wait {max_whole|seconds} "
        "for one token, {stall_ratio|sig2} times the usual {p50_whole|seconds}. "
    )
    same = (
        " All {compared_tokens|int} output tokens are the same."
        if v["same_tokens"] == v["compared_tokens"]
        else " Of {compared_tokens|int} output tokens {same_tokens|int} are the same."
    )
    if v["chunks"] == 1:
        return whole + (
            "A budget of {budget|int} tokens a step takes it in one chunk: both runs do the same work, and where their "
            "times differ ({ttft_chunked|seconds} against {ttft_whole|seconds} to its first token), that is chance."
            + same
        )
    differs = "" if v["ttft_differs"] else ", no more apart than two repeats of one run"
    return whole + (
        "Under a budget of {budget|int} tokens a step it runs in {chunks|int} chunks, no gap is longer than "
        "{max_chunked|seconds}, and its own first token comes after {ttft_chunked|seconds} instead of "
        "{ttft_whole|seconds}" + differs + ". With one such prompt in {every|int} tokens, P99 is {p99_whole|seconds} "
        "whole and {p99_chunked|seconds} in chunks." + same
    )


def provenance() -> str:
    """On what the runs were made."""
    machine = platform.processor() or platform.machine()
    return (
        f"Model {MODEL} on the NumPy backend, float32, greedy; medians of {REPEATS} runs, in processor "
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
            more=True,
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
            more=True,
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
        "ttft_differs": "",
        "compared_tokens": "tokens",
        "same_tokens": "tokens",
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.core.scheduler", "minillm.core.observe.metrics"),
)
