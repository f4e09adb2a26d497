"""What temperature, top-k, top-p and min-p leave of the bundled model's real next-token distribution."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt
import numpy as np

from visualizers.contract import Column, Data, Number, Table, Text, Visualizer
from visualizers.levels.charts import Spec, colour_scale, either, rows, spec
from visualizers.palette import colour
from visualizers.runs.next_token import MAX_CHARACTERS, MODEL, SHOWN, cut, entropy_bits, logits_after

PROMPT = "We must"
BEFORE, AFTER = "the model's own", "what is drawn from"
KEPT = "kept"
CUTS = ("cut by top-k", "cut by top-p", "cut by min-p")


def compute(inputs: Mapping[str, Any]) -> Data:
    """The distribution after the prompt, before and after the transforms."""
    found = logits_after(inputs["prompt"])
    own = found.probabilities(1.0)
    scaled = found.probabilities(inputs["temperature"])
    left = cut(scaled, int(inputs["top_k"]), inputs["top_p"], inputs["min_p"])
    final = np.zeros(len(own))
    final[: left.after_min_p] = left.final
    ends = (left.after_min_p, left.after_top_p, left.after_top_k, len(scaled))
    reached = [0.0, *(_rounded(scaled[:end].sum()) for end in ends[:3]), 1.0]
    parts = (KEPT, *reversed(CUTS))
    tokens = [
        {"rank": i + 1, "token": text, "before": _rounded(own[i]), "after": _rounded(final[i])}
        for i, text in enumerate(found.texts)
    ]
    others = len(own) - SHOWN
    tokens.append(
        {
            "rank": SHOWN + 1,
            "token": f"{others:,} others",
            "before": _rounded(own[SHOWN:].sum()),
            "after": _rounded(final[SHOWN:].sum()),
        }
    )
    return Data(
        values={
            "prompt_text": inputs["prompt"],
            "prompt_tokens": found.prompt_tokens,
            "vocabulary": len(own),
            "after_top_k": left.after_top_k,
            "after_top_p": left.after_top_p,
            "candidates": left.after_min_p,
            "kept_mass": reached[1],
            "top_token": found.texts[0],
            "top_probability_before": _rounded(own[0]),
            "top_probability": _rounded(left.final[0]),
            "entropy_before_bits": _rounded(entropy_bits(own)),
            "entropy_bits": _rounded(entropy_bits(left.final)),
        },
        rows={
            "tokens": tokens,
            "mass": [
                {"part": part, "from": reached[i], "to": reached[i + 1]}
                for i, part in enumerate(parts)
                if reached[i + 1] > reached[i]
            ],
        },
    )


def _rounded(x: float) -> float:
    """Six digits: what a figure of thousands of states needs of a probability."""
    return float(f"{x:.6g}")


def figure(data: Data) -> Spec:
    """Where the probability goes, and each token's share before and after."""
    return _chart()


@cache
def _chart() -> Spec:
    """The chart, which is the same in every state: built once."""
    names = {KEPT: "decode", CUTS[2]: "series-4", CUTS[1]: "series-2", CUTS[0]: "series-7"}
    share = alt.Scale(domain=[0, 1], nice=False)
    mass = (
        alt.Chart(rows("mass"), height=22, title="Probability at this temperature")
        .mark_rect()
        .encode(
            x=alt.X("from:Q", scale=share, axis=None),
            x2="to:Q",
            color=alt.Color("part:N", scale=colour_scale(names), legend=alt.Legend(offset=6)),
        )
    )
    order = alt.Y("token:N", sort=alt.EncodingSortField("rank", op="min"), axis=alt.Axis(title=None, labelLimit=110))

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=share, axis=alt.Axis(format=".0%", title=None))

    base = alt.Chart(rows("tokens"), height=alt.Step(26))
    before = base.mark_bar(height={"band": 0.86}, color=colour("free"), opacity=0.35).encode(x=x("before"), y=order)
    after = base.mark_bar(height={"band": 0.46}, color=colour("decode")).encode(x=x("after"), y=order)
    labels = (
        base.transform_calculate(
            edge="max(datum.before, datum.after)",
            share="datum.after > 0 ? format(datum.after, datum.after < 0.0995 ? '.1%' : '.0%') : 'cut'",
        )
        .mark_text(align="left", dx=5, fontSize=11)
        .encode(
            x=x("edge"),
            y=order,
            text="share:N",
            color=either(alt.ColorValue, "datum.after > 0", colour("text"), colour("muted")),
        )
    )
    title = alt.TitleParams("Next token: pale before, strong after", subtitle="· is a space")
    bars = alt.layer(before, after, labels, title=title)
    return spec(alt.vconcat(mass, bars, spacing=18))


def table(data: Data) -> Table:
    """The first tokens, and all others together."""
    return Table(
        (
            Column("rank", "Rank", "", "int"),
            Column("token", "Token"),
            Column("before", BEFORE.capitalize(), "", "percent1"),
            Column("after", AFTER.capitalize(), "", "percent1"),
        ),
        data.rows["tokens"],
    )


def sentence(data: Data) -> str:
    """How far each step cuts, and what that does to the distribution."""
    return (
        "After “{prompt_text}” the model gives “{top_token}” {top_probability_before|percent1}. Of {vocabulary|int} "
        "tokens {after_top_k|int} are left after top-k, {after_top_p|int} after top-p and {candidates|int} after "
        "min-p: they hold {kept_mass|percent1} of the probability at this temperature. “{top_token}” is then drawn "
        "with {top_probability|percent1}, and the entropy goes from {entropy_before_bits|fixed2} to "
        "{entropy_bits|fixed2} bits."
    )


def provenance() -> str:
    """Whose logits these are."""
    return (
        f"One prefill of the model {MODEL} on the NumPy backend in float32; {platform.machine()}, "
        f"Python {platform.python_version()}, NumPy {np.__version__}, {datetime.date.today()}."
    )


VISUALIZER = Visualizer(
    name="sampling",
    title="From logits to candidates",
    badge="run",
    chapters=("1.7",),
    summary="The model's real next-token probabilities, and what temperature, top-k, top-p and min-p leave of them.",
    formula=(
        "p = softmax(logits / temperature); keep the top_k most likely; normalize; keep the shortest head that "
        "reaches top_p; keep p >= min_p * highest p; normalize"
    ),
    inputs=(
        Text("prompt", "Prompt", PROMPT, MAX_CHARACTERS, "What the model goes on from; run live to change it."),
        Number(
            "temperature",
            "Temperature",
            "",
            1.0,
            0.0,
            2.0,
            "Divides the logits: below 1 sharper, above 1 flatter, 0 is greedy.",
            words={0: "0, greedy"},
            step=0.1,
            integer=False,
            instant="grid",
        ),
        Number(
            "top_k",
            "Top-k",
            "tokens",
            0,
            0,
            40,
            "Keep the k most likely; 0 keeps all.",
            words={0: "off"},
            instant="grid",
            stops=(0, 1, 3, 10, 40),
        ),
        Number(
            "top_p",
            "Top-p",
            "",
            0.9,
            0.1,
            1.0,
            "Keep the shortest head that reaches this probability; 1 keeps all.",
            words={1: "off"},
            integer=False,
            instant="grid",
            stops=(0.1, 0.5, 0.8, 0.9, 0.95, 1.0),
        ),
        Number(
            "min_p",
            "Min-p",
            "",
            0.0,
            0.0,
            0.3,
            "Keep tokens with at least this share of the highest probability; 0 keeps all.",
            words={0: "off"},
            integer=False,
            instant="grid",
            stops=(0.0, 0.02, 0.1, 0.3),
        ),
    ),
    units={
        "prompt_text": "",
        "prompt_tokens": "tokens",
        "vocabulary": "tokens",
        "after_top_k": "tokens",
        "after_top_p": "tokens",
        "candidates": "tokens",
        "kept_mass": "",
        "top_token": "",
        "top_probability_before": "",
        "top_probability": "",
        "entropy_before_bits": "bits",
        "entropy_bits": "bits",
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.core.sampling", "minillm.ops.numpy_ops", "minillm.models.decoder"),
)
