"""The block manager at work: a pool of KV blocks through a run in which they are shared, freed and evicted."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import altair as alt

from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, colour_scale, constant, rows, spec
from visualizers.levels.links import PARAM, linked, linker
from visualizers.palette import colour, ink
from visualizers.runs import block_moments
from visualizers.runs.block_moments import JOBS, NAMES, POOL_SLOTS, Block, Moment

LAST = 65  # moments of the longest of the runs; the slider of a shorter one ends earlier
SLOTS_A_ROW = 16  # a row of the pool, so that a slot lies at the same place whatever the block size
LONGEST = 48  # tokens that the axis of the tables shows
SHARED, CACHED = "held by several", "free, content still cached"
OWNERS = {**{name: f"series-{i + 1}" for i, name in enumerate(NAMES)}, SHARED: "shared", CACHED: "cached"}
WIDE = LONGEST // SLOTS_A_ROW  # a slot of the pool is so many times as wide as one of a table
GAP = 0.06  # between neighbouring blocks, in slots
POOL_KEY = "A: held by A; a: free, but still caching A's content"
# The picture from above, in pixels: the pool, the heading of the tables, the tables.
POOL_ROW, BLOCK_TOP, BLOCK_BOTTOM = 38, 13, 37
TABLES_AT, TABLE_ROW, TABLE_BLOCK = POOL_SLOTS // SLOTS_A_ROW * POOL_ROW + 62, 32, 22
HEIGHT = TABLES_AT + len(JOBS) * TABLE_ROW


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
    pool, tables = [_pool_row(b, size) for b in moment.blocks], _table_rows(moment, size)
    return Data(
        values,
        {
            "pool": pool,
            "tables": tables,
            "blocks": [{field: row[field] for field in _DRAWN} for row in [*pool, *tables]],
            "heading": [{"text": "Block tables (▾ tokens known)", "at": TABLES_AT - 12}],
            "requests": [
                {
                    "key": s.name,
                    "request": s.name,
                    "status": s.status,
                    "middle": _table_top(row) + TABLE_BLOCK / 2,
                    "note": "" if s.table else s.status,
                    "known": s.known if s.table else 0,
                    "prompt": s.prompt,
                    "tokens": s.known,
                    "computed": s.computed,
                    "blocks": len(s.table),
                    "table": " ".join(map(str, s.table)) or "–",
                }
                for row, s in enumerate(moment.sequences)
            ],
        },
    )


# What the chart needs of a block in the pool or in a table; the rest follows from the size of a block.
_DRAWN = ("key", "request", "x0", "top", "fill", "owner", "label", "inside", "at", "group", "changed")


def _owner(block: Block) -> str:
    if len(block.holders) > 1:
        return SHARED
    return block.holders[0] if block.holders else CACHED


def _pool_row(block: Block, size: int) -> dict[str, Any]:
    """Where a block stands in the grid of slots. Letters say what colours say: capitals hold, small ones are cached."""
    row, x = divmod((block.block - 1) * size, SLOTS_A_ROW)
    label = "".join(block.holders) or block.cached_of.lower()
    return {
        "key": str(block.block),
        **_bar(block, x, size, label, WIDE),
        **_between(row * POOL_ROW + BLOCK_TOP, row * POOL_ROW + BLOCK_BOTTOM),
        "request": "",
        "changed": block.changed,
    }


def _between(top: float, bottom: float) -> dict[str, float]:
    return {"top": top, "bottom": bottom, "middle": (top + bottom) / 2}


def _bar(block: Block, first: int, size: int, label: str, wide: int = 1) -> dict[str, Any]:
    """A block as a bar from ``first``, filled as far as its slots are; the label stands in the wider part."""
    x0, x1 = wide * (first + GAP), wide * (first + size - GAP)
    fill = round(x0 + (x1 - x0) * block.filled / size, 3)
    inside = 2 * block.filled >= size
    at = (x0 + fill) / 2 if inside else (fill + x1) / 2
    return {
        "x0": round(x0, 3),
        "x1": round(x1, 3),
        "fill": fill,
        "owner": _owner(block),
        "label": label,
        "inside": inside,
        "at": round(at, 3),
        "group": str(block.block),
    }


def _table_rows(moment: Moment, size: int) -> list[dict[str, Any]]:
    """Each request's table as the run of its blocks along the sequence."""
    by_id = {b.block: b for b in moment.blocks}
    return [
        {
            "key": f"{s.name}{i}",
            "request": s.name,
            **_bar(by_id[block], i * size, size, str(block) if size > 1 else ""),
            **_between(_table_top(row), _table_top(row) + TABLE_BLOCK),
            "changed": (s.name, block) in moment.taken,
        }
        for row, s in enumerate(moment.sequences)
        for i, block in enumerate(s.table)
    ]


def _table_top(row: int) -> int:
    return TABLES_AT + row * TABLE_ROW + TABLE_ROW - TABLE_BLOCK


def figure(data: Data) -> Spec:
    """The pool as a grid of blocks, and under it the block tables along the sequences."""
    return _chart(data.values["block_size"])


@cache
def _chart(size: int) -> Spec:
    """The chart depends on the block size alone, and hundreds of states share it: it is built once."""
    slots = size - 2 * GAP
    blocks = alt.Chart(rows("blocks")).transform_calculate(
        x1=f"datum.x0 + (datum.request ? {slots} : {WIDE * slots})",
        bottom=f"datum.top + (datum.request ? {TABLE_BLOCK} : {BLOCK_BOTTOM - BLOCK_TOP})",
        middle="(datum.top + datum.bottom) / 2",
        middle_x="(datum.x0 + datum.x1) / 2",
        above="datum.top - 6",
    )
    in_pool = blocks.transform_filter("!datum.request")
    small = 9 if size == 1 else 10
    return spec(
        alt.layer(
            blocks.mark_rect(fill="transparent", stroke=colour("free"), strokeWidth=1).encode(**_PLACE),
            blocks.mark_rect().encode(**{**_PLACE, "x2": "fill:Q"}, fill=_owner_fill()),
            *_arrow_marks(blocks, size),
            _labels(blocks, small),
            in_pool.transform_filter("datum.changed")
            .mark_rect(fill="transparent", stroke=colour("text"), strokeWidth=2.5)
            .encode(**_PLACE),
            in_pool.mark_text(color=colour("muted"), fontSize=small).encode(
                x=_x("middle_x"), y=_y("above"), text="key:N"
            ),
            *_table_texts(),
            # What is pointed at has a line around it, in the pool and in every table that names it.
            linker(blocks.mark_rect(fill="transparent", strokeWidth=2.5).encode(**_PLACE, stroke=linked()), "blocks"),
            height=HEIGHT,
            title=alt.TitleParams(f"Pool: {POOL_SLOTS} slots in blocks of {size}", subtitle=POOL_KEY, frame="group"),
        )
    )


def _x(field: str) -> Any:
    axis = alt.Axis(title="position in the sequence")
    return alt.X(f"{field}:Q", axis=axis, scale=alt.Scale(domain=[0, LONGEST], nice=False))


def _y(field: str) -> Any:
    return alt.Y(f"{field}:Q", axis=None, scale=alt.Scale(domain=[HEIGHT, 0], nice=False))


_PLACE = {"x": _x("x0"), "x2": "x1:Q", "y": _y("top"), "y2": "bottom:Q"}


def _owner_fill() -> Any:
    return alt.Fill("owner:N", scale=colour_scale(OWNERS), legend=alt.Legend(values=[SHARED, CACHED]))


def _labels(base: Any, font: int) -> Any:
    """Who holds a block, in ink that can be read on its colour, or on the page where the block is empty."""
    inks = alt.Scale(domain=list(OWNERS), range=[ink(name) for name in OWNERS.values()])
    label = alt.Color("owner:N", scale=inks, legend=None, condition={"test": "!datum.inside", "value": colour("text")})
    return base.mark_text(fontSize=font, fontWeight="bold").encode(
        x=_x("at"), y=_y("middle"), text="label:N", color=label
    )


def _arrow_marks(blocks: Any, size: int) -> list[Any]:
    """From a table to the pool: for what this moment changed, or for the block that the reader points at."""
    shown = alt.OpacityValue(
        0, condition=[{"param": PARAM, "empty": False, "value": 1}, {"test": "datum.changed", "value": 0.55}]
    )
    first = f"((toNumber(datum.group) - 1) * {size})"  # slot of the pool
    base = (
        blocks.transform_filter("datum.request")
        .transform_calculate(
            to_x=f"{WIDE} * ({first} % {SLOTS_A_ROW} + {size / 2})",
            to_y=f"floor({first} / {SLOTS_A_ROW}) * {POOL_ROW} + {BLOCK_BOTTOM}",
        )
        # A head points along its line, whatever the width of the chart makes of that.
        .transform_calculate(
            angle=f"atan2((datum.to_x - datum.middle_x) * width / {LONGEST}, datum.top - datum.to_y) * 180 / PI"
        )
    )
    lines = base.mark_rule(color=colour("text"), strokeWidth=1.25).encode(
        x=_x("middle_x"), x2="to_x:Q", y=_y("top"), y2="to_y:Q", opacity=shown
    )
    heads = base.mark_point(shape="triangle", filled=True, size=80, color=colour("text")).encode(
        x=_x("to_x"), y=_y("to_y"), opacity=shown, angle=alt.Angle("angle:Q", scale=None)
    )
    return [lines, heads]


def _table_texts() -> list[Any]:
    """The tables' heading, the requests' names with what holds no block, and how far each is known."""
    requests = alt.Chart(rows("requests"))
    heading = alt.Chart(rows("heading")).mark_text(align="left", fontWeight="bold", fontSize=13)
    names = requests.mark_text(align="right", dx=-6, color=colour("muted"))
    notes = requests.mark_text(align="left", color=colour("muted"), fontSize=11, dx=4)
    known = requests.transform_filter("datum.known > 0").mark_point(
        shape="triangle-down", color=colour("text"), size=40, opacity=1, yOffset=-TABLE_BLOCK / 2 - 3
    )
    left = constant(alt.XValue, 0)
    return [
        heading.encode(x=left, y=_y("at"), text="text:N"),
        names.encode(x=left, y=_y("middle"), text="request:N"),
        notes.encode(x=left, y=_y("middle"), text="note:N"),
        known.encode(x=_x("known"), y=_y("middle")),
    ]


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
            19,
            0,
            LAST,
            "How far the run has come: each step of the engine is planned, then lands. A run that has ended stays so.",
            instant="grid",
            play=True,
        ),
        Choice(
            "block_size",
            "Block size",
            "4",
            {"1": "1", "4": "4", "16": "16"},
            "Tokens in a block.",
            unit="tokens",
            more=True,
        ),
        Choice(
            "prefix_caching",
            "Prefix cache",
            "on",
            {"on": "on", "off": "off"},
            "Whether full blocks stay findable for later requests with the same beginning.",
            more=True,
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
