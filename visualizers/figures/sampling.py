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
from visualizers.levels.charts import Spec, either, rows, spec
from visualizers.levels.links import linked, linker, setter
from visualizers.palette import colour
from visualizers.runs.next_token import (
    MAX_CHARACTERS,
    MODEL,
    SHOWN,
    Cut,
    Floats,
    cut,
    entropy_bits,
    logits_after,
    six_digits,
)

PROMPT = "We must"
BEFORE, AFTER = "the model's own", "what is drawn from"
TOP_P = (0.1, 0.5, 0.8, 0.9, 0.95, 1.0)
RULES = ("top-k", "top-p", "min-p")
MEASURED_AT = tuple(sorted({*range(1, 11), *(round(2 ** (n / 4)) for n in range(14, 49))}))  # ranks, even on a log axis


def compute(inputs: Mapping[str, Any]) -> Data:
    """The distribution after the prompt, before and after the transforms."""
    found = logits_after(inputs["prompt"])
    own = found.probabilities(1.0)
    scaled = found.probabilities(inputs["temperature"])
    left = cut(scaled, int(inputs["top_k"]), inputs["top_p"], inputs["min_p"])
    final = np.zeros(len(own))
    final[: left.after_min_p] = left.final
    reached = np.cumsum(scaled)
    ranks = [rank for rank in MEASURED_AT if rank < len(own)] + [len(own)]

    def mass(rank: int) -> float:
        return six_digits(min(1.0, reached[rank - 1]))

    tokens = [
        {"rank": i + 1, "group": i + 1, "token": text, "before": six_digits(own[i]), "after": six_digits(final[i])}
        for i, text in enumerate(found.texts)
    ]
    others = len(own) - SHOWN
    tokens.append(
        {
            "rank": SHOWN + 1,
            "group": 0,
            "token": f"{others:,} others",
            "before": six_digits(own[SHOWN:].sum()),
            "after": six_digits(final[SHOWN:].sum()),
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
            "kept_mass": mass(left.after_min_p),
            "top_token": found.texts[0],
            "top_probability_before": six_digits(own[0]),
            "top_probability": six_digits(left.final[0]),
            "entropy_before_bits": six_digits(entropy_bits(own)),
            "entropy_bits": six_digits(entropy_bits(left.final)),
        },
        rows={
            "tokens": tokens,
            "line": [{"key": rank, "group": rank, "rank": rank, "mass": mass(rank)} for rank in ranks],
            "cut": [{"rank": left.after_min_p, "mass": mass(left.after_min_p), "first": 1}],
            "rules": [
                {"rule": rule, "rank": after, "place": 0.06 + 0.12 * place}
                for place, (rule, after, before) in enumerate(_bites(left, len(own)))
                if after < before
            ],
            "stops": [{"top_p": p, "rank": rank, "mass": mass(rank)} for p, rank in _stops(scaled, inputs).items()],
            "room": [
                {"share": 1.14 * float(max(*own[:SHOWN], own[SHOWN:].sum(), *final[:SHOWN], final[SHOWN:].sum()))}
            ],
        },
    )


def _bites(left: Cut, vocabulary: int) -> list[tuple[str, int, int]]:
    """For each rule how many tokens it leaves, and of how many."""
    counts = (vocabulary, left.after_top_k, left.after_top_p, left.after_min_p)
    return [(rule, after, before) for rule, before, after in zip(RULES, counts, counts[1:], strict=False)]


def _stops(scaled: Floats, inputs: Mapping[str, Any]) -> dict[float, int]:
    """For each top-p that can be chosen, the tokens that it leaves: where the cut can stand."""
    return {p: cut(scaled, int(inputs["top_k"]), p, 0).after_top_p for p in TOP_P}


def figure(data: Data) -> Spec:
    """What the likeliest tokens hold together, with the cut, and each token's share before and after."""
    return _chart()


@cache
def _chart() -> Spec:
    """The chart, which is the same in every state: built once."""
    return spec(alt.vconcat(_cumulated(), _bars(), spacing=22))


def _cumulated() -> Any:
    x = alt.X(
        "rank:Q",
        title="tokens, the likeliest first",
        scale=alt.Scale(type="log", base=2, domainMin=1, nice=False),
        axis=alt.Axis(values=[4**n for n in range(7)], format=",", grid=False),
    )
    y = alt.Y(
        "mass:Q", title=None, scale=alt.Scale(domain=[0, 1], nice=False), axis=alt.Axis(format=".0%", tickCount=5)
    )
    line, cuts, rules = alt.Chart(rows("line")), alt.Chart(rows("cut")), alt.Chart(rows("rules"))
    kept = cuts.mark_rect(color=colour("decode"), opacity=0.16).encode(x=alt.X("first:Q"), x2="rank:Q")
    curve = line.mark_line(interpolate="monotone", color=colour("muted"), strokeWidth=2).encode(x=x, y=y)
    dots = (
        line.transform_filter(f"datum.rank <= {SHOWN}")
        .mark_point(size=36, opacity=1, color=colour("muted"), strokeWidth=3)
        .encode(x=x, y=y, stroke=linked())
    )
    edges = rules.mark_rule(color=colour("axis"), strokeDash=[3, 3]).encode(x=x)
    names = rules.mark_text(align="left", dx=5, fontSize=11, color=colour("muted")).encode(
        x=x, y=alt.Y("place:Q"), text="rule:N"
    )
    edge = cuts.mark_rule(color=colour("decode"), strokeWidth=2, cursor="ew-resize").encode(x=x)
    handle = cuts.mark_point(size=240, color=colour("decode"), opacity=1, cursor="ew-resize").encode(x=x, y=y)
    label = (
        cuts.transform_calculate(
            text="format(datum.rank, ',') + ' token' + (datum.rank > 1 ? 's, ' : ', ') + format(datum.mass, '.1%')"
        )
        .transform_calculate(side="datum.rank > 64 ? 'right' : 'left'")
        .mark_text(fontWeight=600, baseline="bottom", dy=-12, fontSize=12)
    )
    sides = [
        label.transform_filter(f"datum.side === '{side}'").mark_text(
            align=side, dx=dx, fontWeight=600, fontSize=12, dy=-2
        )
        for side, dx in (("right", -12), ("left", 12))
    ]
    stops = alt.Chart(rows("stops")).mark_point(
        filled=False, size=70, color=colour("decode"), strokeWidth=1.5, opacity=1, cursor="ew-resize"
    )
    return alt.layer(
        *(kept, edges, names, curve, linker(dots, "line"), edge),
        setter(stops.encode(x=x, y=y), "top_p"),
        handle,
        *(side.encode(x=x, y=y, text="text:N") for side in sides),
        height=190,
        title="What the likeliest tokens hold together",
    )


def _bars() -> Any:
    order = alt.Y("token:N", sort=alt.EncodingSortField("rank", op="min"), axis=alt.Axis(title=None, labelLimit=110))

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=alt.Scale(nice=False, zero=True), axis=None)

    base = alt.Chart(rows("tokens"), height=alt.Step(24))
    before = base.mark_bar(height={"band": 0.86}, color=colour("free"), opacity=0.35, strokeWidth=1.5).encode(
        x=x("before"), y=order, stroke=linked()
    )
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
    room = alt.Chart(rows("room")).mark_point(opacity=0).encode(x=x("share"))
    title = alt.TitleParams("Next token: pale before, strong after", subtitle="· is a space")
    return alt.layer(linker(before, "bars"), after, labels, room, title=title)


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
        Number(
            "top_p",
            "Top-p",
            "",
            0.9,
            0.1,
            1.0,
            "Keep the shortest head that reaches this probability; 1 keeps all. The cut in the chart can be dragged.",
            words={1: "off"},
            integer=False,
            instant="grid",
            stops=TOP_P,
        ),
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
            more=True,
            stops=(0, 1, 3, 10, 40),
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
            more=True,
            stops=(0.0, 0.02, 0.1, 0.3),
        ),
        Text(
            "prompt", "Prompt", PROMPT, MAX_CHARACTERS, "What the model goes on from; run live to change it.", more=True
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
