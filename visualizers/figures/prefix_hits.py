"""Six requests that share beginnings: which tokens the prefix cache has, which it cannot use, what a hit saves."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import altair as alt
import numpy as np

from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.formats import format_value
from visualizers.levels.charts import Spec, colour_scale, constant, rows, spec
from visualizers.levels.links import linked, linker
from visualizers.palette import colour
from visualizers.runs import bundled, prefix_run
from visualizers.runs.bundled import MODEL
from visualizers.runs.measure import Times
from visualizers.runs.prefix_run import BLOCK_SIZES, REPEATS, SYSTEM_TOKENS, Served, shared_tokens

NAMES = {
    "A": "A: the first",
    "B": "B: same system",
    "C": "C: next turn of A",
    "D": "D: A once more",
    "E": "E: date in front",
    "F": "F: other tenant",
}
FOUND, LOST, NEW = "found", "shared, not found", "new"
PARTS = {FOUND: "cached", LOST: "waiting", NEW: "prefill"}
COLUMNS = {FOUND: 0.37, LOST: 0.37, NEW: 0.66}  # of the width: where the words end, begin and begin
_ASIDE = 11  # pixels on either side of where two of them meet
LONGEST = 320  # tokens of the axis
WITH, WITHOUT = "with the cache", "without"
TIMES = {WITHOUT: "free", WITH: "prefill"}
_LETTERS = 60  # of the words that a figure has room for, at most
_ROW = 58  # pixels of a request


def compute(inputs: Mapping[str, Any]) -> Data:
    """The six requests with the cache and without, what they found, and the words where that ends."""
    size, system = int(inputs["block_size"]), int(inputs["system"])
    salted = inputs["salt"] == "tenant"
    repeats = prefix_run.repeats(system, size, salted, True)
    # Blocks and salts change nothing in a run that keeps nothing: it is made once.
    repeats_without = prefix_run.repeats(system, 16, False, False)
    served, without = repeats[0], repeats_without[0]
    times = [_times(repeats, i) for i in range(len(served))]
    times_without = [_times(repeats_without, i) for i in range(len(served))]
    requests = [
        _request(served[: i + 1], salted, has, lacks)
        for i, (has, lacks) in enumerate(zip(times, times_without, strict=True))
    ]
    prompt, found = (sum(r[key] for r in requests) for key in ("prompt", "found"))
    values: dict[str, Any] = {
        "block_size": size,
        "prompt_tokens": prompt,
        "found_tokens": found,
        "hit_rate": found / prompt,
        "ttft_sum": sum(r["ttft"] for r in requests),
        "ttft_sum_without": sum(r["ttft_without"] for r in requests),
        "same_answers": sum(s.written == o.written for s, o in zip(served, without, strict=True)),
        "miss_differs": times[4].differs_from(times_without[4]),
    }
    for letter, r in zip("abcdef", requests, strict=True):
        values |= {f"{key}_{letter}": r[key] for key in _PER_REQUEST}
    return Data(
        values,
        {
            "requests": requests,
            "parts": [part for r in requests for part in _parts(r)],
            "words": [words for r, s in zip(requests, served, strict=True) for words in _words(r, s)],
            "edges": [{"at": at} for at in range(size, LONGEST, size)] if size > 4 else [],
            "times": [
                _bar(served[i].sent.name, which, of[i])
                for i in range(len(served))
                for which, of in ((WITHOUT, times_without), (WITH, times))
            ],
        },
    )


_PER_REQUEST = {"prompt": "tokens", "shared": "tokens", "found": "tokens", "ttft": "s", "ttft_without": "s"}


def _times(repeats: Sequence[Sequence[Served]], request: int) -> Times:
    return Times.of([run[request].ttft_s for run in repeats])


def _request(upto: Sequence[Served], salted: bool, times: Times, times_without: Times) -> dict[str, Any]:
    *before, served = upto
    prompt, shared = len(served.sent.tokens), shared_tokens(served.sent, before, salted)
    return {
        "request": NAMES[served.sent.name],
        "group": served.sent.name,
        "prompt": prompt,
        "shared": shared,
        "found": served.hit_tokens,
        "computed": prompt - served.hit_tokens,
        "ttft": round(times.median_s, 6),
        "spread": _spread(times),
        "ttft_without": round(times_without.median_s, 6),
        "spread_without": _spread(times_without),
    }


def _spread(times: Times) -> str:
    return f"{format_value(times.low_s, 'seconds')} to {format_value(times.high_s, 'seconds')}"


def _bar(name: str, which: str, times: Times) -> dict[str, Any]:
    low, middle, high = (round(1e3 * s, 3) for s in (times.low_s, times.median_s, times.high_s))
    return {
        "key": f"{name} {which}",
        "name": name,
        "group": name,
        "which": which,
        "low": low,
        "ms": middle,
        "high": high,
    }


def _parts(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"request": request["request"], "part": part, "from": a, "to": b}
        for part, (a, b) in _ends(request).items()
        if b > a
    ]


def _ends(request: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """From which token of the prompt to which each part goes."""
    found, shared, prompt = request["found"], request["shared"], request["prompt"]
    return {FOUND: (0, found), LOST: (found, shared), NEW: (max(found, shared), prompt)}


def _words(request: Mapping[str, Any], served: Served) -> list[dict[str, Any]]:
    """The end of what was found, what is shared and was not found, and the beginning of what is new."""
    texts = {part: bundled.decode(list(served.sent.tokens[a:b])) for part, (a, b) in _ends(request).items()}
    texts[FOUND] = texts[FOUND][-_LETTERS:]
    return [
        {"request": request["request"], "part": part, "text": text[:_LETTERS].replace("\n", "⏎")}
        for part, text in texts.items()
        if text
    ]


def figure(data: Data) -> Spec:
    """The prompts along their tokens with the words where a hit ends, and the time to each first token."""
    return _chart()


@cache
def _chart() -> Spec:
    return spec(alt.vconcat(_prompts(), _times_chart(), spacing=24).resolve_scale(color="independent"))


def _prompts() -> Any:
    y = alt.Y("request:N", axis=None, scale=alt.Scale(domain=list(NAMES.values()), padding=0))
    x = alt.X("from:Q", title="tokens of the prompt", scale=alt.Scale(domain=[0, LONGEST], nice=False))
    parts = (
        alt.Chart(rows("parts"))
        .mark_bar(height=13)
        .encode(x=x, x2="to:Q", y=y, color=alt.Color("part:N", scale=colour_scale(PARTS), legend=alt.Legend()))
    )
    bars = len(NAMES) * _ROW
    edges = alt.Chart(rows("edges")).mark_rule(color=colour("page"), strokeWidth=1.5).encode(x="at:Q")
    names = (
        alt.Chart(rows("requests"))
        .mark_text(align="left", yOffset=-16, fontWeight="bold")
        .encode(x=constant(alt.XValue, 0), y=y, text="request:N")
    )
    counts = (
        alt.Chart(rows("requests"))
        .transform_calculate(said="datum.found + ' of ' + datum.prompt + ' found'")
        .mark_text(align="right", yOffset=-16, color=colour("muted"), fontSize=11)
        .encode(x=constant(alt.XValue, "width"), y=y, text="said:N")
    )
    targets = (
        alt.Chart(rows("requests"))
        .mark_bar(height=_ROW - 4, fill="transparent", strokeWidth=1.5, cornerRadius=4)
        .encode(x=constant(alt.XValue, -4), x2=constant(alt.X2Value, alt.ExprRef("width + 4")), y=y, stroke=linked())
    )
    return alt.layer(
        parts,
        edges,
        names,
        counts,
        *(_column(part, y) for part in PARTS),
        linker(targets, "prompts"),
        height=bars,
        title=alt.Title("Prompts, and where a hit ends", frame="group"),
    )


def _column(part: str, y: Any) -> Any:
    """The words of one part, under the bars: those found end where the others begin."""
    ends = part == FOUND
    room = {FOUND: COLUMNS[FOUND], LOST: COLUMNS[NEW] - COLUMNS[LOST], NEW: 1 - COLUMNS[NEW]}[part]
    said = "'…' + datum.text" if ends else "datum.text"
    return (
        alt.Chart(rows("words"))
        .transform_filter(f"datum.part === '{part}'")
        .transform_calculate(said=said)
        .mark_text(
            align="right" if ends else "left",
            dir="rtl" if ends else "ltr",
            limit=alt.ExprRef(f"{room:g} * width - {2 * _ASIDE}"),
            yOffset=17,
            fontSize=11,
            color=colour("muted" if ends else "text" if part == LOST else PARTS[NEW]),
        )
        .encode(
            x=constant(alt.XValue, alt.ExprRef(f"{COLUMNS[part]} * width + {-_ASIDE if ends else _ASIDE}")),
            y=y,
            text="said:N",
        )
    )


def _times_chart() -> Any:
    """Medians of both, and the middle half of the repeats as a line."""
    y = alt.Y("name:N", axis=alt.Axis(title=None, domain=False), scale=alt.Scale(domain=list(NAMES), paddingInner=0.3))
    base = alt.Chart(rows("times")).encode(y=y, yOffset=alt.YOffset("which:N", scale=alt.Scale(domain=list(TIMES))))
    colours = alt.Color("which:N", scale=colour_scale(TIMES), legend=alt.Legend())
    bars = base.mark_bar().encode(x=alt.X("ms:Q", title="milliseconds", scale=alt.Scale(domainMin=0)), color=colours)
    spread = base.mark_rule(color=colour("text"), strokeWidth=1.5).encode(x="low:Q", x2="high:Q")
    title = alt.Title("Time to first token, with its spread", frame="group")
    return alt.layer(linker(bars.encode(stroke=linked()), "times"), spread, height=len(NAMES) * 24, title=title)


def table(data: Data) -> Table:
    """The requests in the order in which they came."""
    return Table(
        (
            Column("request", "Request"),
            Column("prompt", "Prompt", "tokens", "int"),
            Column("shared", "Shared", "tokens", "int"),
            Column("found", "Found", "tokens", "int"),
            Column("computed", "Computed", "tokens", "int"),
            Column("ttft_without", "TTFT without", "", "seconds"),
            Column("spread_without", "Half of its repeats"),
            Column("ttft", "TTFT with", "", "seconds"),
            Column("spread", "Half of its repeats"),
        ),
        data.rows["requests"],
    )


def sentence(data: Data) -> str:
    """What is found and what is not."""
    same = data.values["same_answers"] == len(NAMES)
    blocks = "one token" if data.values["block_size"] == 1 else "{block_size|int} tokens"
    miss = (
        "takes {ttft_e|seconds} with the cache and {ttft_without_e|seconds} without"
        if data.values["miss_differs"]
        else "takes as long as without the cache, within the spread of the repeats"
    )
    return (
        f"In blocks of {blocks} "
        "B finds {found_b|int} of the {shared_b|int} tokens that it shares, and "
        "its first token comes after {ttft_b|seconds} instead of {ttft_without_b|seconds}. D is A's prompt again: it "
        "finds {found_d|int} of {prompt_d|int} tokens, never all. E puts one line in front of it, finds "
        "{found_e|int} and " + miss + "; F, of another tenant, finds {found_f|int}. Over all six, {hit_rate|percent} "
        "of the prompt tokens were found, and "
        + ("no answer changed." if same else "{same_answers|int} answers are the same.")
    )


def provenance() -> str:
    """On what the requests ran."""
    machine = platform.processor() or platform.machine()
    return (
        f"Model {MODEL} on the NumPy backend, float32, greedy, one request at a time; of each TTFT the median of "
        f"{REPEATS} runs, in processor time of one thread; {machine}, Python {platform.python_version()}, NumPy "
        f"{np.__version__}, {datetime.date.today()}."
    )


VISUALIZER = Visualizer(
    name="prefix-hits",
    title="What a prefix cache finds",
    badge="run",
    chapters=("5.5",),
    summary="Six requests on the real engine: what each finds in the prefix cache, and its time to first token.",
    formula="found = floor(min(shared, prompt - 1) / block size) * block size; computed = prompt - found",
    inputs=(
        Choice(
            "block_size",
            "Block size",
            "16",
            {str(size): str(size) for size in BLOCK_SIZES},
            "Tokens in a block: only whole blocks are found.",
            unit="tokens",
        ),
        Number(
            "system",
            "System prompt",
            "tokens",
            SYSTEM_TOKENS[-1],
            SYSTEM_TOKENS[0],
            SYSTEM_TOKENS[-1],
            "How many tokens the system prompt has.",
            instant="grid",
            stops=SYSTEM_TOKENS,
            more=True,
        ),
        Choice(
            "salt",
            "Shared by",
            "all",
            {"all": "all tenants", "tenant": "each alone"},
            "A salt in the key of its blocks keeps a tenant's cache to itself.",
            more=True,
        ),
    ),
    units={
        "block_size": "tokens",
        "prompt_tokens": "tokens",
        "found_tokens": "tokens",
        "hit_rate": "",
        "ttft_sum": "s",
        "ttft_sum_without": "s",
        "same_answers": "",
        "miss_differs": "",
        **{f"{key}_{letter}": unit for letter in "abcdef" for key, unit in _PER_REQUEST.items()},
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.core.kv_manager", "minillm.core.kv.prefix"),
)
