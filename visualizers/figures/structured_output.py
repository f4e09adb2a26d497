"""What a grammar's mask leaves of the bundled model's next token, while it writes an output token by token.

Speeds in the text are from ``benchmarks/grammar_mask.py``; ``structured_output.json`` holds what it printed, with
machine and date.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import altair as alt
import numpy as np

from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, either, rows, spec
from visualizers.levels.links import linked, linker
from visualizers.levels.words import Look, flow
from visualizers.levels.words import measured as measured_word
from visualizers.palette import colour
from visualizers.runs.next_token import six_digits
from visualizers.runs.structured_run import GRAMMARS, MAX_TOKENS, MODEL, Moment, moments

MEASURED = "person"  # the schema of the benchmark that the text speaks of
STRUCK, NOW = "forbidden", "drawn now"
FREE, FORCED, LATER = "chosen", "no alternative", "later"
LOOKS = {
    FREE: Look("decode"),
    FORCED: Look("free"),
    STRUCK: Look(None, "muted", struck=True),
    NOW: Look("kv", cursor=True),
    LATER: Look(None, "free"),
}
ENGINES = {"own": "minillm", "library": "llguidance"}


@cache
def measured() -> dict[str, Any]:
    """What the benchmark printed on some machine, with its date."""
    file = resources.files("visualizers.figures") / "structured_output.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def compute(inputs: Mapping[str, Any]) -> Data:
    """The moment before a token is drawn, and how many tokens were allowed at each."""
    found = moments(inputs["grammar"])
    at = min(int(inputs["written"]), len(found) - 1)
    now = found[at]
    own = max(now.tokens, key=lambda token: token.before * (not token.is_many))
    best = max(now.tokens, key=lambda token: token.after * (not token.is_many))
    return Data(
        values={
            "so_far": now.so_far or "nothing",
            "written_tokens": at,
            "vocabulary": now.vocabulary,
            "allowed": now.num_allowed,
            "allowed_by_grammar": now.num_allowed_by_grammar,
            "kept_mass": six_digits(now.kept_mass),
            "removed_mass": six_digits(1 - now.kept_mass),
            "own_token": own.text,
            "own_before": six_digits(own.before),
            "own_after": six_digits(own.after),
            "best_token": best.text,
            "best_before": six_digits(best.before),
            "best_after": six_digits(best.after),
            "tokens_left": now.tokens_left,
            "tokens_to_finish": now.tokens_to_finish,
            "open_rules": now.depth,
            "next_words": f"“{now.drawn}” is drawn" if now.drawn else "the output is over",
            "output_tokens": len(found) - 1,
            "forced_tokens": sum(moment.num_allowed == 1 for moment in found[:-1]),
            **_speeds(),
        },
        rows={
            "tokens": [
                {
                    "rank": rank,
                    "token": token.text,
                    "before": six_digits(token.before),
                    "after": six_digits(token.after),
                    "verdict": "allowed" if token.is_allowed else "forbidden",
                }
                for rank, token in enumerate(now.tokens)
            ],
            "room": [{"share": 1.4 * max(six_digits(max(t.before, t.after)) for t in now.tokens)}],
            "words": _words(found, at, "" if own.is_allowed else own.text),
            "steps": [_step(index, moment, index == at) for index, moment in enumerate(found)],
        },
    )


def _words(found: Sequence[Moment], at: int, forbidden: str) -> list[dict[str, Any]]:
    """The output token by token, with the cursor before the one that is drawn at step ``at``."""
    words = []
    for index, moment in enumerate(found):
        if index == at and forbidden:
            words.append({**measured_word(f" {forbidden}"), "kind": STRUCK, "group": index})
        kind = NOW if index == at else LATER if index > at else FORCED if moment.num_allowed == 1 else FREE
        text = moment.drawn or ("end" if index == len(found) - 1 else "")
        words.append({**measured_word(f" {text}"), "kind": kind, "group": index})
    return words


def _step(index: int, moment: Moment, is_now: bool) -> dict[str, Any]:
    return {"step": index, "group": index, "allowed": moment.num_allowed, "from": 0.5, "now": int(is_now)}


def _speeds() -> dict[str, float]:
    """Of the recorded benchmark, in microseconds; compiling in milliseconds."""
    speeds: dict[str, float] = {"measured_vocabulary": measured()["vocabulary"]}
    for name, engine in ENGINES.items():
        (row,) = (r for r in measured()["results"] if (r["schema"], r["engine"]) == (MEASURED, engine))
        speeds[f"{name}_compile_ms"] = row["compile_ms"]
        speeds[f"{name}_first_max_us"] = row["first"]["max_us"]
        speeds[f"{name}_again_median_us"] = row["again"]["median_us"]
        for part in ("median_us", "p99_us", "max_us"):
            speeds[f"{name}_later_{part}"] = row["later"][part]
    return speeds


def figure(data: Data) -> Spec:
    """The text with a cursor, the next token before and after the mask, and how many were allowed at each step."""
    return _chart()


@cache
def _chart() -> Spec:
    """The chart, which is the same in every state: built once."""
    shade = either(alt.ColorValue, "datum.now", colour("kv"), colour("free"))
    words = flow("words", LOOKS, title="Written, and what is next", legend=[FREE, FORCED, NOW, STRUCK])
    steps = (
        alt.Chart(rows("steps"), height=80, title="Allowed tokens at each step")
        .mark_bar(width={"band": 0.8}, strokeWidth=1.5)
        .encode(
            x=alt.X("step:O", axis=alt.Axis(title=None, labelAngle=0, labelOverlap="greedy")),
            y=alt.Y(
                "allowed:Q",
                scale=alt.Scale(type="log", domainMin=0.5, nice=False),
                axis=alt.Axis(title=None, values=[1, 10, 100, 1000], format=","),
            ),
            y2="from:Q",
            color=shade,
            stroke=linked(),
        )
    )
    share = alt.Scale(nice=False, zero=True)
    order = alt.Y("token:N", sort=alt.EncodingSortField("rank", op="min"), axis=alt.Axis(title=None, labelLimit=110))

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=share, axis=None)

    base = alt.Chart(rows("tokens"), height=alt.Step(24))
    before = base.mark_bar(height={"band": 0.86}, color=colour("free"), opacity=0.35).encode(x=x("before"), y=order)
    after = base.mark_bar(height={"band": 0.46}, color=colour("decode")).encode(x=x("after"), y=order)
    labels = (
        base.transform_calculate(
            edge="max(datum.before, datum.after)",
            share="datum.verdict == 'forbidden' ? 'forbidden' : "
            "format(datum.after, datum.after < 0.0995 ? '.1%' : '.0%')",
        )
        .mark_text(align="left", dx=5, fontSize=11)
        .encode(
            x=x("edge"),
            y=order,
            text="share:N",
            color=either(alt.ColorValue, "datum.verdict == 'allowed'", colour("text"), colour("muted")),
        )
    )
    room = alt.Chart(rows("room")).mark_point(opacity=0).encode(x=x("share"))
    bars = alt.layer(before, after, labels, room, title="Next token: pale before, strong after")
    stack = alt.concat(words, bars, linker(steps, "steps"), spacing=20, columns=1, align="none")
    return spec(stack.resolve_scale(color="independent", fill="independent"))


def table(data: Data) -> Table:
    """The likeliest tokens, and the others together."""
    return Table(
        (
            Column("token", "Token"),
            Column("before", "Model alone", "", "percent1"),
            Column("after", "With the mask", "", "percent1"),
            Column("verdict", "By the grammar"),
        ),
        data.rows["tokens"],
    )


def sentence(data: Data) -> str:
    """What the mask does at this moment."""
    return (
        "Written so far: “{so_far}”. Of {vocabulary|int} tokens {allowed|int} may come next, to which the model alone "
        "gives {kept_mass|percent1} of the probability; the mask takes the rest. The model's own favourite, "
        "“{own_token}”, goes from {own_before|percent1} to {own_after|percent1}; the likeliest that is allowed, "
        "“{best_token}”, from {best_before|percent1} to {best_after|percent1}. {tokens_left|int} "
        "{tokens_left|int?token is:tokens are} left and {tokens_to_finish|int} {tokens_to_finish|int?is:are} enough to "
        "finish, so of the {allowed_by_grammar|int} that the grammar alone allows, {allowed|int} "
        "{allowed|int?stays:stay}: {next_words}. In the whole output {forced_tokens|int} of {output_tokens|int} "
        "tokens had no alternative."
    )


def provenance() -> str:
    """Whose logits these are, and where the speeds are from."""
    record = measured()
    return (
        f"The model {MODEL} on the NumPy backend in float32, temperature 1; {platform.machine()}, "
        f"Python {platform.python_version()}, NumPy {np.__version__}, {datetime.date.today()}. Speeds in the text: "
        f"{record['vocabulary']:,} tokens of {record['model']}, one {record['machine']['cpu']} in processor time on "
        f"{record['date']}, llguidance {record['llguidance']}. Repeat it: {record['command']}"
    )


VISUALIZER = Visualizer(
    name="structured-output",
    title="What the mask leaves",
    badge="run",
    chapters=("10.7",),
    summary="A model writes under a JSON schema, a regular expression or a grammar: which tokens are allowed at each "
    "step, and how much of the model's own probability the mask removes.",
    formula=(
        "a token is allowed if the text so far and the token are the beginning of a text that the grammar matches and "
        "that the tokens left can finish; p = softmax(logits where allowed, else -inf)"
    ),
    inputs=(
        Number(
            "written",
            "Written",
            "tokens",
            21,  # where the grammar leaves three beginnings, and the model would go on otherwise
            0,
            MAX_TOKENS,
            "Tokens of the output so far; the last position is its end.",
            instant="grid",
            play=True,
        ),
        Choice(
            "grammar",
            "Grammar",
            "schema",
            {name: source.title for name, source in GRAMMARS.items()},
            "What the whole output has to match; run live to write your own.",
            more=True,
        ),
    ),
    units={
        **dict.fromkeys(("so_far", "own_token", "best_token", "next_words"), ""),
        **dict.fromkeys(("written_tokens", "vocabulary", "allowed", "allowed_by_grammar", "tokens_left"), "tokens"),
        **dict.fromkeys(("tokens_to_finish", "output_tokens", "forced_tokens", "measured_vocabulary"), "tokens"),
        **dict.fromkeys(("kept_mass", "removed_mass", "own_before", "own_after", "best_before", "best_after"), ""),
        "open_rules": "",
        **{f"{name}_compile_ms": "ms" for name in ENGINES},
        **{f"{name}_first_max_us": "µs" for name in ENGINES},
        **{f"{name}_again_median_us": "µs" for name in ENGINES},
        **{f"{name}_later_{part}": "µs" for name in ENGINES for part in ("median_us", "p99_us", "max_us")},
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.grammar.compiled", "minillm.core.sampling", "minillm.models.decoder"),
)
