"""How the KV cache fills an accelerator's memory, by a model's own attention and by other kinds in its place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt

from minillm import catalog
from minillm.costs import growth_bytes_per_token, kv_allocated_bytes, kv_logical_bytes
from minillm.costs.arithmetic import floor, maximum, where
from visualizers.attentions import described_windows, multi_head, variants
from visualizers.catalogued import LIMIT_SENTENCE, LIMIT_UNITS, accelerator_choice, context_limit, model_choice
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer, units
from visualizers.levels.bars import cells, hundredths, stacked
from visualizers.levels.charts import Spec, bytes_text, colour_scale, spec

WEIGHTS, CACHE, TOO_MUCH, FREE = "weights", "KV cache", "KV cache, too large", "free"
COLOURS = {WEIGHTS: "weights", CACHE: "kv", TOO_MUCH: "compute", FREE: "grid"}


def compute(inputs: Mapping[str, Any]) -> Data:
    """Bytes for each attention; the values are those of the model as built."""
    model, machine = catalog.model(inputs["model"]), catalog.accelerator(inputs["accelerator"])
    context, batch, block, dtype = (inputs[name] for name in ("context", "batch", "block_size", "dtype"))
    weights, memory = model.weight_bytes(), machine.reported_memory_bytes or machine.memory_bytes
    found = [
        {
            "label": variant.label,
            "windows": described_windows(variant.groups),
            "values": sum(g.layers * g.values_per_token for g in variant.groups),
            "bytes_per_token": growth_bytes_per_token(variant.groups, dtype),
            "total_bytes": kv_logical_bytes(variant.groups, context, dtype, batch),
            "allocated_bytes": kv_allocated_bytes(variant.groups, context, dtype, block, batch),
        }
        for variant in variants(model)
    ]
    own, groups = found[0], variants(model)[0].groups
    one, sizes = kv_logical_bytes(groups, context, dtype), (groups, context, dtype, block, batch)
    needed = weights + own["total_bytes"]
    return Data(
        {
            "model_title": model.title,
            "attention_kind": model.attention_kind,
            "accelerator_title": machine.title,
            "context_tokens": context,
            "sequences": batch,
            "bytes_per_token": own["bytes_per_token"],
            "next_token_bytes": growth_bytes_per_token(groups, dtype, context),
            "total_bytes": own["total_bytes"],
            "allocated_bytes": own["allocated_bytes"],
            "allocated_behind_window_freed_bytes": kv_allocated_bytes(*sizes, frees_behind_window=True),
            "multi_head_ratio": kv_logical_bytes(multi_head(model), context, dtype) / one,
            "weight_bytes": weights,
            "needed_bytes": needed,
            "memory_bytes": memory,
            "needed_share": needed / memory,
            "room_sequences": maximum(0, floor((memory - weights) / one)),
            **context_limit(model, context),
        },
        {
            "cells": hundredths(
                [(WEIGHTS, weights / memory), (where(needed > memory, TOO_MUCH, CACHE), needed / memory)], FREE
            ),
            "variants": [{**row, "kind": CACHE, "from": weights, "to": weights + row["total_bytes"]} for row in found],
            "weights": [{"label": row["label"], "kind": WEIGHTS, "from": 0, "to": weights} for row in found],
            "memory": [{"limit": memory}],
        },
    )


def figure(data: Data) -> Spec:
    """The memory as it fills, and below it what each kind of attention would put there, against the memory's end."""
    return _chart()


@cache
def _chart() -> Spec:
    kind = alt.Color("kind:N", scale=colour_scale(COLOURS), legend=alt.Legend())
    filled = cells("cells", kind, "One accelerator's memory, in hundredths")
    title = alt.TitleParams("By the kind of attention", subtitle="The line is where that memory ends.")
    bars = stacked(("weights", "variants"), bytes_text("datum.total_bytes"), kind, "memory", title)
    return spec(alt.vconcat(filled, bars, spacing=22))


def table(data: Data) -> Table:
    """The attentions, with what a token and all tokens take."""
    columns = (
        Column("label", "Attention"),
        Column("windows", "Windows"),
        Column("values", "Numbers a token"),
        Column("bytes_per_token", "A token, no window full", "", "bytes"),
        Column("total_bytes", "All tokens", "", "bytes"),
        Column("allocated_bytes", "Reserved in whole blocks", "", "bytes"),
    )
    return Table(columns, data.rows["variants"])


def sentence(data: Data) -> str:
    """What the model's own cache takes, against multi-head attention and the memory."""
    against = {
        "MHA": "which is what multi-head attention costs",
        "MLA": "{multi_head_ratio|sig2} times less than with the keys and values of all heads in it",
    }.get(data.values["attention_kind"], "{multi_head_ratio|sig2} times less than with a KV head for each query head")
    return (
        "A token takes {bytes_per_token|bytes} in the cache of {model_title}. {sequences|int} "
        "{sequences|int?sequence:sequences} of {context_tokens|int} {context_tokens|int?token:tokens} "
        f"{{sequences|int?takes:take}} {{total_bytes|bytes}}, {against}; an engine with whole blocks and one table for "
        "all layers reserves {allocated_bytes|bytes}. With the weights as published that is {needed_share|sig3} times "
        "the {memory_bytes|bytes} of one {accelerator_title}, which has room for {room_sequences|int} "
        "{room_sequences|int?sequence:sequences} of this length, before activations and anything else that a server "
        "keeps." + LIMIT_SENTENCE
    )


FORMATS = {"fp32": "fp32", "bf16": "bf16", "fp8": "fp8", "q8_0": "Q8_0 (8.5 bits)", "q4_0": "Q4_0 (4.5 bits)"}
VISUALIZER = Visualizer(
    name="kv-cache-size",
    title="Size of the KV cache",
    badge="computed",
    chapters=("1.6", "5.1", "5.4"),
    summary="How the KV cache fills an accelerator's memory beside the weights, by a model's attention and by others.",
    formula=(
        "total = sequences * sum over layers of min(context, window) * numbers a token * bytes a number; numbers a "
        "token: KV heads * (key length + value length), or for MLA latent + rotated key; reserved = the same with "
        "ceil(context / block) * block tokens in every layer"
    ),
    inputs=(
        Number("batch", "Batch", "sequences", 32, 1, 1024, "Sequences at once.", log=True),
        Number("context", "Context", "tokens", 8192, 1, 2**20, "Tokens of each sequence.", log=True),
        model_choice(),
        accelerator_choice("Memory that its driver reports.", more=True),
        Choice("dtype", "Numbers of the cache", "bf16", FORMATS, "Weights keep their own format.", more=True),
        Number("block_size", "Block", "tokens", 16, 1, 256, "Tokens in a block.", log=True, more=True),
    ),
    units=units(
        "model_title attention_kind accelerator_title multi_head_ratio needed_share",
        tokens="context_tokens",
        sequences="sequences room_sequences",
        bytes="bytes_per_token next_token_bytes total_bytes allocated_bytes allocated_behind_window_freed_bytes "
        "weight_bytes needed_bytes memory_bytes",
    )
    | LIMIT_UNITS,
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
)
