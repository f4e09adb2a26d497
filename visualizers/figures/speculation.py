"""Drafts on the engine: which drafted words are kept, and tokens of a verifying step beside what the formula says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt

from minillm.costs import speculated_tokens
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, rows, spec
from visualizers.levels.lines import end_labels, labelled_ends
from visualizers.levels.words import Look, flow, measured
from visualizers.palette import colour
from visualizers.runs import bundled, speculation_run
from visualizers.runs.bundled import DRAFT_MODEL, MODEL
from visualizers.runs.speculation_run import DRAFTERS, LENGTHS, OUTPUT_TOKENS, PROMPTS, Outcome

TITLES = {"ngram": "n-gram", "suffix": "suffix", "draft": "draft model"}
SHOWN = 36  # output tokens of the first answer that are drawn
PROMPT, OWN, KEPT, STRUCK = "prompt", "the target's own", "drafted and kept", "drafted and struck"
LOOKS = {PROMPT: Look(None, "muted"), OWN: Look(), KEPT: Look("decode"), STRUCK: Look("free", "muted", True)}
MEASURED, FORMULA = "measured", "by formula"
SETTINGS = {
    "greedy": "temperature 0",
    "drawn": "temperature 1, the target's own draws",
    "rejection": "temperature 1, rejection rule",
}


def compute(inputs: Mapping[str, Any]) -> Data:
    """Each drafter at each length, and the formula from what it had accepted of drafts of one token."""
    setting, length, chosen = inputs["setting"], int(inputs["length"]), inputs["drafter"]
    plain = speculation_run.run(setting, None)
    served = {(d, k): speculation_run.run(setting, d, k) for d in DRAFTERS for k in LENGTHS}
    first = {d: served[d, 1].accepted_at[0] for d in DRAFTERS}
    words, steps = _words(served[chosen, length])
    kinds = [word["kind"] for word in words]
    values: dict[str, Any] = {
        "length": length,
        "drafter_title": TITLES[chosen],
        "shown_tokens": kinds.count(KEPT) + kinds.count(OWN),
        "shown_steps": steps,
        "shown_kept": kinds.count(KEPT),
        "shown_struck": kinds.count(STRUCK),
        "tokens": served[chosen, length].tokens_per_draft,
        "predicted": speculated_tokens(first[chosen], length),
        "acceptance": first[chosen],
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
    lines = {
        MEASURED: [(k, served[chosen, k].tokens_per_draft) for k in LENGTHS],
        FORMULA: [(k, speculated_tokens(first[chosen], k)) for k in range(1, LENGTHS[-1] + 1)],
    }
    return Data(
        values,
        {
            "words": words,
            "lines": [
                {"line": name, "k": k, "tokens": round(tokens, 4), "now": name == MEASURED and k == length}
                for name, line in lines.items()
                for k, tokens in line
            ],
            "ends": labelled_ends({name: line[-1] for name, line in lines.items()}, "k", "tokens"),
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


def _words(run: Outcome) -> tuple[list[dict[str, Any]], int]:
    """The first answer with all that was drafted for it, and how many steps its shown tokens took."""
    drafts = {seen.place: seen for seen in run.seen}
    words = [{**measured(bundled.decode([t])), "kind": PROMPT, "group": 0} for t in bundled.encode(PROMPTS[0])]
    place = step = 0
    while place < SHOWN:  # a step is shown whole
        step += 1
        seen = drafts.get(place)
        for node, token_id in enumerate(seen.token_ids if seen else ()):
            kind = KEPT if seen and node in seen.kept else STRUCK
            words.append({**measured(bundled.decode([token_id])), "kind": kind, "group": step})
        place += len(seen.kept) if seen else 0
        if place < len(run.outputs[0]):
            words.append({**measured(bundled.decode([run.outputs[0][place]])), "kind": OWN, "group": step})
        place += 1
    return words, step


def figure(data: Data) -> Spec:
    """The answer with the drafted words in it, and below it what a step yields. Dashes are the formula."""
    return _chart()


@cache
def _chart() -> Spec:
    words = flow("words", LOOKS, title="An answer, and what was drafted for it", legend=[KEPT, STRUCK, OWN])
    return spec(
        alt.concat(words, _lines(), spacing=26, columns=1, align="none").resolve_scale(
            color="independent", fill="independent"
        )
    )


def _lines() -> Any:
    x = alt.X(
        "k:Q",
        title="tokens of a draft, at most",
        scale=alt.Scale(domain=[1, LENGTHS[-1]], nice=False),
        axis=alt.Axis(values=LENGTHS, format="d"),
    )
    y = alt.Y("tokens:Q", title=None, scale=alt.Scale(domainMin=1, zero=False), axis=alt.Axis(tickCount=4))
    lines = alt.Chart(rows("lines"))
    layers = [
        lines.transform_filter(f"datum.line === '{FORMULA}'")
        .mark_line(strokeDash=[5, 4], strokeWidth=1.5, color=colour("muted"))
        .encode(x=x, y=y),
        lines.transform_filter(f"datum.line === '{MEASURED}'").mark_line(color=colour("decode")).encode(x=x, y=y),
        lines.transform_filter("datum.now").mark_point(size=130, color=colour("decode"), opacity=1).encode(x=x, y=y),
        end_labels("ends", x, y, {MEASURED: "decode", FORMULA: "muted"}),
    ]
    return alt.layer(*layers, height=140, title="Tokens of a verifying step, all prompts")


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
    """What came of the drafted words, what a draft brings over all, and that nothing else changed."""
    v = data.values
    if v["same_tokens"] == v["compared_tokens"]:
        same = "All {compared_tokens|int} tokens that came out are those of the run without drafts."
    else:
        same = (
            "Other tokens come out than without drafts ({same_tokens|int} of {compared_tokens|int} are the same), "
            "with the same chances."
        )
    return (
        "Of the words that the drafter ({drafter_title}) guessed for this answer, {shown_kept|int} were kept and "
        "{shown_struck|int} struck: {shown_tokens|int} tokens took {shown_steps|int} steps of the target. Over all "
        "prompts a step that verifies a draft of at most {length|int} yields {tokens|fixed2} tokens; the formula says "
        "{predicted|fixed2}, from the {acceptance|percent} that were kept of drafts of one. " + same
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
    summary="The words that a drafter guesses for an answer, kept or struck by the target, and how many tokens a step "
    "then yields.",
    formula="tokens of a verifying step = (1 - a^(k+1)) / (1 - a), a = accepted share of drafts of one token",
    inputs=(
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
        Choice("drafter", "Drafted by", "draft", TITLES, "What guesses: earlier text, or a smaller model.", more=True),
        Choice(
            "setting", "Decoding", "greedy", SETTINGS, "How tokens are drawn, and how drafts are verified.", more=True
        ),
    ),
    units={
        "length": "tokens",
        "drafter_title": "",
        "shown_tokens": "tokens",
        "shown_steps": "",
        "shown_kept": "tokens",
        "shown_struck": "tokens",
        "tokens": "",
        "predicted": "",
        "acceptance": "",
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
