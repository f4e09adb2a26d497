"""The notebooks' lessons without a page: each recipe is played, and its lever moves what its chapter says."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tempfile
import textwrap
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from visualizers.desk import exercise
from visualizers.desk.compare import of_record
from visualizers.desk.recipe import Recipe
from visualizers.desk.session import Session

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
STEMS = [path.stem for path in NOTEBOOKS]
QUOTED = re.compile(r"# ((?:minillm|visualizers)\.[\w.]+):")


@dataclass(frozen=True)
class Lesson:
    """What a notebook's cells define: the recipe, the reader's functions for engine A, the exercise's answer."""

    text: str
    recipe: Recipe
    mine: dict[str, Any]
    solve: Any


def defined(path: Path) -> tuple[Recipe, dict[str, Any], Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _, found = module.app.run()
    return found["recipe"], dict(found["mine"]), found["solve"]


@cache
def lesson(stem: str) -> Lesson:
    path = ROOT / "notebooks" / f"{stem}.py"
    return Lesson(path.read_text(), *defined(path))


def changed(stem: str, before: str, after: str, *, alone: bool = False) -> Session:
    """One round with a line of the notebook changed; ``alone`` without side B."""
    text = lesson(stem).text
    assert text.count(before) == 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"changed_{stem}.py"
        path.write_text(text.replace(before, after))
        recipe, mine, _ = defined(path)
    return exercise.play(replace(recipe, rate=0.0, rounds=1, b=None if alone else recipe.b), mine)


@cache
def played(stem: str) -> Session:
    """One round of the recipe as it opens, with the notebook's functions."""
    found = lesson(stem)
    return exercise.play(replace(found.recipe, rate=0.0, rounds=1), found.mine)


def of(session: Session, side: int = 0) -> dict[str, float]:
    return of_record(session.sides[side].record)


def metrics(session: Session) -> tuple[dict[str, float], dict[str, float]]:
    return of(session, 0), of(session, 1)


def _bare(function: ast.FunctionDef) -> str:
    """Without what a notebook leaves out: annotations and the docstring."""
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            node.annotation = None
    function.returns = None
    if ast.get_docstring(function) is not None:
        function.body = function.body[1:]
    # In a method, a local with a type is assigned like any other.
    return ast.dump(function)


@pytest.mark.parametrize("stem", STEMS)
def test_the_function_in_the_cell_is_the_engines_own(stem: str) -> None:
    text = lesson(stem).text
    names = QUOTED.findall(text)
    assert len(names) == 1
    module, _, rest = names[0].rpartition(".")
    while True:
        try:
            found: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest = f"{last}.{rest}"
    for part in rest.split("."):
        found = getattr(found, part)
    theirs = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
    name = rest.rpartition(".")[2]
    ours = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == name]
    assert isinstance(theirs, ast.FunctionDef)
    assert _bare(ours[0]) == _bare(theirs)


@pytest.mark.parametrize("stem", STEMS)
def test_with_the_function_of_the_cell_engine_a_does_what_it_does_without(stem: str) -> None:
    recipe = replace(lesson(stem).recipe, rate=0.0, rounds=1, b=None)
    if recipe.a.speculate == "none" and "backend.draw" not in lesson(stem).mine:  # it needs no model
        recipe = replace(recipe, clock="modelled/h100-sxm", model="llama-3.1-8b")
    runs = [exercise.play(recipe, mine).sides[0].record for mine in (lesson(stem).mine, None)]
    first, second = ([(lane.text, lane.output_tokens, lane.status) for lane in run.lanes.values()] for run in runs)
    assert first == second
    assert [row[3:7] for row in runs[0].rows] == [row[3:7] for row in runs[1].rows]


@pytest.mark.parametrize("stem", STEMS)
def test_every_request_of_a_recipe_is_served_whole(stem: str) -> None:
    found = lesson(stem).recipe
    session = played(stem)
    assert not session.notes
    for side in session.sides:
        lanes = list(side.record.lanes.values())
        assert {lane.status for lane in lanes} == {"done"}
        if found.lever != "grammar":
            assert [lane.output_tokens for lane in lanes] == [ask.max_tokens for ask in found.requests]
    assert found.opened(found.packed()) == found  # short enough for an address
    assert not any(side.failed for side in session.sides)
    # What a burst and arrivals at the rate bring is taken as well.
    session = Session(replace(found, requests=(), rate=0.0))
    session.handle({"cmd": "burst"})
    assert not session.notes


# By stem: the metric that the chapter is about, whether A has more or less of it than B, and at least how many times.
MODELLED = {
    "prefix_eviction": ("hit_rate", "more", 3.0),
    "chunked_prefill": ("itl_p99_s", "less", 4.0),
    "swap_or_recompute": ("e2e_s", "less", 1.05),
    "kv_cache_size": ("e2e_s", "less", 1.5),
}
COUNTED = {
    "prefix_hits": ("prefill_tokens", "less", 5.0),
    "block_manager": ("kv_peak_bytes", "less", 1.3),
    "preemption": ("prefill_tokens", "less", 2.0),
    "speculation": ("tokens_per_step", "more", 1.3),
    "speculation_gain": ("acceptance", "more", 2.0),
    "token_trees": ("tokens_per_step", "more", 1.05),
    "sampling": ("variety", "more", 4.0),
    "structured_output": ("valid_json", "more", 1.0),
}


@pytest.mark.parametrize("stem", [*MODELLED, *COUNTED])
def test_a_lever_moves_the_metric_of_its_chapter(stem: str) -> None:
    name, direction, times = (MODELLED | COUNTED)[stem]
    assert lesson(stem).recipe.clock.startswith("modelled") == (stem in MODELLED)
    a, b = (found[name] for found in metrics(played(stem)))
    least, most = (b, a) if direction == "more" else (a, b)
    assert most > least * times, f"{name}: {a} in A, {b} in B"
    row = next(row for row in played(stem).compared()["rows"] if row["name"] == name)
    assert row["winner"] == "A"


def test_static_batching_and_a_batch_of_one_take_more_steps_for_the_same_tokens() -> None:
    for stem in ("batching", "decode_ceiling"):
        a, b = played(stem).sides
        assert sum(lane.output_tokens for lane in a.record.lanes.values()) == sum(
            lane.output_tokens for lane in b.record.lanes.values()
        )
    a, b = played("decode_ceiling").sides
    assert b.record.num_steps == 8 * a.record.num_steps
    # Of batching the steps depend on when requests arrive; in modelled time they arrive alike everywhere.
    found = lesson("batching")
    recipe = replace(found.recipe, clock="modelled/h100-sxm", model="llama-3.1-8b", rounds=1)
    a_metrics, b_metrics = metrics(exercise.play(recipe, found.mine))
    assert a_metrics["e2e_s"] * 2 < b_metrics["e2e_s"]


def test_without_a_cache_the_same_text_comes_of_more_work() -> None:
    a, b = played("kv_cache_on_off").sides
    assert [lane.text for lane in a.record.lanes.values()] == [lane.text for lane in b.record.lanes.values()]
    assert all(lane.text for lane in a.record.lanes.values())
    # In modelled time the work of a step is its time: with prompts of this length the gap between tokens is more.
    found = lesson("kv_cache_on_off")
    recipe = replace(found.recipe, clock="modelled/h100-sxm", model="llama-3.1-8b", rounds=1)
    recipe = replace(recipe, requests=tuple(replace(ask, prompt=400) for ask in recipe.requests))
    a_metrics, b_metrics = metrics(exercise.play(recipe, found.mine))
    assert a_metrics["itl_s"] > 2 * b_metrics["itl_s"]


def test_preempted_requests_write_the_same_text_by_either_way() -> None:
    a, b = played("preemption").sides
    assert a.engine.scheduler.num_preemptions == b.engine.scheduler.num_preemptions > 0
    assert [lane.text for lane in a.record.lanes.values()] == [lane.text for lane in b.record.lanes.values()]


def test_drafts_change_no_token() -> None:
    for stem in ("speculation", "speculation_gain", "token_trees"):
        a, b = played(stem).sides
        assert [lane.text for lane in a.record.lanes.values()] == [lane.text for lane in b.record.lanes.values()]


ANSWERS = {
    "batching": 16, "block_manager": 4, "chunked_prefill": 8, "decode_ceiling": 48, "kv_cache_on_off": 15,
    "kv_cache_size": 14_680_064, "live_run": 10, "preemption": 64, "prefix_eviction": 0, "prefix_hits": 32,
    "sampling": 2, "speculation": 3, "speculation_gain": 2, "structured_output": 2, "swap_or_recompute": 16,
    "token_trees": 3,
}  # fmt: skip


@pytest.mark.parametrize("stem", STEMS)
def test_the_engine_finds_the_answer_that_the_exercise_explains(stem: str) -> None:
    assert lesson(stem).solve() == ANSWERS[stem]
    assert lesson(stem).text.count("exercise.ask(") == lesson(stem).text.count("exercise.check(") == 1


def steps(session: Session) -> list[list[list[Any]]]:
    """What each step of A and of B computed: prefill, decode, drafted, accepted."""
    return [[row[3:7] for row in side.record.rows] for side in session.sides]


SAME_AS_B = {
    "prefix_hits": ("(request.num_known - 1) // self.block_size", "0"),
    "prefix_eviction": ("self._clock + self._uses[block] * self._costs[block]", "self._count"),
    "chunked_prefill": ("min(gap, self._config.chunk_size or gap, ", "min(gap, "),
    "swap_or_recompute": ('self._config.preemption == "swap" and', "False and"),
    "decode_ceiling": ("min(self._config.max_running_requests, self._config.max_batch_tokens)", "1"),
    "speculation_gain": ("max(range(longest + 1), key=lambda k: (expected_speedup(acceptance, k, token_cost), -k))",
                         "longest"),
}  # fmt: skip


@pytest.mark.parametrize("stem", SAME_AS_B)
def test_with_the_change_that_the_cell_names_a_becomes_b(stem: str) -> None:
    recipe = lesson(stem).recipe
    assert "becomes B" in " ".join(lesson(stem).text.replace("\n    #", " ").split())
    if not recipe.clock.startswith("modelled") and any(ask.at_s for ask in recipe.requests):
        a, b = (of_record(side.record) for side in changed(stem, *SAME_AS_B[stem]).sides)
        assert a["prefill_tokens"] == b["prefill_tokens"]
        assert a["hit_rate"] == b["hit_rate"] == 0
    else:
        a_steps, b_steps = steps(changed(stem, *SAME_AS_B[stem]))
        assert a_steps == b_steps


def test_the_other_changes_that_cells_name_do_what_they_say() -> None:
    cached = changed("kv_cache_on_off", "return every\n", "return plan\n", alone=True)
    assert [lane.text for lane in cached.sides[0].record.lanes.values()] == [
        lane.text for lane in played("kv_cache_on_off").sides[0].record.lanes.values()
    ]
    reserved = changed("block_manager", "group.missing(request, num_tokens)",
                       "group.missing(request, request.max_total_tokens)", alone=True)  # fmt: skip
    assert of(reserved)["kv_peak_bytes"] > of(played("block_manager"))["kv_peak_bytes"]
    fewer = changed("kv_cache_size", "return sum(", "return 2 * sum(")
    most = [max(row[7] for row in one.sides[0].record.rows) for one in (fewer, played("kv_cache_size"))]
    assert most == [8, 9]
    first = changed("preemption", "victim = max(", "victim = min(")
    assert first.sides[0].record.lanes[1].preemptions > 0
    assert played("preemption").sides[0].record.lanes[1].preemptions == 0
    one = changed(
        "speculation", "path = accepted_path(draft, draws)", "path = accepted_path(draft, draws)[:1]", alone=True
    )
    assert all(row[6] <= row[4] for row in one.sides[0].record.rows)  # one of each request that decodes
    assert 1 < of(one)["tokens_per_step"] < of(played("speculation"))["tokens_per_step"]
    deep = changed("token_trees", "candidates[: min(self._width, room)]", "candidates[:1]", alone=True)
    assert steps(deep)[0] != steps(played("token_trees"))[0]
    greedy = changed("sampling", "reached = 0.0", "return entries[0][0]", alone=True)
    assert of(greedy)["variety"] == 1 / 8
    unmasked = changed("structured_output", "if transform.allowed is not None:", "if False:", alone=True)
    assert "grammar" in unmasked.sides[0].failed
    last = changed(
        "live_run", "(request.arrival_s, request.index)\n\n", "(-request.arrival_s, request.index)\n\n", alone=True
    )
    assert not last.sides[0].failed
