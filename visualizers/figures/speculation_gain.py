"""What speculation gains as the batch grows: by formula on a catalogued accelerator, and measured on our engine.

The measured bars are from ``benchmarks/speculation.py``; ``speculation_gain.json`` holds what it printed, with
machine and date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import altair as alt

from minillm import catalog
from minillm.costs import speculated_tokens, speculative_speedup
from minillm.costs.arithmetic import where
from visualizers.catalogued import LIMIT_SENTENCE, LIMIT_UNITS, accelerator_choice, context_limit, model_choice
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.formats import format_value
from visualizers.levels.charts import Spec, colour_scale, rows, spec
from visualizers.palette import colour

BATCHES = tuple(2**n for n in range(11))
DRAFTERS = {
    **{"ngram": "n-gram", "suffix": "suffix", "draft": "draft model", "tree": "token tree"},
    **{"medusa": "Medusa", "eagle": "EAGLE", "mtp": "MTP"},  # where a record has them
}
MEASURED = {  # the runs that the text speaks of
    **{f"smollm2_{batch}": ("smollm2", "ngram", batch) for batch in (1, 8, 32)},
    **{f"tiny_{batch}": ("tiny", "draft", batch) for batch in (1, 8, 32)},
}
KINDS = {"copy": "copied text", "prose": "free text"}


@cache
def measured() -> dict[str, Any]:
    """What the benchmark printed on some machine, with its date."""
    file = resources.files("visualizers.figures") / "speculation_gain.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def colours() -> dict[str, str]:
    """Of the drafters that the record has."""
    found = {row["drafter"] for row in measured()["results"]}
    return {title: f"series-{i + 1}" for i, (name, title) in enumerate(DRAFTERS.items()) if name in found}


def compute(inputs: Mapping[str, Any]) -> Data:
    """The speed-up at each batch, and the runs of one kind of prompts."""
    model, machine = catalog.model(inputs["model"]), catalog.accelerator(inputs["accelerator"])
    acceptance, length, draft_cost = inputs["acceptance"], inputs["length"], inputs["draft_cost"]

    def gain(batch: Any) -> dict[str, Any]:
        verify = model.verify_cost(machine, length, batch, inputs["context"])
        return {
            "batch": batch,
            "verify": verify,
            "speedup": speculative_speedup(acceptance, length, draft_cost, verify),
        }

    here = gain(inputs["batch"])
    runs = [row for row in measured()["results"] if row["drafter"] != "plain" and row["prompts"] == inputs["prompts"]]
    return Data(
        {
            "model_title": model.title,
            "accelerator_title": machine.title,
            "sequences": inputs["batch"],
            "draft_tokens": length,
            "tokens_per_step": speculated_tokens(acceptance, length),
            "verify_cost": here["verify"],
            "speedup": here["speedup"],
            "verdict": where(here["speedup"] > 1, "faster than", "no faster than"),
            **context_limit(model, inputs["context"]),
            **{f"measured_{name}": _measured(inputs["prompts"], *of) for name, of in MEASURED.items()},
        },
        {
            "gains": [gain(batch) for batch in BATCHES],
            "point": [here],
            "even": [{"speedup": 1}],
            "runs": [
                {
                    "model": row["model"],
                    "batch": f"{row['batch']}",
                    "drafter": DRAFTERS[row["drafter"]],
                    "speedup": round(row["speedup"], 3),
                }
                for row in runs
            ],
            "table": [
                {
                    "model": row["model"],
                    "batch": row["batch"],
                    "drafter": DRAFTERS[row["drafter"]],
                    "accepted": row["acceptance_rate"],
                    "tokens": row["tokens_per_step"],
                    "rate": row["tokens_per_s"],
                    "speedup": row["speedup"],
                }
                for row in runs
            ],
        },
    )


def _measured(prompts: str, model: str, drafter: str, batch: int) -> float:
    """The speed-up of one recorded run."""
    (found,) = (
        row["speedup"]
        for row in measured()["results"]
        if (row["prompts"], row["model"], row["drafter"], row["batch"]) == (prompts, model, drafter, batch)
    )
    return round(float(found), 3)


def figure(data: Data) -> Spec:
    """Above: the speed-up by formula over the batch. Below: what our engine measured with two models."""
    return _chart()


@cache
def _chart() -> Spec:
    charts = (_formula(), _runs("tiny", 110, legend=True), _runs("smollm2", 80))
    return spec(alt.vconcat(*charts, spacing=24).resolve_scale(color="independent"))


def _formula() -> Any:
    x = alt.X(
        "batch:Q",
        title="sequences in the batch",
        scale=alt.Scale(type="log", base=2, domain=[1, BATCHES[-1]], nice=False),
        axis=alt.Axis(values=[4**n for n in range(6)], format=","),
    )
    y = alt.Y("speedup:Q", title=None, scale=alt.Scale(domainMin=0), axis=alt.Axis(tickCount=5))
    even = alt.Chart(rows("even")).mark_rule(color=colour("muted"), strokeDash=[3, 3]).encode(y=y)
    line = alt.Chart(rows("gains")).mark_line(color=colour("draft")).encode(x=x, y=y)
    point = alt.Chart(rows("point")).mark_point(size=140, color=colour("draft"), opacity=1).encode(x=x, y=y)
    return alt.layer(even, line, point, height=170, title="Tokens/s over plain decoding, by formula")


def _runs(model: str, height: int, *, legend: bool = False) -> Any:
    x = alt.X("speedup:Q", title=None, scale=alt.Scale(domainMin=0), axis=alt.Axis(tickCount=6))
    y = alt.Y("batch:N", title=None, sort=None)
    bars = (
        alt.Chart(rows("runs"))
        .transform_filter(f"datum.model === '{model}'")
        .mark_bar(height=5)
        .encode(
            x=x,
            y=y,
            yOffset=alt.YOffset("drafter:N", sort=list(DRAFTERS.values())),
            color=alt.Color("drafter:N", scale=colour_scale(colours()), legend=alt.Legend() if legend else None),
        )
    )
    even = alt.Chart(rows("even")).mark_rule(color=colour("muted"), strokeDash=[3, 3]).encode(x=x)
    return alt.layer(bars, even, height=height, title=f"The same, measured: {model}, by batch")


def table(data: Data) -> Table:
    """The measured runs."""
    return Table(
        (
            Column("model", "Model"),
            Column("batch", "Batch", "sequences", "int"),
            Column("drafter", "Drafter"),
            Column("accepted", "Accepted of the drafted", "", "percent"),
            Column("tokens", "Tokens a step", "", "fixed2"),
            Column("rate", "All sequences", "tokens/s", "sig3"),
            Column("speedup", "Over plain decoding", "", "fixed2"),
        ),
        data.rows["table"],
    )


def sentence(data: Data) -> str:
    """The gain at the chosen batch, and what it is made of."""
    return (
        "Each step yields {tokens_per_step|fixed2} tokens of a sequence instead of one. At a batch of "
        "{sequences|int}, with {model_title} on one {accelerator_title}, the step that verifies "
        "{draft_tokens|int} {draft_tokens|int?token:tokens} of each takes {verify_cost|fixed2} times a plain one, "
        "so the whole runs {speedup|fixed2} times as fast: {verdict} plain decoding." + LIMIT_SENTENCE
    )


def provenance() -> str:
    """Where the measured bars are from."""
    record = measured()
    machine = record["machine"]
    models = {(row["model"], row["backend"]) for row in record["results"]}
    runs = " and ".join(f"{model} on the {backend} backend" for model, backend in sorted(models))
    return (
        f"The line is computed from data sheets. Bars: {runs}, float32, temperature 0, drafts of 4 tokens, "
        f"{record['output_tokens']} output tokens a request, each over the run without drafts in the same process; "
        f"{machine['threads']} thread of an {machine['cpu']} in {machine['clock']} (load average "
        f"{format_value(machine['load_average'], 'fixed1')}) on {record['date']}. Repeat it: {record['command']}"
    )


VISUALIZER = Visualizer(
    name="speculation-gain",
    title="Where the gain ends",
    badge="computed",
    chapters=("7.6",),
    summary="The speed-up of speculation over the batch by the roofline, and measured on our engine at batches of 1, 8 "
    "and 32.",
    formula=(
        "speed-up = tokens of a verifying step / (verify cost + k * draft cost); verify cost = roofline time of a step "
        "with k + 1 tokens of each sequence / of one with 1 token of each"
    ),
    inputs=(
        model_choice("; weights as published, cache in bf16", title="Target"),
        accelerator_choice("Bandwidth and dense peak from its data sheet."),
        Choice("prompts", "Measured on", "copy", KINDS, "What the measured runs wrote."),
        Number(
            "acceptance",
            "Acceptance",
            "",
            0.7,
            0,
            1,
            "The chance that a drafted token is accepted if the one before it was.",
            step=0.05,
            integer=False,
        ),
        Number("length", "Draft", "tokens", 4, 1, 16, "Tokens drafted for each sequence in a step."),
        Number(
            "draft_cost",
            "Cost of a drafted token",
            "",
            0.1,
            0,
            0.5,
            "Time to draft one, over that of a plain step of the target: 0 for n-grams.",
            step=0.01,
            integer=False,
        ),
        Number("batch", "Batch", "sequences", 1, 1, BATCHES[-1], "Sequences that decode together.", log=True),
        Number("context", "Context", "tokens", 512, 1, 2**17, "Tokens in the cache of each sequence.", log=True),
    ),
    units={
        "model_title": "",
        "accelerator_title": "",
        "sequences": "sequences",
        "draft_tokens": "tokens",
        "tokens_per_step": "",
        "verify_cost": "",
        "speedup": "",
        "verdict": "",
        **LIMIT_UNITS,
        **{f"measured_{name}": "" for name in MEASURED},
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.costs.speculation", "minillm.costs.roofline"),
)
