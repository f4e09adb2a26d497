"""What speculation gains at each batch and each length of drafts, by formula; and what our engine measured.

The measured runs are from ``benchmarks/speculation.py``; ``speculation_gain.json`` holds what it printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

import altair as alt

from minillm import catalog
from minillm.costs import speculated_tokens, speculative_speedup
from minillm.costs.arithmetic import where
from visualizers.catalogued import LIMIT_SENTENCE, LIMIT_UNITS, accelerator_choice, context_limit, model_choice
from visualizers.contract import Column, Data, Number, Table, Visualizer, units
from visualizers.levels.charts import Spec, either, rows, spec
from visualizers.palette import colour
from visualizers.recorded import record, where_and_when

STEM = "speculation_gain"
BATCHES, LENGTHS = tuple(2**n for n in range(11)), (1, 2, 3, 4, 6, 8, 12, 16)
DRAFTERS = {"ngram": "n-gram", "suffix": "suffix", "draft": "draft model", "tree": "token tree"}
KINDS = {"copy": "copied text", "prose": "free text"}
MEASURED = {  # the runs that the text speaks of, on copied text
    f"{model}_{batch}": (model, drafter, batch)
    for model, drafter in (("smollm2", "ngram"), ("tiny", "draft"))
    for batch in (1, 8, 32)
}
COLUMNS = (
    Column("model", "Measured with"),
    Column("text", "Writing"),
    Column("batch", "Batch", "sequences", "int"),
    Column("title", "Drafter"),
    Column("acceptance_rate", "Accepted of the drafted", "", "percent"),
    Column("tokens_per_step", "Tokens a step", "", "fixed2"),
    Column("tokens_per_s", "All sequences", "tokens/s", "sig3"),
    Column("speedup", "Over plain decoding", "", "fixed2"),
)


def compute(inputs: Mapping[str, Any]) -> Data:
    """The speed-up in each cell of the map, at the chosen one, and of the recorded runs."""
    model, machine = catalog.model(inputs["model"]), catalog.accelerator(inputs["accelerator"])
    acceptance, draft_cost = inputs["acceptance"], inputs["draft_cost"]

    def gain(batch: Any, length: Any) -> tuple[Any, Any]:
        verify = model.verify_cost(machine, length, batch, inputs["context"])
        return verify, speculative_speedup(acceptance, length, draft_cost, verify)

    batch, length = inputs["batch"], inputs["length"]
    verify, speedup = gain(batch, length)
    runs = [row for row in record(STEM)["results"] if row["drafter"] != "plain"]
    found = {(r["model"], r["drafter"], r["batch"]): r["speedup"] for r in runs if r["prompts"] == "copy"}
    return Data(
        {
            "model_title": model.title,
            "accelerator_title": machine.title,
            "sequences": batch,
            "draft_tokens": length,
            "tokens_per_step": speculated_tokens(acceptance, length),
            "verify_cost": verify,
            "speedup": speedup,
            "verdict": where(speedup > 1, "faster than", "no faster than"),
            **context_limit(model, inputs["context"]),
            **{f"measured_{name}": round(found[of], 3) for name, of in MEASURED.items()},
        },
        {
            "map": [
                {
                    "batch": f"{b:,}",
                    "length": f"{k}",
                    "x": gain(b, k)[1],
                    "on": where(batch == b, where(length == k, 1, 0), 0),
                }
                for k, b in product(LENGTHS, BATCHES)
            ],
            "runs": [
                {
                    **{c.key: row.get(c.key) for c in COLUMNS},
                    "text": KINDS[row["prompts"]],
                    "title": DRAFTERS[row["drafter"]],
                }
                for row in runs
            ],
        },
    )


def figure(data: Data) -> Spec:
    """One map: a column for each batch, a row for each length of drafts, coloured by gain or loss."""
    return _chart()


@cache
def _chart() -> Spec:
    x = alt.X("batch:O", sort=None, axis=alt.Axis(title="sequences in the batch", labelAngle=0, domain=False))
    y = alt.Y("length:O", sort=None, axis=alt.Axis(title="tokens of a draft"))
    base = alt.Chart(rows("map")).encode(x=x, y=y)
    size = "abs(log(datum.x))"  # equal for twice and for half the speed; the stronger the colour, never at an end
    cells = base.transform_calculate(strength=f"{size} / (0.6 + {size})").mark_rect(
        stroke=colour("page"), strokeWidth=2, cornerRadius=3
    )
    cells = cells.encode(
        color=either(alt.ColorValue, "datum.x > 1", colour("decode"), colour("compute")),
        fillOpacity=alt.FillOpacity("strength:Q", scale=None),
    )
    numbers = base.mark_text(fontSize=11).encode(text=alt.Text("x:Q", format=".1f"))
    chosen = base.transform_filter("datum.on > 0.5").mark_rect(filled=False, stroke=colour("text"), strokeWidth=2.5)
    title = alt.TitleParams("Tokens/s over plain decoding", subtitle="green: faster · red: slower")
    return spec(alt.layer(cells, numbers, chosen, height=alt.Step(30), title=title))


def table(data: Data) -> Table:
    """The measured runs."""
    return Table(COLUMNS, data.rows["runs"])


def sentence(data: Data) -> str:
    """The gain in the chosen cell, and what it is made of."""
    return (
        "At a batch of {sequences|int} and drafts of {draft_tokens|int} a step yields {tokens_per_step|fixed2} tokens "
        "of a sequence instead of one. The step that verifies takes one {accelerator_title} with {model_title} "
        "{verify_cost|fixed2} times a plain one, so the whole runs {speedup|fixed2} times as fast: {verdict} plain "
        "decoding." + LIMIT_SENTENCE
    )


def provenance() -> str:
    """Where the map and the table are from."""
    found = record(STEM)
    return (
        "The map is computed from data sheets. The table is measured: our engine in float32, temperature 0, drafts of "
        f"4 tokens, {found['output_tokens']} output tokens a request, each over the run without drafts in the same "
        f"process; {where_and_when(STEM)}"
    )


VISUALIZER = Visualizer(
    name="speculation-gain",
    title="Where the gain ends",
    badge="computed",
    chapters=("7.6",),
    summary="The speed-up of speculation at each batch and each length of drafts, by the roofline.",
    formula=(
        "speed-up = tokens of a verifying step / (verify cost + k * draft cost); verify cost = roofline time of a step "
        "with k + 1 tokens of each sequence / of one with 1 token of each"
    ),
    inputs=(
        Number("acceptance", "Acceptance", "", 0.7, 0, 1, "Chance that the next drafted token is kept.", 0.05, False),
        Number("draft_cost", "Cost of a drafted token", "", 0.1, 0, 0.5, "Over a plain step; n-grams: 0.", 0.01, False),
        Number("batch", "Batch", "sequences", 1, 1, 1024, "The marked column.", log=True, stops=BATCHES, more=True),
        Number("length", "Draft", "tokens", 4, 1, 16, "The marked row.", stops=LENGTHS, more=True),
        model_choice("; weights as published, cache in bf16", title="Target", more=True),
        accelerator_choice("Bandwidth and dense peak from its data sheet.", more=True),
        Number("context", "Context", "tokens", 512, 1, 2**17, "Of each sequence.", log=True, more=True),
    ),
    units=units(
        "model_title accelerator_title tokens_per_step verify_cost speedup verdict",
        sequences="sequences",
        tokens="draft_tokens",
    )
    | {**LIMIT_UNITS, **dict.fromkeys((f"measured_{name}" for name in MEASURED), "")},
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.costs.speculation", "minillm.costs.roofline"),
)
