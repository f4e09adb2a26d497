"""One request on the real engine: the time of each token, and the blocks that its cache holds meanwhile.

The figure on a page is one run, recorded at build and cut after a number of tokens; its notebook draws a run
(:mod:`visualizers.runs.one_request`) while it goes on.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import altair as alt

from minillm.core.request import RequestError
from visualizers.contract import Choice, Column, Data, InputError, Number, Table, Text, Visualizer
from visualizers.levels.charts import Spec, colour_scale, rows, spec
from visualizers.levels.links import linked, linker
from visualizers.levels.words import Look, flow
from visualizers.palette import colour
from visualizers.runs import bundled
from visualizers.runs.measure import Times, thread_clock
from visualizers.runs.one_request import DECODE, MODEL, PREFILL, PROMPT, SEED, TEMPERATURE, Run, middle

START = "My fellow citizens, the state of the Union"
SHOWN_TOKENS = 48  # of the run on a page
STOPS = (1, 2, 3, *range(6, SHOWN_TOKENS + 1, 3))
BEFORE = (0, 96, 192, 384)  # tokens of text that stand before the prompt
REPEATS = 5
MAX_CHARACTERS = 600
LOOKS = {PROMPT: Look(text="muted"), PREFILL: Look("prefill"), DECODE: Look("decode")}
_TEXT = (
    "The report of the Secretary shows that the public revenue has grown in the past year, while the debt was made "
    "smaller by one tenth. The harvest in the western States was good, and our trade with other nations is larger "
    "than before the war. I ask the Congress to look with care at the law that governs the sale of public lands. "
)


def lengthened(prompt: str, before: int) -> str:
    """``prompt`` behind so many tokens of a text that begins again at its end."""
    tokens = bundled.encode(_TEXT)
    return bundled.decode([tokens[i % len(tokens)] for i in range(before)]) + prompt


@lru_cache(maxsize=16)
def recorded(prompt: str, block_size: int) -> tuple[Run, Times, Times]:
    """A whole run, from which a figure's states after fewer tokens are cut, its TTFT and its TPOT.

    Every gap is the median of ``REPEATS`` runs. Times are the processor's: a run that is kept for years should not
    show what else the machine did that second.
    """
    clock = thread_clock()
    runs = [Run(prompt, block_size=block_size, max_tokens=SHOWN_TOKENS, clock=clock) for _ in range(REPEATS)]
    for run in runs:
        while run.advance(1.0):
            pass
    ttft, tpot = (Times.of([run.data().values[name] for run in runs]) for name in ("ttft_s", "tpot_s"))
    return middle(runs), ttft, tpot


def compute(inputs: Mapping[str, Any]) -> Data:
    """The run of the inputs' prompt after ``tokens`` output tokens."""
    try:
        run, ttft, tpot = recorded(lengthened(inputs["prompt"], int(inputs["before"])), int(inputs["block_size"]))
    except RequestError as error:
        raise InputError(f"--prompt: {error}") from error
    data = run.data(int(inputs["tokens"]))
    spread = {
        "ttft_low_s": ttft.low_s,
        "ttft_high_s": ttft.high_s,
        "tpot_low_s": tpot.low_s,
        "tpot_high_s": tpot.high_s,
    }
    return Data({**data.values, **spread}, data.rows)


def figure(data: Data) -> Spec:
    """The words; when each token came; the blocks that hold their keys and values; the memory of the process."""
    return _chart(bool(data.rows["process"]))


@cache
def _chart(has_process: bool) -> Spec:
    words = flow("words", LOOKS, title=alt.Title("The text, token by token", frame="group"), legend=[PREFILL, DECODE])
    charts = [words, _timeline(), _blocks(last=not has_process), *([_process()] if has_process else [])]
    return spec(
        alt.vconcat(*charts, spacing=16).resolve_scale(color="independent", fill="independent", x="independent")
    )


def _time(field: str, axis: Any = None) -> Any:
    return alt.X(f"{field}:Q", axis=axis, scale=alt.Scale(domainMin=0, nice=False))


def _extent(axis: Any = None, y: Any = None) -> Any:
    """The time of the whole run, so that a part of it is drawn on the same axis."""
    found = alt.Chart(rows("extent")).mark_point(opacity=0)
    return found.encode(x=_time("ms", axis), **({} if y is None else {"y": y}))


def _timeline() -> Any:
    """A box for each token, as long as it took."""
    boxes = (
        alt.Chart(rows("tokens"))
        .mark_rect(height=24, strokeWidth=2)
        .encode(
            x=_time("start"),
            x2="end:Q",
            fill=alt.Fill("phase:N", scale=colour_scale({PREFILL: "prefill", DECODE: "decode"}), legend=None),
            stroke=linked(off=colour("page")),
        )
    )
    title = alt.Title("When each token came", frame="group")
    return alt.layer(_extent(), linker(boxes, "timeline"), height=26, title=title)


def _blocks(*, last: bool) -> Any:
    """Each block from when it was taken, and how many of the slots hold a token."""
    axis = alt.Axis(title="milliseconds") if last else None
    y = alt.Y("low:Q", axis=alt.Axis(title=None, tickCount=4), scale=alt.Scale(domainMin=0, nice=False))
    held = (
        alt.Chart(rows("held"))
        .mark_rect(fill=colour("free"), fillOpacity=0.25, stroke=colour("page"), strokeWidth=2)
        .encode(x=_time("start", axis), x2="end:Q", y=y, y2="high:Q")
    )
    stored = (
        alt.Chart(rows("stored"))
        .mark_area(interpolate="step-before", color=colour("kv"), opacity=0.85)
        .encode(x=_time("ms", axis), y=alt.Y("tokens:Q"))
    )
    frames = (
        alt.Chart(rows("held"))
        .mark_rect(fill="transparent", stroke=colour("page"), strokeWidth=1.5)
        .encode(x=_time("start", axis), x2="end:Q", y=y, y2="high:Q")
    )
    slots = alt.Y("slots:Q", axis=alt.Axis(title=None, tickCount=4))
    title = alt.Title("Its KV blocks: stored, reserved", frame="group")
    return alt.layer(_extent(axis, slots), held, stored, frames, height=110, title=title)


def _process() -> Any:
    """All that this process holds, weights and code included: a request's cache is little beside it."""
    axis = alt.Axis(title="milliseconds")
    y = alt.Y("mib:Q", axis=alt.Axis(title=None, tickCount=2), scale=alt.Scale(domainMin=0))
    line = (
        alt.Chart(rows("process"))
        .mark_line(interpolate="step-after", color=colour("activations"))
        .encode(x=_time("ms", axis), y=y)
    )
    return alt.layer(
        _extent(axis), line, height=44, title=alt.Title("Memory of the whole process (MiB)", frame="group")
    )


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
    rest = (
        " (half of the repeats between {ttft_low_s|seconds} and {ttft_high_s|seconds}), each further one after "
        "{tpot_s|seconds} ({tokens_per_s|sig3} tokens/s)"
    )
    end = ". The cache holds {kv_blocks|int} {kv_blocks|int?block:blocks}, {kv_bytes|bytes}. The model wrote: “{text}”"
    return start + (rest if data.values["output_tokens"] > 1 else "") + end


def provenance() -> str:
    """The run that the page shows."""
    machine = platform.processor() or platform.machine()
    return (
        f"Medians of {REPEATS} runs of the model {MODEL} on the NumPy engine, in processor time, {machine}, "
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
        Text("prompt", "Prompt", START, MAX_CHARACTERS, "What the model goes on from."),
        Number(
            "before",
            "Text before it",
            "tokens",
            0,
            BEFORE[0],
            BEFORE[-1],
            "Tokens of other text that stand before the prompt and belong to it: a longer prompt.",
            instant="grid",
            stops=BEFORE,
        ),
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
            play=True,
        ),
        Choice(
            "block_size",
            "Block size",
            "16",
            {"4": "4", "16": "16", "32": "32"},
            "Slots of a KV block: small blocks fit closely, large ones waste the end of the last.",
            unit="tokens",
            more=True,
        ),
    ),
    units={
        "prompt_tokens": "tokens",
        "output_tokens": "tokens",
        "planned_tokens": "tokens",
        "ttft_s": "s",
        "ttft_low_s": "s",
        "ttft_high_s": "s",
        "tpot_low_s": "s",
        "tpot_high_s": "s",
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
