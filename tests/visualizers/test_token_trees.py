"""The figure of token trees: what is drawn is a tree, its mask is that of its parents, what is kept came out."""

from __future__ import annotations

from itertools import product

import pytest

from minillm.speculate.tree import ROOT, depths
from visualizers.contract import Data
from visualizers.figures import token_trees
from visualizers.figures.token_trees import HEAD_TITLES, KEPT, UNSEEN, VISUALIZER, _text
from visualizers.runs import speculation_run
from visualizers.runs.speculation_run import Seen
from visualizers.runs.token_tree_run import HEADS, SETTINGS, SIZES, STEPS, run, run_heads


def at(**inputs: object) -> Data:
    return token_trees.compute({**VISUALIZER.defaults(), **inputs})


@pytest.mark.parametrize(("setting", "shape"), list(product(SETTINGS, ("chain", "tree"))))
def test_trees_and_chains_change_no_token(setting: str, shape: str) -> None:
    plain = speculation_run.run(setting, None)  # type: ignore[arg-type]
    for size in SIZES:
        found = run(setting, shape, size).outcome  # type: ignore[arg-type]
        assert found.outputs == plain.outputs
        assert sum(map(len, found.outputs)) == found.steps + found.accepted


@pytest.mark.parametrize("setting", SETTINGS)
def test_heads_change_no_token(setting: str) -> None:
    plain = speculation_run.run(setting, None)  # type: ignore[arg-type]
    data = at(setting=setting)
    for method, size in HEADS.items():
        found = run_heads(setting, method)  # type: ignore[arg-type]
        assert found.outputs == plain.outputs
        assert 0 < found.drafted <= size * found.drafts
        assert data.values[f"tokens_{method}"] == 1 + found.accepted / found.drafts
        assert data.values[f"first_{method}"] == found.accepted_at[0]
    drafts = {row["shape"]: row["drafts"] for row in data.rows["table"]}
    assert drafts[HEAD_TITLES["eagle"]] == run_heads(setting, "eagle").drafts  # type: ignore[arg-type]


def test_a_head_that_sees_the_hidden_state_beats_a_model_that_sees_the_text() -> None:
    """What the chapter says of the diamonds, at temperature 0."""
    values = at(size=8).values
    assert values["first_eagle"] > values["first_chain"]
    assert values["tokens_eagle"] > values["tokens_mtp"] > values["tokens_chain"] > values["tokens_medusa"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_is_kept_came_out_one_step_after_the_other(setting: str) -> None:
    """The kept tokens and the draw after them, step by step, are the answer."""
    for size in SIZES:
        drafted = run(setting, "tree", size)  # type: ignore[arg-type]
        output = drafted.outcome.outputs[0]
        came = 1  # the prompt's own draw comes before any draft
        for seen in drafted.seen:
            assert seen.last == output[came - 1]
            kept = [seen.token_ids[node] for node in seen.kept]
            assert tuple(kept) == output[came : came + len(kept)]
            # A path: each after the one before, the first after the root.
            assert [seen.parents[node] for node in seen.kept] == [ROOT, *seen.kept[:-1]][: len(kept)]
            # And the longest one: nothing behind it was the next token.
            end = seen.kept[-1] if seen.kept else ROOT
            behind = [t for t, parent in zip(seen.token_ids, seen.parents, strict=True) if parent == end]
            assert output[came + len(kept)] not in behind
            came += len(kept) + 1
        assert len(drafted.seen) == STEPS


def test_a_tree_costs_fewer_steps_of_the_draft_model_than_its_chain() -> None:
    """What the chapter says of the table."""
    for setting in SETTINGS:
        for size in SIZES:
            chain, tree = (run(setting, shape, size) for shape in ("chain", "tree"))
            assert tree.draft_steps < chain.draft_steps <= size
            assert tree.outcome.accepted_at[0] > chain.outcome.accepted_at[0]
    assert run("greedy", "tree", 16).outcome.tokens_per_draft > run("greedy", "chain", 16).outcome.tokens_per_draft
    assert run("greedy", "tree", 4).outcome.tokens_per_draft < run("greedy", "chain", 4).outcome.tokens_per_draft


@pytest.mark.parametrize(("step", "size"), list(product((1, 3, STEPS), SIZES)))
def test_the_drawing_is_the_tree(step: int, size: int) -> None:
    data = at(step=step, size=size)
    seen: Seen = run("greedy", "tree", size).seen[step - 1]
    nodes, edges, mask = data.rows["nodes"], data.rows["edges"], data.rows["mask"]
    names = [f"{number} {_text(t)}" for number, t in enumerate(seen.token_ids, start=1)]
    assert [n["text"] for n in nodes] == [_text(seen.last), *names]
    assert [n["x"] for n in nodes] == [0, *(d + 1 for d in depths(seen.parents))]
    assert [n["state"] == KEPT for n in nodes[1:]] == [i in seen.kept for i in range(len(seen.token_ids))]
    # No two tokens lie on one place, and each edge goes from a parent to its child.
    places = [(n["x"], n["y"]) for n in nodes]
    assert len(set(places)) == len(places)
    for node, edge in enumerate(edges):
        assert (edge["x"], edge["y"]) == places[seen.parents[node] + 1]
        assert (edge["x2"], edge["y2"]) == places[node + 1]
    # A row of the mask has the token and its ancestors, as many as it is deep.
    for node, depth in enumerate(depths(seen.parents)):
        cells = [cell for cell in mask if cell["group"] == node]
        assert [cell["row"] for cell in cells] == [names[node]] * len(names)
        seen_cells = [cell for cell in cells if cell["state"] != UNSEEN]
        assert all(cell["text"] == _text(seen.token_ids[int(cell["column"]) - 1]) for cell in seen_cells)
        columns = [int(cell["column"]) - 1 for cell in seen_cells]
        assert {cell["state"] == KEPT for cell in seen_cells} == {node in seen.kept}
        path = [node]
        while seen.parents[path[-1]] != ROOT:
            path.append(seen.parents[path[-1]])
        assert columns == sorted(path)
        assert len(columns) == depth + 1
    values = data.values
    assert values["drafted_tokens"] == len(seen.token_ids) <= size
    assert values["depth"] == max(depths(seen.parents)) + 1
    assert values["branches"] == len(set(range(len(seen.parents))) - set(seen.parents))
    assert values["kept_tokens"] == len(seen.kept)
