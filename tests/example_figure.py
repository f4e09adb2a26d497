"""A small figure that no chapter shows: it has an input of every kind, for the tests of the derivations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from minillm.costs.arithmetic import ceildiv, maximum, where
from visualizers.contract import Choice, Column, Data, Number, Table, Text, Visualizer
from visualizers.levels.charts import colour_scale, rows

LAYERS = {"small": 16, "large": 80}


def compute(inputs: Mapping[str, Any]) -> Data:
    """KV bytes of a model with ``layers`` layers of one KiB a token, in whole blocks, against a budget."""
    layers, batch, block = LAYERS[inputs["model"]], inputs["batch"], inputs["block"]
    used = inputs["context"] * batch * layers * 1024
    kept = ceildiv(inputs["context"], block) * block * batch * layers * 1024
    budget = 64 * 2**30
    return Data(
        values={
            "used_bytes": used,
            "kept_bytes": kept,
            "waste": 1 - used / kept,
            "fits": where(kept <= budget, "fits in", "is more than"),
            "left_bytes": maximum(budget - kept, 0),
            "words": len(inputs["prompt"].split()),
        },
        rows={
            "bars": [
                {"kind": "KV cache", "gib": used / 2**30},
                {"kind": "kept free in the last block", "gib": (kept - used) / 2**30},
            ],
            "line": [{"context": 1024 * i, "gib": 1024 * i * batch * layers * 1024 / 2**30} for i in range(0, 129, 16)],
        },
    )


def figure(data: Data) -> alt.VConcatChart:
    """A bar of what is kept, and a line of what it would be at other lengths."""
    bar = (
        alt.Chart(rows("bars"), height=40)
        .mark_bar()
        .encode(
            x=alt.X("gib:Q", title="memory (GiB)"),
            color=alt.Color("kind:N", scale=colour_scale({"KV cache": "kv", "kept free in the last block": "free"})),
        )
    )
    line = (
        alt.Chart(rows("line"), height=160)
        .mark_line()
        .encode(x=alt.X("context:Q", title="context (tokens)"), y=alt.Y("gib:Q", title="memory (GiB)"))
    )
    return alt.vconcat(bar, line)


def table(data: Data) -> Table:
    """What is kept, kind by kind."""
    return Table(columns=(Column("kind", "Memory"), Column("gib", "Size", "GiB", "fixed2")), rows=data.rows["bars"])


def sentence(data: Data) -> str:
    """What to see."""
    return "The cache takes {kept_bytes|bytes}, of which {waste|percent1} is unused; it {fits} the budget."


VISUALIZER = Visualizer(
    name="example",
    title="Memory & blocks",
    badge="computed",
    chapters=("1.6",),
    summary="How much memory a KV cache takes in whole blocks.",
    formula="kept = ceil(context / block) * block * batch * layers * 1 KiB",
    inputs=(
        Choice("model", "Model", "small", {"small": "Small (16 layers)", "large": "Large"}, "How many layers."),
        Number("context", "Context", "tokens", 8192, 1, 131072, "Tokens of each request.", log=True),
        Number("batch", "Batch", "requests", 4, 1, 64, "Requests at once."),
        Number(
            "block",
            "Block size",
            "tokens",
            16,
            1,
            256,
            "Tokens in a block.",
            instant="grid",
            stops=(1, 16, 256),
            play=True,
        ),
        Text("prompt", "Prompt", "The capital of France is", 200, "Any text."),
    ),
    units={
        "used_bytes": "bytes",
        "kept_bytes": "bytes",
        "waste": "",
        "fits": "",
        "left_bytes": "bytes",
        "words": "words",
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
)
