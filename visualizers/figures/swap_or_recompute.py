"""What a preempted request costs by formula: its K/V out and back over a link, or its tokens computed again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt

from minillm import catalog
from minillm.catalog import Accelerator, Model
from minillm.costs import (
    pcie_bytes_per_s,
    recompute_crossover_tokens,
    recompute_time_s,
    swap_copies,
    swap_time_s,
)
from minillm.costs.arithmetic import where
from visualizers.catalogued import LIMIT_SENTENCE, LIMIT_UNITS, accelerator_choice, context_limit, model_choice
from visualizers.contract import Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, colour_scale, rows, spec

SWAP, AGAIN = "swapped out and in", "computed again"
COLOURS = {SWAP: "bandwidth", AGAIN: "compute"}
LENGTHS = tuple(2**n for n in range(8, 18))  # tokens
US = 1e-6


def compute(inputs: Mapping[str, Any]) -> Data:
    """Both times at the chosen length, over all lengths, and for every model."""
    model, machine = catalog.model(inputs["model"]), catalog.accelerator(inputs["accelerator"])
    tokens = inputs["context"]
    link, block, overhead_s = inputs["link"] * 1e9, inputs["block_size"], inputs["copy_us"] * US

    def swap_s(of: Model, length: Any) -> Any:
        return swap_time_s(of.kv_bytes(length, "bf16"), link, _copies(of, length, block), overhead_s)

    crossover = _crossover(model, machine, link, block, overhead_s)
    here = {SWAP: swap_s(model, tokens), AGAIN: _again_s(model, machine, tokens)}
    return Data(
        {
            "model_title": model.title,
            "accelerator_title": machine.title,
            "context_tokens": tokens,
            "link_gb_per_s": inputs["link"],
            "kv_bytes": model.kv_bytes(tokens, "bf16"),
            "flops": model.prefill_flops(tokens),
            "copies": _copies(model, tokens, block),
            "swap_s": here[SWAP],
            "recompute_s": here[AGAIN],
            "ratio": here[AGAIN] / here[SWAP],
            "faster": where(here[AGAIN] <= here[SWAP], "computing again", "swapping"),
            "crossover_tokens": crossover,
            **context_limit(model, tokens),
        },
        {
            "lines": [
                {"tokens": length, "how": how, "ms": 1e3 * time_s}
                for length in LENGTHS
                for how, time_s in ((SWAP, swap_s(model, length)), (AGAIN, _again_s(model, machine, length)))
            ],
            "points": [{"tokens": tokens, "how": how, "ms": 1e3 * time_s} for how, time_s in here.items()],
            "models": [
                {
                    "model": of.title,
                    "kv": of.kv_bytes_per_token("bf16"),
                    "swap": swap_s(of, tokens),
                    "again": _again_s(of, machine, tokens),
                    "ratio": _again_s(of, machine, tokens) / swap_s(of, tokens),
                }
                for of in catalog.models().values()
            ],
        },
    )


def _copies(model: Model, tokens: Any, block: Any) -> Any:
    return swap_copies(tokens, block, model.layers, _arrays(model))


def _arrays(model: Model) -> int:
    """A latent cache is one array, from which keys and values are computed."""
    return 1 if model.attention_kind == "MLA" else 2


def _again_s(model: Model, machine: Accelerator, tokens: Any) -> Any:
    return recompute_time_s(model.prefill_flops(tokens), machine.flops("bf16"))


def _crossover(model: Model, machine: Accelerator, link: Any, block: Any, overhead_s: Any) -> Any:
    """None where a layer has a window: the cache then stops growing, and the two may cross more than once."""
    if any(model.geometry.windows):
        return None
    # Of long sequences, whose last block is as good as full.
    copies = _arrays(model) * model.layers / block
    swap_s = swap_time_s(model.kv_bytes_per_token("bf16"), link, copies, overhead_s)
    linear, pair = _flops(model)
    return recompute_crossover_tokens(swap_s, linear, pair, machine.flops("bf16"))


def _flops(model: Model) -> tuple[float, float]:
    """FLOPs of a token in the matrices of all layers, and of a pair of query and key in their attention."""
    pair = model.geometry.attention_flops([1], [0])
    return model.geometry.step_flops([1], [0], 0) - pair, pair


def figure(data: Data) -> Spec:
    """Both times over the length of the request."""
    return _chart()


@cache
def _chart() -> Spec:
    x = alt.X(
        "tokens:Q",
        title="tokens of the request",
        scale=alt.Scale(type="log", base=2, domain=[LENGTHS[0], LENGTHS[-1]], clamp=True, nice=False),
        axis=alt.Axis(values=LENGTHS[::3], format=",d", labelFlush=True),
    )
    y = alt.Y(
        "ms:Q",
        title=None,
        scale=alt.Scale(type="log"),
        axis=alt.Axis(values=[10**n for n in range(-3, 7)], labelExpr="format(datum.value, ',~r')"),
    )
    colours = alt.Color("how:N", scale=colour_scale(COLOURS), legend=alt.Legend(symbolType="stroke"))
    lines = alt.Chart(rows("lines")).mark_line().encode(x=x, y=y, color=colours)
    points = alt.Chart(rows("points")).mark_point(size=140, opacity=1).encode(x=x, y=y, color=colours)
    return spec(alt.layer(lines, points, height=230, title="Milliseconds"))


def table(data: Data) -> Table:
    """Every model at this length, on this accelerator and this link."""
    return Table(
        (
            Column("model", "Model"),
            Column("kv", "Cache of a token", "", "bytes"),
            Column("swap", "Swapped", "", "seconds"),
            Column("again", "Computed again", "", "seconds"),
            Column("ratio", "Computed again ÷ swapped", "", "sig2"),
        ),
        data.rows["models"],
    )


def sentence(data: Data) -> str:
    """Which is the quicker here, and from where on."""
    crossing = (
        "Its layers have windows, so its cache stops growing and there is no one length from which on swapping is "
        "the quicker."
        if data.values["crossover_tokens"] is None
        else "{crossover_tokens|int?At any length:Longer than # token:Longer than # tokens}, swapping is the quicker."
    )
    return (
        "A request of {context_tokens|int} tokens of {model_title} holds {kv_bytes|bytes}. Out and back over a link of "
        "{link_gb_per_s|sig3} GB/s, in {copies|int} {copies|int?copy:copies} each way, takes {swap_s|seconds}; "
        "computing it again takes one {accelerator_title} {recompute_s|seconds} of arithmetic. Here {faster} is the "
        "quicker. " + crossing + LIMIT_SENTENCE
    )


VISUALIZER = Visualizer(
    name="swap-or-recompute",
    title="Swap or recompute",
    badge="computed",
    chapters=("6.4",),
    summary="Seconds of the link to swap a request out and in, beside seconds of arithmetic to compute it again.",
    formula=(
        "swap = 2 * (KV bytes / link + copies * overhead), copies = ceil(tokens / block) * layers * 2 (MLA: * 1); "
        "recompute = FLOPs of a prefill / dense peak; they cross at "
        "n = 2 * (swap of a token * peak - FLOPs of a token) / FLOPs of a pair - 1"
    ),
    inputs=(
        model_choice("; weights and cache in bf16"),
        accelerator_choice("Dense bf16 peak from its data sheet."),
        Number("context", "Length", "tokens", 4096, LENGTHS[0], LENGTHS[-1], "Tokens of the request.", log=True),
        Number(
            "link",
            "Link, each way",
            "GB/s",
            round(pcie_bytes_per_s(5) / 1e9),
            8,
            512,
            "To the host: PCIe 4.0 x16 has 32 GB/s, PCIe 5.0 x16 63, NVLink-C2C 450.",
            log=True,
        ),
        Number("block_size", "Block", "tokens", 16, 1, 256, "Tokens in a block of the engine.", log=True),
        Number(
            "copy_us",
            "Overhead of a copy",
            "µs",
            2,
            0,
            10,
            "How long a copy holds up the link besides its bytes: measure it. With many small copies it decides.",
            step=0.5,
            integer=False,
        ),
    ),
    units={
        "model_title": "",
        "accelerator_title": "",
        "context_tokens": "tokens",
        "link_gb_per_s": "GB/s",
        "kv_bytes": "bytes",
        "flops": "FLOP",
        "copies": "",
        "swap_s": "s",
        "recompute_s": "s",
        "ratio": "",
        "faster": "",
        "crossover_tokens": "tokens",
        **LIMIT_UNITS,
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    source=("minillm.costs.preemption",),
)
