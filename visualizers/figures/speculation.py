"""Drafts measured on the engine: tokens of a verifying step over the length of drafts, beside what the formula says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt

from minillm.costs import speculated_tokens
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, colour_scale, rows, spec
from visualizers.runs import speculation_run
from visualizers.runs.bundled import DRAFT_MODEL, MODEL
from visualizers.runs.speculation_run import DRAFTERS, LENGTHS, OUTPUT_TOKENS, PROMPTS, Name

TITLES = {"ngram": "n-gram", "suffix": "suffix", "draft": "draft model"}
COLOURS = {title: f"series-{i + 1}" for i, title in enumerate(TITLES.values())}
FULL: tuple[Name, ...] = (
    "ngram",
    "draft",
)  # always draft as many as they may: a suffix's draft is as long as its match is good
SETTINGS = {
    "greedy": "temperature 0",
    "drawn": "temperature 1, the target's own draws",
    "rejection": "temperature 1, rejection rule",
}


def compute(inputs: Mapping[str, Any]) -> Data:
    """Each drafter at each length, and the formula from what it had accepted of drafts of one token."""
    setting, length = inputs["setting"], int(inputs["length"])
    plain = speculation_run.run(setting, None)
    served = {(d, k): speculation_run.run(setting, d, k) for d in DRAFTERS for k in LENGTHS}
    first = {d: served[d, 1].accepted_at[0] for d in DRAFTERS}
    values: dict[str, Any] = {
        "length": length,
        "output_tokens": sum(map(len, plain.outputs)),
        "same_tokens": sum(
            a == b
            for d in DRAFTERS
            for one, other in zip(served[d, length].outputs, plain.outputs, strict=True)
            for a, b in zip(one, other, strict=True)
        ),
        "compared_tokens": len(DRAFTERS) * sum(map(len, plain.outputs)),
    }
    for other in ("drawn", "rejection"):  # what the two ways to verify keep of the draft model's first token
        values[f"kept_{other}"] = speculation_run.run(other, "draft", 1).accepted_at[0]
    for d in DRAFTERS:
        here = served[d, length]
        values |= {
            f"acceptance_{d}": first[d],
            f"tokens_{d}": here.tokens_per_draft,
            f"predicted_{d}": speculated_tokens(first[d], length),
            f"per_step_{d}": here.tokens_per_step,
            f"drafted_share_{d}": here.drafts / here.steps,
            f"kept_share_{d}": here.accepted / here.drafted,
        }
    return Data(
        values,
        {
            "measured": [
                {"k": k, "drafter": TITLES[d], "tokens": round(run.tokens_per_draft, 4)}
                for (d, k), run in served.items()
            ],
            "formula": [
                {"k": k, "drafter": TITLES[d], "tokens": round(speculated_tokens(first[d], k), 4)}
                for d in DRAFTERS
                for k in range(1, LENGTHS[-1] + 1)
            ],
            "depths": [
                {"depth": i + 1, "drafter": TITLES[d], "share": round(share, 4)}
                for d in FULL
                for i, share in enumerate(served[d, LENGTHS[-1]].accepted_at)
            ],
            "powers": [
                {"depth": i, "drafter": TITLES[d], "share": round(first[d] ** i, 4)}
                for d in FULL
                for i in range(1, LENGTHS[-1] + 1)
            ],
            "drafters": [
                {
                    "drafter": TITLES[d],
                    "k": k,
                    "drafts": run.drafts,
                    "share": run.drafts / run.steps,
                    "accepted": run.accepted / run.drafted,
                    "tokens": run.tokens_per_draft,
                    "predicted": speculated_tokens(first[d], k),
                    "per_step": run.tokens_per_step,
                }
                for (d, k), run in served.items()
            ],
        },
    )


def figure(data: Data) -> Spec:
    """Above: tokens of a verifying step. Below: how deep drafts are accepted. Dashes are the formula."""
    return _chart()


@cache
def _chart() -> Spec:
    tokens = _lines("measured", "formula", "k", "tokens", "tokens of a draft, at most", legend=True)
    tokens = tokens.properties(title="Tokens of a step that verifies a draft")
    depths = _lines("depths", "powers", "depth", "share", "place in a draft of 8")
    depths = depths.properties(title="Drafts of which a token so deep is accepted")
    return spec(alt.vconcat(tokens, depths, spacing=24).resolve_scale(color="independent"))


def _lines(measured: str, formula: str, field: str, value: str, title: str, *, legend: bool = False) -> Any:
    share = value == "share"
    x = alt.X(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(domain=[1, LENGTHS[-1]], nice=False),
        axis=alt.Axis(values=LENGTHS, format="d"),
    )
    y = alt.Y(
        f"{value}:Q",
        title=None,
        scale=alt.Scale(domainMin=0 if share else 1, domainMax=1) if share else alt.Scale(domainMin=1, zero=False),
        axis=alt.Axis(format="%", tickCount=5) if share else alt.Axis(tickCount=5),
    )
    colours = alt.Color(
        "drafter:N", scale=colour_scale(COLOURS), legend=alt.Legend(symbolType="stroke") if legend else None
    )
    dashes = alt.Chart(rows(formula)).mark_line(strokeDash=[5, 4], strokeWidth=1.5).encode(x=x, y=y, color=colours)
    runs = alt.Chart(rows(measured)).encode(x=x, y=y, color=colours)
    return alt.layer(dashes, runs.mark_line(), runs.mark_point(), height=170)


def table(data: Data) -> Table:
    """Each drafter at each length."""
    return Table(
        (
            Column("drafter", "Drafter"),
            Column("k", "Draft", "tokens", "int"),
            Column("drafts", "Drafts", "", "int"),
            Column("share", "Steps with a draft", "", "percent"),
            Column("accepted", "Accepted of the drafted", "", "percent"),
            Column("tokens", "Tokens of a verifying step", "", "fixed2"),
            Column("predicted", "By the formula", "", "fixed2"),
            Column("per_step", "Tokens of any step", "", "fixed2"),
        ),
        data.rows["drafters"],
    )


def sentence(data: Data) -> str:
    """What a draft brings, what the formula says, and that nothing else changed."""
    v = data.values
    if v["same_tokens"] == v["compared_tokens"]:
        same = "All {compared_tokens|int} tokens that came out are those of the run without drafts."
    else:
        same = (
            "Other tokens come out than without drafts ({same_tokens|int} of {compared_tokens|int} are the same), "
            "with the same chances."
        )
    return (
        "With drafts of {length|int} the draft model yields {tokens_draft|fixed2} tokens for each step that verifies; "
        "the formula says {predicted_draft|fixed2}, from the {acceptance_draft|percent} that it had accepted of drafts "
        "of one. N-grams yield {tokens_ngram|fixed2} where they find something to draft, which is in "
        "{drafted_share_ngram|percent} of the steps, and {per_step_ngram|fixed2} over all. " + same
    )


def provenance() -> str:
    """What was run."""
    return (
        f"Counted, not timed: {len(PROMPTS)} prompts of {OUTPUT_TOKENS} output tokens each in one batch of the engine, "
        f"target {MODEL}, draft model {DRAFT_MODEL}, NumPy backend in float32. n-gram: the longest of 4 to 1 tokens "
        "that stood in the sequence before; suffix: the longest end seen before, in this sequence or in finished ones."
    )


_PER_DRAFTER = ("acceptance", "tokens", "predicted", "per_step", "drafted_share", "kept_share")

VISUALIZER = Visualizer(
    name="speculation",
    title="What a draft brings",
    badge="run",
    chapters=("7.6",),
    summary="Three drafters on the engine: tokens of each verifying step over the length of drafts, measured and by "
    "formula.",
    formula="tokens of a verifying step = (1 - a^(k+1)) / (1 - a), a = accepted share of drafts of one token",
    inputs=(
        Choice("setting", "Decoding", "greedy", SETTINGS, "How tokens are drawn, and how drafts are verified."),
        Number(
            "length",
            "Draft",
            "tokens",
            4,
            LENGTHS[0],
            LENGTHS[-1],
            "The most tokens that are drafted for a request in a step.",
            instant="grid",
            stops=LENGTHS,
        ),
    ),
    units={
        "length": "tokens",
        "output_tokens": "tokens",
        "same_tokens": "tokens",
        "compared_tokens": "tokens",
        "kept_drawn": "",
        "kept_rejection": "",
        **{f"{name}_{drafter}": "" for drafter in DRAFTERS for name in _PER_DRAFTER},
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.speculate.speculator", "minillm.speculate.accept", "minillm.costs.speculation"),
)
