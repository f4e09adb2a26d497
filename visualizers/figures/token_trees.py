"""Token trees: what a draft model hedges in each step, the mask that verifies it at once, and trees beside chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import altair as alt

from minillm.speculate.tree import ROOT, depths, visible
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, colour_scale, either, rows, spec
from visualizers.levels.lines import end_labels, labelled_ends
from visualizers.levels.links import linked, linker
from visualizers.levels.words import fitting, measured
from visualizers.levels.words import visible as visible_text
from visualizers.palette import colour
from visualizers.runs import bundled, token_tree_run
from visualizers.runs.bundled import DRAFT_MODEL, MODEL
from visualizers.runs.speculation_run import OUTPUT_TOKENS, PROMPTS, Seen
from visualizers.runs.token_tree_run import HEADS, SETTINGS, SHAPES, SIZES, STEPS

KEPT, DROPPED, UNSEEN = "kept", "thrown away", "not seen"
COLOURS = {KEPT: "decode", DROPPED: "free"}
TITLES = {"chain": "draft model, chain", "tree": "draft model, tree"}
HEAD_TITLES = {"mtp": "MTP", "eagle": "EAGLE", "medusa": "Medusa, tree"}
NAMES = {**TITLES, **HEAD_TITLES}
SHAPE_COLOURS = {title: f"series-{i + 1}" for i, title in enumerate(NAMES.values())}


def compute(inputs: Mapping[str, Any]) -> Data:
    """One step's tree, and both shapes at all sizes."""
    setting, size, step = inputs["setting"], int(inputs["size"]), int(inputs["step"])
    served = {(shape, n): token_tree_run.run(setting, shape, n) for shape in SHAPES for n in SIZES}
    heads = {method: token_tree_run.run_heads(setting, method) for method in HEADS}
    trees = served["tree", size].seen
    seen = trees[min(step, len(trees)) - 1]
    levels = depths(seen.parents)
    values: dict[str, Any] = {
        "step": step,
        "size": size,
        "drafted_tokens": len(seen.token_ids),
        "depth": max(levels) + 1,
        "branches": sum(node not in seen.parents for node in range(len(seen.parents))),
        "kept_tokens": len(seen.kept),
    }
    for shape in SHAPES:
        found = served[shape, size]
        values[f"tokens_{shape}"] = found.outcome.tokens_per_draft
        values[f"draft_steps_{shape}"] = found.draft_steps
        values[f"first_{shape}"] = found.outcome.accepted_at[0]
    for method, outcome in heads.items():
        values[f"tokens_{method}"] = outcome.tokens_per_draft
        values[f"first_{method}"] = outcome.accepted_at[0]
    return Data(
        values,
        {
            **_drawing(seen, levels),
            "mask": [
                {
                    "row": _label(seen, i),
                    "column": str(j + 1),
                    **measured(bundled.decode([seen.token_ids[j]]) if sees else ""),
                    "columns": len(levels),
                    "state": (KEPT if i in seen.kept else DROPPED) if sees else UNSEEN,
                    "group": i,
                }
                for i, line in enumerate(visible(seen.parents))
                for j, sees in enumerate(line)
            ],
            "shapes": [
                {"size": n, "shape": TITLES[shape], "tokens": round(found.outcome.tokens_per_draft, 4)}
                for (shape, n), found in served.items()
            ],
            "ends": labelled_ends(
                {TITLES[shape]: (SIZES[-1], served[shape, SIZES[-1]].outcome.tokens_per_draft) for shape in SHAPES},
                "size",
                "tokens",
            ),
            "heads": [
                {"size": HEADS[m], "shape": HEAD_TITLES[m], "tokens": round(outcome.tokens_per_draft, 4)}
                for m, outcome in heads.items()
            ],
            "table": [
                {
                    "shape": TITLES[shape],
                    "size": n,
                    "drafts": found.outcome.drafts,
                    "first": found.outcome.accepted_at[0],
                    "steps": found.draft_steps,
                    "tokens": found.outcome.tokens_per_draft,
                }
                for (shape, n), found in served.items()
            ]
            + [
                {
                    "shape": HEAD_TITLES[m],
                    "size": HEADS[m],
                    "drafts": outcome.drafts,
                    "first": outcome.accepted_at[0],
                    "steps": None,
                    "tokens": outcome.tokens_per_draft,
                }
                for m, outcome in heads.items()
            ],
        },
    )


def _drawing(seen: Seen, levels: Sequence[int]) -> dict[str, list[dict[str, Any]]]:
    """Nodes and edges: a token's depth is its column, its branch its row."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(seen.parents):
        children.setdefault(parent, []).append(node)
    heights: dict[int, float] = {}
    leaves = 0

    def place(node: int) -> float:
        nonlocal leaves
        below = [place(child) for child in children.get(node, [])]
        heights[node] = (below[0] + below[-1]) / 2 if below else leaves
        leaves += not below
        return heights[node]

    place(ROOT)
    nodes = [{"x": 0, "y": heights[ROOT], "text": _text(seen.last), "state": KEPT, "group": ROOT}]
    edges = []
    for node, (parent, level) in enumerate(zip(seen.parents, levels, strict=True)):
        own = {"state": KEPT if node in seen.kept else DROPPED, "group": node}
        nodes.append({"x": level + 1, "y": heights[node], "text": _label(seen, node), **own})
        edges.append({"x": level, "y": heights[parent], "x2": level + 1, "y2": heights[node], **own})
    return {"nodes": nodes, "edges": edges}


def _label(seen: Seen, node: int) -> str:
    """A token with its number, by which the tree and the mask call it."""
    return f"{node + 1} {_text(seen.token_ids[node])}"


def _text(token_id: int) -> str:
    return visible_text(bundled.decode([token_id]))


def figure(data: Data) -> Spec:
    """The tree of a step, its mask, and trees beside chains."""
    return _chart()


@cache
def _chart() -> Spec:
    return spec(
        alt.concat(_tree(), _mask(), _shapes(), spacing=22, columns=1, align="none").resolve_scale(color="independent")
    )


def _tree() -> Any:
    x = alt.X("x:Q", axis=None, scale=alt.Scale(nice=False, zero=False, padding=44))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(reverse=True, nice=False, zero=False, padding=18))
    colours = alt.Color("state:N", scale=colour_scale(COLOURS), legend=alt.Legend(values=list(COLOURS)))
    edges = (
        alt.Chart(rows("edges"))
        .mark_rule(strokeCap="round")
        .encode(x=x, x2="x2:Q", y=y, y2="y2:Q", color=colours, strokeWidth=_if_kept(alt.StrokeWidthValue, 4, 1.5))
    )
    nodes = alt.Chart(rows("nodes"))
    points = nodes.mark_point(size=90, opacity=1, strokeWidth=3).encode(x=x, y=y, color=colours, stroke=linked())
    words = nodes.mark_text(baseline="bottom", dy=-7, fontSize=12)
    ground = nodes.mark_text(  # where an edge would cross a word
        baseline="bottom", dy=-7, fontSize=12, stroke=colour("page"), strokeWidth=5, strokeJoin="round"
    ).encode(x=x, y=y, text="text:N")
    texts = words.encode(x=x, y=y, text="text:N", color=_if_kept(alt.ColorValue, colour("text"), colour("muted")))
    return alt.layer(edges, ground, linker(points, "nodes"), texts, height=230, title="The draft of one step")


def _if_kept(channel: Any, yes: Any, no: Any) -> Any:
    return either(channel, f"datum.state === '{KEPT}'", yes, no)


def _mask() -> Any:
    """A row for each drafted token; the columns that it sees are its ancestors and itself."""
    x = alt.X("column:O", sort=None, axis=alt.Axis(orient="top", title=None, labelAngle=0, domain=False, ticks=False))
    y = alt.Y("row:O", sort=None, axis=alt.Axis(title=None, labelLimit=110))
    cells = (
        alt.Chart(rows("mask"))
        .mark_rect(cornerRadius=2, strokeWidth=1.5)
        .encode(
            x=x,
            y=y,
            color=alt.Color("state:N", scale=colour_scale({**COLOURS, UNSEEN: "grid"}), legend=None),
            fillOpacity=either(alt.FillOpacityValue, f"datum.state === '{UNSEEN}'", 0.35, 0.55),
            stroke=linked(),
        )
    )
    words = fitting(alt.Chart(rows("mask"))).mark_text(fontSize=11).encode(x=x, y=y, text="fits:N")
    return alt.layer(linker(cells, "mask"), words, height=alt.Step(21), title="What each token sees in that step")


def _shapes() -> Any:
    x = alt.X(
        "size:Q",
        title="tokens of a draft",
        scale=alt.Scale(type="log", base=2, domain=[min(HEADS.values()), SIZES[-1]], nice=False),
        axis=alt.Axis(values=[min(HEADS.values()), *SIZES], format="d"),
    )
    y = alt.Y("tokens:Q", title=None, scale=alt.Scale(zero=False, padding=14), axis=alt.Axis(tickCount=4))
    colours = alt.Color("shape:N", scale=colour_scale(SHAPE_COLOURS), legend=None)
    lines = alt.Chart(rows("shapes")).encode(x=x, y=y, color=colours)
    heads = alt.Chart(rows("heads")).encode(x=x, y=y, color=colours)
    layers = (
        lines.mark_line(),
        lines.mark_point(),
        heads.mark_point(shape="diamond", size=130, opacity=1),
        heads.mark_text(align="left", dx=10, fontSize=12).encode(text="shape:N"),
        end_labels("ends", x, y, {title: SHAPE_COLOURS[title] for title in TITLES.values()}),
    )
    return alt.layer(*layers, height=170, title="Tokens of a step, all prompts")


def table(data: Data) -> Table:
    """Both shapes at every size."""
    return Table(
        (
            Column("shape", "Drafted by"),
            Column("size", "Draft", "tokens", "int"),
            Column("drafts", "Drafts", "", "int"),
            Column("first", "First token kept", "", "percent"),
            Column("steps", "Steps of the draft model", "", "fixed1"),
            Column("tokens", "Tokens of a verifying step", "", "fixed2"),
        ),
        data.rows["table"],
    )


def sentence(data: Data) -> str:
    """The tree of this step, and what trees bring over all."""
    return (
        "In step {step|int} the draft has {drafted_tokens|int} {drafted_tokens|int?token:tokens} on {branches|int} "
        "{branches|int?branch:branches}, up to {depth|int} deep, and {kept_tokens|int} of them "
        "{kept_tokens|int?is:are} kept. Over all prompts a tree of {size|int} yields "
        "{tokens_tree|fixed2} tokens for each step that verifies, after {draft_steps_tree|fixed1} steps of the draft "
        "model; a chain of as many yields {tokens_chain|fixed2}, after {draft_steps_chain|fixed1}."
    )


def provenance() -> str:
    """What was run."""
    return (
        f"Counted, not timed: target {MODEL}, draft model {DRAFT_MODEL} and the bundled heads, NumPy backend in "
        "float32; the tree is that of "
        f"the first of {len(PROMPTS)} prompts of {OUTPUT_TOKENS} output tokens each, in one batch. At most 4 tokens of "
        "a level are extended, each by its 4 likeliest; of all found, the likeliest paths are the draft."
    )


VISUALIZER = Visualizer(
    name="token-trees",
    title="A tree of guesses",
    badge="run",
    chapters=("7.7",),
    summary="The token tree that is drafted and verified in each step of an answer, its mask, and trees beside chains.",
    formula="tokens of a verifying step = 1 + sum over the tree's tokens of the chance that all down to it are kept",
    inputs=(
        Number("step", "Step", "", 3, 1, STEPS, "Which draft of the first answer is shown.", instant="grid", play=True),
        Number(
            "size",
            "Draft",
            "tokens",
            8,
            SIZES[0],
            SIZES[-1],
            "The most tokens of a draft, those of all branches counted.",
            instant="grid",
            stops=SIZES,
            more=True,
        ),
        Choice(
            "setting",
            "Temperature",
            SETTINGS[0],
            {"greedy": "0", "drawn": "1"},
            "How tokens are drawn; drafts are verified by the target's own draws.",
            more=True,
        ),
    ),
    units={
        "step": "",
        "size": "tokens",
        "drafted_tokens": "tokens",
        "depth": "",
        "branches": "",
        "kept_tokens": "tokens",
        **{f"tokens_{shape}": "" for shape in SHAPES},
        **{f"draft_steps_{shape}": "" for shape in SHAPES},
        **{f"first_{shape}": "" for shape in SHAPES},
        **{f"tokens_{method}": "" for method in HEADS},
        **{f"first_{method}": "" for method in HEADS},
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.speculate.draft_tree", "minillm.speculate.tree", "minillm.speculate.accept"),
)
