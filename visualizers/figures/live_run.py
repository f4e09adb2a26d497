"""One request on the real engine: the time of each token, and the blocks that its cache holds meanwhile.

The figure on a page is one run, recorded at build and cut after a number of tokens; its notebook draws a run
(:mod:`visualizers.runs.one_request`) while it goes on.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import altair as alt

from minillm.core.request import RequestError
from visualizers.contract import Choice, Column, Data, InputError, Number, Table, Text, Visualizer
from visualizers.levels.charts import colour_scale, rows
from visualizers.palette import colour
from visualizers.runs.measure import thread_clock
from visualizers.runs.one_request import DECODE, FILLED, MODEL, PREFILL, RESERVED, SEED, TEMPERATURE, Run

PROMPT = "My fellow citizens, the state of the Union"
SHOWN_TOKENS = 48  # of the run on a page
STOPS = (1, 2, 3, *range(4, SHOWN_TOKENS + 1, 2))
ATTEMPTS = 5  # runs of which the least disturbed is kept
MAX_CHARACTERS = 600


@lru_cache(maxsize=16)
def recorded(prompt: str, block_size: int) -> Run:
    """A whole run, from which a figure's states after fewer tokens are cut: the quickest of ``ATTEMPTS``.

    Other work on the machine only ever adds time, so the quickest is the nearest to the engine's own. Times are
    the processor's: a run that is kept for years should not show what else the machine did that second.
    """
    clock = thread_clock()
    runs = [Run(prompt, block_size=block_size, max_tokens=SHOWN_TOKENS, clock=clock) for _ in range(ATTEMPTS)]
    for run in runs:
        while run.advance(1.0):
            pass
    return min(runs, key=lambda run: run.seconds)


def compute(inputs: Mapping[str, Any]) -> Data:
    """The run of the inputs' prompt after ``tokens`` output tokens."""
    try:
        run = recorded(inputs["prompt"], int(inputs["block_size"]))
    except RequestError as error:
        raise InputError(f"--prompt: {error}") from error
    return run.data(int(inputs["tokens"]))


def figure(data: Data) -> alt.VConcatChart:
    """The time of each token above; below, the slots of the request's blocks, laid end to end."""
    planned = int(data.values["planned_tokens"])
    slots = max([block["end"] for block in data.rows["blocks"]] + [data.values["prompt_tokens"] + planned])
    every_eighth = "datum.value % 8 === 0 || datum.value === 1 ? datum.label : ''"
    times = (
        alt.Chart(rows("tokens"), height=150, title="Time of each output token, in milliseconds")
        .mark_bar(width={"band": 0.8})
        .encode(
            x=alt.X(
                "token:O",
                scale=alt.Scale(domain=list(range(1, planned + 1))),
                axis=alt.Axis(title=None, labelAngle=0, labelExpr=every_eighth, ticks=False),
            ),
            y=alt.Y("ms:Q", title=None),
            color=alt.Color("phase:N", scale=colour_scale({PREFILL: "prefill", DECODE: "decode"}), legend=_LEGEND),
        )
    )
    filled = (
        alt.Chart(rows("blocks"))
        .mark_rect()
        .encode(
            x=alt.X(
                "from:Q",
                title=None,
                scale=alt.Scale(domain=[0, slots], nice=False),
                axis=alt.Axis(format="d", tickCount=8),
            ),
            x2="to:Q",
            color=alt.Color("part:N", scale=colour_scale({FILLED: "kv", RESERVED: "free"}), legend=_LEGEND),
        )
    )
    ends = alt.Chart(rows("blocks")).mark_rule(color=colour("page"), strokeWidth=3).encode(x="end:Q")
    blocks = alt.layer(filled, ends, height=34, title="KV blocks of the request, in tokens")
    chart: alt.VConcatChart = alt.vconcat(times, blocks, spacing=20).resolve_scale(color="independent")
    return chart


_LEGEND = alt.Legend(orient="bottom")


def table(data: Data) -> Table:
    columns = (
        Column("token", "Token", format="int"),
        Column("text", "Text"),
        Column("ms", "Time", "ms", "sig3"),
        Column("blocks", "KV blocks", format="int"),
        Column("bytes", "KV memory", format="bytes"),
    )
    return Table(columns, data.rows["tokens"])


def sentence(data: Data) -> str:
    """What to see. A run of one token has no gap between tokens yet."""
    start = (
        "The prompt's {prompt_tokens|int} {prompt_tokens|int?token was:tokens were} computed at once: the first token "
        "came after {ttft_s|seconds}"
    )
    rest = ", each further one after {tpot_s|seconds} ({tokens_per_s|sig3} tokens/s)"
    end = ". The cache holds {kv_blocks|int} {kv_blocks|int?block:blocks}, {kv_bytes|bytes}. The model wrote: “{text}”"
    return start + (rest if data.values["output_tokens"] > 1 else "") + end


def provenance() -> str:
    """The run that the page shows."""
    machine = platform.processor() or platform.machine()
    return (
        f"The quickest of {ATTEMPTS} runs of the model {MODEL} on the NumPy engine, in processor time, {machine}, "
        f"Python {platform.python_version()}, temperature {TEMPERATURE}, seed {SEED}, {datetime.date.today()}."
    )


VISUALIZER = Visualizer(
    name="live-run",
    title="A request, token by token",
    badge="run",
    chapters=("0.3", "1.5"),
    summary="The time of each output token of one request, and the cache blocks that it holds meanwhile.",
    formula=(
        "engine.add_request(prompt); engine.step() until it ends\n"
        "time to first token = first token - arrival; time of a further token = its gap to the one before\n"
        "blocks = ceil(stored tokens / block size)"
    ),
    inputs=(
        Text("prompt", "Prompt", PROMPT, MAX_CHARACTERS, "What the model goes on from."),
        Number(
            "tokens",
            "Output tokens so far",
            "tokens",
            SHOWN_TOKENS,
            1,
            SHOWN_TOKENS,
            "How far into the run to look.",
            instant="grid",
            stops=STOPS,
        ),
        Choice(
            "block_size",
            "Block size",
            "16",
            {"4": "4", "16": "16", "32": "32"},
            "Slots of a KV block: small blocks fit closely, large ones waste the end of the last.",
            unit="tokens",
        ),
    ),
    units={
        "prompt_tokens": "tokens",
        "output_tokens": "tokens",
        "planned_tokens": "tokens",
        "ttft_s": "s",
        "itl_s": "s",
        "tpot_s": "s",
        "tokens_per_s": "tokens/s",
        "kv_blocks": "blocks",
        "kv_bytes": "bytes",
        "stored_tokens": "tokens",
        "text": "",
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    live=True,
    source=("visualizers.runs.one_request", "minillm.core.engine", "minillm.backends.numpy_backend"),
)
