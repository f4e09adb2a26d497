"""Six requests that share beginnings: which tokens the prefix cache has, which it cannot use, what a hit saves."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt
import numpy as np

from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import colour_scale, rows
from visualizers.palette import colour
from visualizers.runs import prefix_run
from visualizers.runs.bundled import MODEL
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
LONGEST = 320  # tokens of the axis


def compute(inputs: Mapping[str, Any]) -> Data:
    """The six requests with the cache and without, and what they found."""
    size, system = int(inputs["block_size"]), int(inputs["system"])
    salted = inputs["salt"] == "tenant"
    served = prefix_run.run(system, size, salted, True)
    # Blocks and salts change nothing in a run that keeps nothing: it is made once.
    without = prefix_run.run(system, 16, False, False)
    requests = [_request(served[: i + 1], salted, other) for i, other in enumerate(without)]
    prompt, found = (sum(r[key] for r in requests) for key in ("prompt", "found"))
    values: dict[str, Any] = {
        "block_size": size,
        "prompt_tokens": prompt,
        "found_tokens": found,
        "hit_rate": found / prompt,
        "ttft_sum": sum(r["ttft"] for r in requests),
        "ttft_sum_without": sum(r["ttft_without"] for r in requests),
        "same_answers": sum(s.written == o.written for s, o in zip(served, without, strict=True)),
    }
    for letter, r in zip("abcdef", requests, strict=True):
        values |= {f"{key}_{letter}": r[key] for key in _PER_REQUEST}
    return Data(
        values,
        {
            "requests": requests,
            "parts": [part for r in requests for part in _parts(r)],
            "edges": [{"at": at} for at in range(size, LONGEST, size)] if size > 1 else [],
        },
    )


_PER_REQUEST = {"prompt": "tokens", "shared": "tokens", "found": "tokens", "ttft": "s", "ttft_without": "s"}


def _request(upto: tuple[Served, ...], salted: bool, without: Served) -> dict[str, Any]:
    *before, served = upto
    prompt, shared = len(served.sent.tokens), shared_tokens(served.sent, before, salted)
    return {
        "request": NAMES[served.sent.name],
        "prompt": prompt,
        "shared": shared,
        "found": served.hit_tokens,
        "computed": prompt - served.hit_tokens,
        "ttft": round(served.ttft_s, 6),
        "ttft_without": round(without.ttft_s, 6),
    }


def _parts(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    found, shared, prompt = request["found"], request["shared"], request["prompt"]
    ends = {FOUND: (0, found), LOST: (found, shared), NEW: (shared, prompt)}
    return [{"request": request["request"], "part": part, "from": a, "to": b} for part, (a, b) in ends.items() if b > a]


def figure(data: Data) -> dict[str, Any]:
    """The prompts along their tokens, cut into blocks, and the time to each first token."""
    return _chart()


@cache
def _chart() -> dict[str, Any]:
    y = alt.Y("request:N", scale=alt.Scale(domain=list(NAMES.values()), paddingInner=0.25), axis=alt.Axis(title=None))
    x = alt.X("from:Q", title="tokens of the prompt", scale=alt.Scale(domain=[0, LONGEST], nice=False))
    parts = (
        alt.Chart(rows("parts"))
        .mark_bar()
        .encode(x=x, x2="to:Q", y=y, color=alt.Color("part:N", scale=colour_scale(PARTS), legend=alt.Legend()))
    )
    edges = alt.Chart(rows("edges")).mark_rule(color=colour("page"), strokeWidth=1.5).encode(x="at:Q")
    prompts = alt.layer(parts, edges, height=len(NAMES) * 24, title="Prompts, cut into blocks")
    base = alt.Chart(rows("requests")).transform_calculate(
        ms="1000 * datum.ttft", ms_without="1000 * datum.ttft_without"
    )
    before = base.mark_bar(height={"band": 0.9}, color=colour("free"), opacity=0.4).encode(
        x=alt.X("ms_without:Q", title="milliseconds"), y=y
    )
    after = base.mark_bar(height={"band": 0.5}, color=colour("prefill")).encode(x="ms:Q", y=y)
    times = alt.layer(before, after, height=len(NAMES) * 24, title="TTFT: pale without the cache, strong with it")
    found: dict[str, Any] = alt.vconcat(prompts, times, spacing=22).to_dict()
    return found


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
            Column("ttft", "TTFT with", "", "seconds"),
        ),
        data.rows["requests"],
    )


def sentence(data: Data) -> str:
    """What is found and what is not."""
    same = data.values["same_answers"] == len(NAMES)
    blocks = "one token" if data.values["block_size"] == 1 else "{block_size|int} tokens"
    return (
        f"In blocks of {blocks} "
        "B finds {found_b|int} of the {shared_b|int} tokens that it shares, and "
        "its first token comes after {ttft_b|seconds} instead of {ttft_without_b|seconds}. D is A's prompt again: it "
        "finds {found_d|int} of {prompt_d|int} tokens, never all. E puts one line in front of it and finds "
        "{found_e|int}; F, of another tenant, finds {found_f|int}. Over all six, {hit_rate|percent} of the prompt "
        "tokens were found, and " + ("no answer changed." if same else "{same_answers|int} answers are the same.")
    )


def provenance() -> str:
    """On what the requests ran."""
    machine = platform.processor() or platform.machine()
    return (
        f"Model {MODEL} on the NumPy backend, float32, greedy, one request at a time; of each TTFT the quickest of "
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
        ),
        Choice(
            "salt",
            "Shared by",
            "all",
            {"all": "all tenants", "tenant": "each alone"},
            "A salt in the key of its blocks keeps a tenant's cache to itself.",
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
        **{f"{key}_{letter}": unit for letter in "abcdef" for key, unit in _PER_REQUEST.items()},
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.core.kv_manager", "minillm.core.prefix"),
)
