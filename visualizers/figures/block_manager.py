"""The block manager at work: a pool of KV blocks through a run in which they are shared, freed and evicted."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import altair as alt

from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, colour_scale, constant, either, rows, spec
from visualizers.palette import colour
from visualizers.runs import block_moments
from visualizers.runs.block_moments import JOBS, NAMES, POOL_SLOTS, Block, Moment

LAST = 65  # moments of the longest of the runs; the slider of a shorter one ends earlier
SLOTS_A_ROW = 16  # a row of the pool, so that a slot lies at the same place whatever the block size
LONGEST = 48  # tokens that the axis of the tables shows
SHARED, CACHED = "held by several", "free, content still cached"
OWNERS = {**{name: f"series-{i + 1}" for i, name in enumerate(NAMES)}, SHARED: "shared", CACHED: "cached"}
MARK_OFFSET = -14  # pixels from the middle of a table's bar to the mark above it, clear of the labels in it
GAP = 0.06  # between neighbouring blocks, in slots
POOL_KEY = ["A: held by A; a: free, but still caching A's content", "coloured as far as its slots are filled"]


def compute(inputs: Mapping[str, Any]) -> Data:
    """The state of pool, tables and requests at a moment of a run of the engine."""
    size = int(inputs["block_size"])
    run = block_moments.run(size, inputs["prefix_caching"] == "on")
    last = run.moments[-1]
    moment = run.moments[min(inputs["step"], len(run.moments) - 1)]
    held = [b for b in moment.blocks if b.holders]
    cached = sum(bool(b.cached_of) for b in moment.blocks)
    values = {
        "engine_step": moment.step + 1,
        "what": moment.what,
        "block_size": size,
        "total_blocks": len(moment.blocks),
        "used_blocks": len(held),
        "free_blocks": len(moment.blocks) - len(held),
        "cached_blocks": cached,
        "empty_slots": sum(size - b.filled for b in held),
        "saved_blocks": sum(len(b.holders) - 1 for b in held),
        "hit_tokens": moment.tally.hit_tokens,
        "computed_tokens": moment.tally.computed_tokens,
        "evicted_blocks": moment.tally.evicted_blocks,
        "preemptions": moment.tally.preemptions,
        "run_steps": run.num_steps,
        "run_computed_tokens": last.tally.computed_tokens,
        "run_hit_tokens": last.tally.hit_tokens,
    }
    return Data(
        values,
        {
            "pool": [_pool_row(b, size) for b in moment.blocks],
            "tables": _table_rows(moment, size),
            "requests": [
                {
                    "request": s.name,
                    "status": s.status,
                    "note": "" if s.table else s.status,
                    "known": s.known if s.table else 0,
                    "prompt": s.prompt,
                    "tokens": s.known,
                    "computed": s.computed,
                    "blocks": len(s.table),
                    "table": " ".join(map(str, s.table)) or "–",
                }
                for s in moment.sequences
            ],
        },
    )


def _owner(block: Block) -> str:
    if len(block.holders) > 1:
        return SHARED
    return block.holders[0] if block.holders else CACHED


def _pool_row(block: Block, size: int) -> dict[str, Any]:
    """Where a block stands in the grid of slots. Letters say what colours say: capitals hold, small ones are cached."""
    first = (block.block - 1) * size
    row, x = divmod(first, SLOTS_A_ROW)
    label = "".join(block.holders) or block.cached_of.lower()
    return {**_bar(block, x, size, label), "row": row, "id": str(block.block), "changed": block.changed}


def _bar(block: Block, first: int, size: int, label: str) -> dict[str, Any]:
    """A block as a bar from ``first``, filled as far as its slots are; the label stands in the wider part."""
    x0, x1 = first + GAP, first + size - GAP
    fill = round(x0 + (x1 - x0) * block.filled / size, 3)
    inside = 2 * block.filled >= size
    middle = (x0 + fill) / 2 if inside else (fill + x1) / 2
    owner = _owner(block)
    return {"x0": x0, "x1": x1, "fill": fill, "owner": owner, "label": label, "inside": inside, "at": round(middle, 3)}


def _table_rows(moment: Moment, size: int) -> list[dict[str, Any]]:
    """Each request's table as the run of its blocks along the sequence."""
    by_id = {b.block: b for b in moment.blocks}
    return [
        {"request": s.name, **_bar(by_id[block], i * size, size, str(block) if size > 1 else "")}
        for s in moment.sequences
        for i, block in enumerate(s.table)
    ]


def figure(data: Data) -> Spec:
    """The pool as a grid of blocks, and under it the block tables along the sequences."""
    return _chart(data.values["block_size"])


@cache
def _chart(size: int) -> Spec:
    """The chart depends on the block size alone, and hundreds of states share it: it is built once."""
    return spec(alt.vconcat(_pool_chart(size), _tables_chart(), spacing=14))


def _pool_chart(size: int) -> Any:
    height = POOL_SLOTS // SLOTS_A_ROW
    x = alt.X("x0:Q", scale=alt.Scale(domain=[0, SLOTS_A_ROW], nice=False), axis=None)
    y = alt.Y("row0:Q", scale=alt.Scale(domain=[height, 0], nice=False), axis=None)
    place = {"x": x, "x2": "x1:Q", "y": y, "y2": "row1:Q"}
    # In a row of height 1 the blocks take the lower two thirds, their numbers stand above them.
    blocks = alt.Chart(rows("pool")).transform_calculate(
        row0="datum.row + 0.34",
        row1="datum.row + 0.98",
        middle="(datum.x0 + datum.x1) / 2",
        label_row="datum.row + 0.66",
        id_row="datum.row + 0.18",
    )
    return alt.layer(
        blocks.mark_rect(fill="transparent", stroke=colour("free"), strokeWidth=1).encode(**place),
        blocks.mark_rect().encode(**{**place, "x2": "fill:Q"}, color=_owner_colour()),
        blocks.transform_filter("datum.changed")
        .mark_rect(fill="transparent", stroke=colour("text"), strokeWidth=2.5)
        .encode(**place),
        blocks.mark_text(fontSize=9 if size == 1 else 11, fontWeight="bold").encode(
            x="at:Q", y="label_row:Q", text="label:N", color=_ink()
        ),
        blocks.mark_text(color=colour("muted"), fontSize=9 if size == 1 else 10).encode(
            x="middle:Q", y="id_row:Q", text="id:N"
        ),
        height=height * 38,
        title=alt.TitleParams(f"Pool: {POOL_SLOTS} slots in blocks of {size}", subtitle=POOL_KEY),
    )


def _owner_colour() -> Any:
    """The colour of a block: who holds it. Both charts say the same of their one legend."""
    return alt.Color("owner:N", scale=colour_scale(OWNERS), legend=alt.Legend(values=[SHARED, CACHED]))


def _ink() -> Any:
    """The colour of a label: of the page on a filled bar, of text beside it."""
    return either(alt.ColorValue, "datum.inside", colour("page"), colour("text"))


def _tables_chart() -> Any:
    y = alt.Y("request:N", scale=alt.Scale(domain=list(NAMES), paddingInner=0.3), axis=alt.Axis(title=None))
    x = alt.X("x0:Q", scale=alt.Scale(domain=[0, LONGEST], nice=False), axis=alt.Axis(title="position in the sequence"))
    blocks = alt.Chart(rows("tables"))
    requests = alt.Chart(rows("requests"))
    return alt.layer(
        blocks.mark_rect(fill="transparent", stroke=colour("free"), strokeWidth=1).encode(x=x, x2="x1:Q", y=y),
        blocks.mark_rect().encode(x=x, x2="fill:Q", y=y, color=_owner_colour()),
        blocks.mark_text(fontSize=10, fontWeight="bold").encode(x="at:Q", y=y, text="label:N", color=_ink()),
        requests.transform_filter("datum.known > 0")
        .mark_point(shape="triangle-down", color=colour("text"), size=45, yOffset=MARK_OFFSET)
        .encode(x="known:Q", y=y),
        requests.mark_text(align="left", color=colour("muted"), fontSize=11, dx=4).encode(
            x=constant(alt.XDatum, 0), y=y, text="note:N"
        ),
        height=len(JOBS) * 30,
        title="Block tables (▾ tokens known)",
    )


def table(data: Data) -> Table:
    """The requests at this moment."""
    return Table(
        (
            Column("request", "Request"),
            Column("status", "Status"),
            Column("prompt", "Prompt", "tokens", "int"),
            Column("tokens", "Known", "tokens", "int"),
            Column("computed", "Computed", "tokens", "int"),
            Column("blocks", "Blocks", "", "int"),
            Column("table", "Block table"),
        ),
        data.rows["requests"],
    )


def sentence(data: Data) -> str:
    """What happened in this moment, and what it leaves."""
    return (
        "{what} Of {total_blocks|int} blocks {used_blocks|int} {used_blocks|int?is:are} held, and {cached_blocks|int} "
        "{cached_blocks|int?free one keeps:free ones keep} content that can be hit; {empty_slots|int} reserved "
        "{empty_slots|int?slot is:slots are} empty, sharing saves {saved_blocks|int} {saved_blocks|int?block:blocks}."
    )


def provenance() -> str:
    """On what the run was made."""
    return (
        f"Model tiny on the NumPy backend, greedy, {len(JOBS)} requests, at most {block_moments.STEP_TOKENS} tokens "
        f"and 4 requests in a step; Python {platform.python_version()} on {platform.machine()}, "
        f"{datetime.now(UTC):%Y-%m-%d}."
    )


VISUALIZER = Visualizer(
    name="block-manager",
    title="The block manager at work",
    badge="run",
    chapters=("5.4", "5.5", "1.6"),
    summary="A small pool of KV blocks through a run of the engine: taken, filled, shared, freed, evicted.",
    formula="blocks of a request = ceil(tokens / block size); held blocks = union of all block tables",
    inputs=(
        Number(
            "step",
            "Moment",
            "",
            20,
            0,
            LAST,
            "How far the run has come: each step of the engine is planned, then lands. A run that has ended stays so.",
            instant="grid",
            play=True,
        ),
        Choice("block_size", "Block size", "4", {"1": "1", "4": "4", "16": "16"}, "Tokens in a block.", unit="tokens"),
        Choice(
            "prefix_caching",
            "Prefix cache",
            "on",
            {"on": "on", "off": "off"},
            "Whether full blocks stay findable for later requests with the same beginning.",
        ),
    ),
    units={
        "engine_step": "",
        "what": "",
        "block_size": "tokens",
        "total_blocks": "blocks",
        "used_blocks": "blocks",
        "free_blocks": "blocks",
        "cached_blocks": "blocks",
        "empty_slots": "slots",
        "saved_blocks": "blocks",
        "hit_tokens": "tokens",
        "computed_tokens": "tokens",
        "evicted_blocks": "blocks",
        "preemptions": "",
        "run_steps": "steps",
        "run_computed_tokens": "tokens",
        "run_hit_tokens": "tokens",
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.core.scheduler", "minillm.core.kv_manager", "minillm.core.blocks", "minillm.core.kv.prefix"),
)
