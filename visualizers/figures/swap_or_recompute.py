"""What a preempted request costs by formula: its K/V out and back over a link, or its tokens computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from visualizers.levels.charts import Spec, colour_scale, constant, rows, spec
from visualizers.palette import colour

SWAP, AGAIN = "swapped", "computed again"
BYTES, COPIES, FLOPS = "bytes, out and in", "starting copies", "arithmetic"
PARTS = {BYTES: "bandwidth", COPIES: "waiting", FLOPS: "compute"}
LENGTHS = tuple(2**n for n in range(8, 18))  # tokens
US = 1e-6


def compute(inputs: Mapping[str, Any]) -> Data:
    """Both times at the chosen length, over all lengths, and for every model."""
    model, machine = catalog.model(inputs["model"]), catalog.accelerator(inputs["accelerator"])
    tokens = inputs["context"]
    link, block, overhead_s = inputs["link"] * 1e9, inputs["block_size"], inputs["copy_us"] * US

    def swap_s(of: Model, length: Any) -> Any:
        return swap_time_s(of.kv_bytes(length, "bf16"), link, _copies(of, length, block), overhead_s)

    here = {SWAP: swap_s(model, tokens), AGAIN: _again_s(model, machine, tokens)}
    bytes_s = swap_time_s(model.kv_bytes(tokens, "bf16"), link, 0, 0)
    crossover = _crossover(model, machine, link, block, overhead_s)
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
            "parts": [
                {"how": how, "part": part, "from": 1e3 * start, "to": 1e3 * end}
                for how, part, start, end in (
                    (SWAP, BYTES, 0, bytes_s),
                    (SWAP, COPIES, bytes_s, here[SWAP]),
                    (AGAIN, FLOPS, 0, here[AGAIN]),
                )
            ],
            "totals": [{"how": how, "ms": 1e3 * time_s} for how, time_s in here.items()],
            "lines": [
                {
                    "tokens": length,
                    "ratio": _again_s(model, machine, length) / swap_s(model, length),
                    "limit": model.context_tokens,
                }
                for length in sorted({*LENGTHS, model.context_tokens} & set(range(LENGTHS[-1] + 1)))
            ],
            "points": [{"tokens": tokens, "ratio": here[AGAIN] / here[SWAP]}],
            "crossing": [{"tokens": crossover}] if crossover is not None else [],
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
    """Where the time of both goes at this length, and over all lengths which is the quicker."""
    return _chart()


@cache
def _chart() -> Spec:
    return spec(alt.vconcat(_times(), _ratios(), spacing=26).resolve_scale(x="independent", color="independent"))


def _times() -> Any:
    """A bar for each way, of its parts, on one axis of milliseconds."""
    y = alt.Y("how:N", axis=None, scale=alt.Scale(domain=[SWAP, AGAIN], paddingInner=0.55, paddingOuter=0.25))
    bars = (
        alt.Chart(rows("parts"))
        .mark_bar()
        .encode(
            x=alt.X("from:Q", axis=alt.Axis(title=None, tickCount=4), scale=alt.Scale(nice=False)),
            x2="to:Q",
            y=y,
            color=alt.Color("part:N", scale=colour_scale(PARTS), legend=alt.Legend(values=list(PARTS))),
        )
    )
    names = (
        alt.Chart(rows("totals"))
        .transform_calculate(said="datum.how + ': ' + format(datum.ms, ',.3~r') + ' ms'")
        .mark_text(align="left", baseline="bottom", yOffset=-13, fontWeight="bold", fontSize=11)
        .encode(x=constant(alt.XValue, 0), y=y, text="said:N")
    )
    return alt.layer(bars, names, height=104, title=alt.Title("Milliseconds at this length", frame="group"))


def _ratios() -> Any:
    """Above 1 the swap wins, below 1 computing again does; beyond what the model reads the line is broken."""
    x = alt.X(
        "tokens:Q",
        title="tokens of the request",
        scale=alt.Scale(type="log", base=2, domain=[LENGTHS[0], LENGTHS[-1]], nice=False),
        axis=alt.Axis(values=LENGTHS[::3], format=",d", labelFlush=True),
    )
    y = alt.Y(
        "ratio:Q",
        scale=alt.Scale(type="log", nice=False, padding=30),
        axis=alt.Axis(title=None, labels=False, grid=False),
    )
    lines, one = alt.Chart(rows("lines")), alt.Chart(rows("points"))
    even = constant(alt.YDatum, 1)

    def side(name: str, edge: Any) -> Any:
        return one.mark_rect(color=colour(name), opacity=0.1).encode(
            x=constant(alt.XValue, 0), x2=constant(alt.X2Value, "width"), y=even, y2=constant(alt.Y2Value, edge)
        )

    def words(text: str, **look: Any) -> Any:
        at_left = look.pop("align") == "left"
        said = one.mark_text(align="left" if at_left else "right", fontWeight="bold", text=text, **look)
        at = constant(alt.YValue, 0 if at_left else "height")
        return said.encode(x=constant(alt.XValue, 0 if at_left else "width"), y=at)

    curves = [
        lines.transform_filter(test).mark_line(color=colour("text"), strokeDash=dash).encode(x=x, y=y)
        for test, dash in (("datum.tokens <= datum.limit", [1, 0]), ("datum.tokens >= datum.limit", [3, 4]))
    ]
    here = alt.Chart(rows("points")).mark_point(size=150, opacity=1, color=colour("accent"))
    here_said = (
        alt.Chart(rows("points"))
        .transform_calculate(said="format(max(datum.ratio, 1 / datum.ratio), '.3~r') + ' times as fast'")
        .mark_text(
            align=alt.ExprRef("datum.tokens < 4000 ? 'left' : 'right'"),
            dy=-15,
            fontWeight="bold",
            color=colour("accent"),
            fontSize=11,
        )
        .encode(x=x, y=y, text="said:N")
    )
    return alt.layer(
        side("bandwidth", 0),
        side("compute", "height"),
        one.mark_rule(color=colour("axis")).encode(y=even),
        *curves,
        # The ratio grows with the length, so these two corners are free.
        words("swapping is quicker", align="left", baseline="top", dx=6, dy=7),
        words("computing again is quicker", align="right", baseline="bottom", dx=-6, dy=-6),
        *_crossing(x),
        here.encode(x=x, y=y),
        here_said,
        height=200,
        title=alt.Title("Which is quicker, and by how much", frame="group"),
    )


def _crossing(x: Any) -> list[Any]:
    """The length at which both take as long; where it lies outside the axis, that is said."""
    crossing = alt.Chart(rows("crossing"))
    inside = f"datum.tokens >= {LENGTHS[0]} && datum.tokens <= {LENGTHS[-1]}"
    on = crossing.transform_filter(inside)
    even = constant(alt.YDatum, 1)
    said = "format(datum.tokens, ',.0f')"
    mark = on.mark_point(size=110, opacity=1, filled=True, color=colour("text")).encode(x=x, y=even)
    name = (
        on.transform_calculate(said=f"'equal at ' + {said}")
        .mark_text(align="right", baseline="bottom", dx=-4, dy=-8, fontWeight="bold")
        .encode(x=x, y=even, text="said:N")
    )
    off = (
        crossing.transform_filter(f"!({inside})")
        .transform_calculate(
            said=f"datum.tokens > {LENGTHS[-1]} ? 'equal at ' + {said} + ' →' : "
            f"datum.tokens >= 1 ? '← equal at ' + {said} : 'equal at no length'"
        )
        .mark_text(align="right", baseline="bottom", dy=-5, color=colour("muted"))
        .encode(x=constant(alt.XValue, "width"), y=even, text="said:N")
    )
    return [mark, name, off]


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
        Number("context", "Length", "tokens", 4096, LENGTHS[0], LENGTHS[-1], "Tokens of the request.", log=True),
        model_choice("; weights and cache in bf16"),
        replace(accelerator_choice("Dense bf16 peak from its data sheet."), more=True),
        Number(
            "link",
            "Link, each way",
            "GB/s",
            round(pcie_bytes_per_s(5) / 1e9),
            8,
            512,
            "To the host: PCIe 4.0 x16 has 32 GB/s, PCIe 5.0 x16 63, NVLink-C2C 450.",
            log=True,
            more=True,
        ),
        Number("block_size", "Block", "tokens", 16, 1, 256, "Tokens in a block of the engine.", log=True, more=True),
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
            more=True,
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
