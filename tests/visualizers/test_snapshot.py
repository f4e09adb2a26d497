"""A figure is computed once and checked while it is: expressions against numbers, cells, the chart's data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import numpy as np
import pytest
from example_figure import VISUALIZER

from minillm.costs.arithmetic import maximum
from visualizers.contract import Column, Data, InputError, Number, Table, Visualizer
from visualizers.levels import charts, expressions
from visualizers.levels.cells import CellError
from visualizers.levels.snapshot import FigureError, Snapshot


def made(value: Callable[[Mapping[str, Any]], Any], **changes: Any) -> Visualizer:
    """A visualizer of one formula input ``n`` (1 to 9) whose one value is ``value(inputs)``."""

    def data(inputs: Mapping[str, Any]) -> Data:
        found = value(inputs)
        return Data({"v": found}, {"points": [{"x": 1, "y": found}]})

    plain = Visualizer(
        name="made",
        title="Made",
        badge="computed",
        chapters=("1.6",),
        summary="A number.",
        formula="v",
        inputs=(Number("n", "N", "", 4, 1, 9, "A number."),),
        units={"v": ""},
        compute=data,
        figure=lambda _: alt.Chart(charts.rows("points")).mark_point().encode(x="x:Q", y="y:Q"),
        table=lambda d: Table((Column("x", "X"), Column("y", "Y")), d.rows["points"]),
        sentence=lambda _: "It is {v}.",
    )
    return dataclasses.replace(plain, **changes)


def test_a_state_is_the_defaults_overlaid_with_what_is_asked():
    state = Snapshot(VISUALIZER).at({"context": "16384", "model": "large"})
    assert state.inputs == {
        "model": "large",
        "context": 16384,
        "batch": 4,
        "block": 16,
        "prompt": "The capital of France is",
    }
    assert state.data.values["kept_bytes"] == 16384 * 4 * 80 * 1024
    assert state.text() == "The cache takes 5 GiB, of which 0.0% is unused; it fits in the budget."


def test_the_grid_has_a_state_for_each_combination_the_last_input_turning_fastest():
    snapshot = Snapshot(VISUALIZER)
    seen = [(s.state.inputs["model"], s.state.inputs["block"]) for s in snapshot.states]
    assert seen == [(m, b) for m in ("small", "large") for b in (1, 16, 256)]
    used = snapshot.states[0].state.data.values["used_bytes"]
    assert expressions.text(used) == "(((context*batch)*16)*1024)"
    assert snapshot.states[0].state.data.values["words"] == 5


def test_bad_input_says_what_the_input_takes():
    with pytest.raises(InputError, match="context 0 is outside 1 to 131,072 tokens"):
        Snapshot(VISUALIZER).at({"context": 0})


@pytest.mark.parametrize(
    ("compute", "name"),
    [
        (lambda i: max(i["n"], 6), "a parameter counts as true"),
        (lambda i: 1 if i["n"] > 3 else 2, "so does a comparison"),
        (lambda i: [10, 20, 30][i["n"] > 5], "an index"),
    ],
)
def test_a_formula_that_asks_for_a_truth_value_is_refused(compute, name):
    with pytest.raises((FigureError, TypeError)) as caught:
        _ = Snapshot(made(compute)).states
    if isinstance(caught.value, FigureError):
        assert "made at n=" in str(caught.value), name
        assert "minillm.costs.arithmetic" in str(caught.value)


def test_the_same_formula_written_for_both_is_taken():
    assert len(Snapshot(made(lambda i: maximum(i["n"], 6))).states) == 1


def test_a_sentence_that_depends_on_a_formula_input_is_refused():
    turning = made(lambda i: i["n"], sentence=lambda d: "Much: {v}." if d.values["v"] > 5 else "Little: {v}.")
    with pytest.raises(FigureError, match="the sentence is another"):
        _ = Snapshot(turning).states


def test_a_chart_that_depends_on_a_formula_input_is_refused():
    def figure(data: Data) -> Any:
        return alt.Chart(charts.rows("points"), title=f"{data.values['v']}").mark_point().encode(x="x:Q")

    with pytest.raises(FigureError, match=r"figure\(\) draws another chart"):
        _ = Snapshot(made(lambda i: i["n"], figure=figure)).states


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (float("nan"), "made at n=4: value 'v' is nan"),
        (np.float64("inf"), "value 'v' is inf"),
        ([1, 2], "value 'v' is a list"),
        (1j, "value 'v' is a complex"),
    ],
)
def test_a_cell_that_no_figure_can_show_is_named(bad, said):
    with pytest.raises(CellError, match=said):
        _ = Snapshot(made(lambda _: bad)).default


def test_a_bad_cell_of_the_rows_is_named_with_its_place():
    rows = {"points": [{"x": 1, "y": 1}, {"x": 2, "y": float("nan")}]}
    with pytest.raises(CellError, match=r"made at n=4: points\[1\]\['y'\] is nan"):
        _ = Snapshot(made(lambda _: 1, compute=lambda _: Data({"v": 1}, rows))).default


def test_numpy_numbers_become_plain_ones_of_their_kind():
    value = Snapshot(made(lambda _: np.int64(7))).default.data.values["v"]
    assert (value, type(value)) == (7, int)
    assert type(Snapshot(made(lambda _: np.float32(0.5))).default.data.values["v"]) is float


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"units": {"v": "", "w": ""}}, r"leaves out \['w'\]"),
        ({"units": {}}, r"adds \['v'\]"),
        ({"sentence": lambda _: "It is {w}."}, r"the sentence has \{w\|\}; values are v"),
        ({"sentence": lambda _: "It is {v|hex}."}, r"the sentence has \{v\|hex\}"),
        ({"table": lambda d: Table((Column("z", "Z"),), d.rows["points"])}, "row 0 of the table has no 'z'"),
        ({"table": lambda d: Table((Column("x", "X", "", "hex"),), d.rows["points"])}, "unknown format 'hex'"),
    ],
)
def test_what_does_not_fit_together_is_named(changes, said):
    with pytest.raises(ValueError, match=said):
        _ = Snapshot(made(lambda _: 1, **changes)).default


def test_a_chart_without_its_data_is_named():
    chart = alt.Chart(charts.rows("lines")).mark_point().encode(x="x:Q")
    with pytest.raises(FigureError, match=r"the chart draws \['lines'\], compute gives points"):
        _ = Snapshot(made(lambda _: 1, figure=lambda _: chart)).states


def test_a_grid_that_is_too_large_says_what_to_change():
    wide = made(lambda i: i["n"], inputs=(Number("n", "N", "", 4, 1, 9000, "A number.", instant="grid"),))
    with pytest.raises(FigureError, match=r"9,000 grid states \(n 9000\), the limit is 3,000: give an input fewer"):
        _ = Snapshot(wide).states


def test_a_run_that_gives_other_numbers_each_time_is_shown_as_it_first_ran():
    ran = iter(range(100))
    grid = (Number("n", "N", "", 2, 1, 3, "A number.", instant="grid"),)
    snapshot = Snapshot(made(lambda _: next(ran), inputs=grid))
    default = snapshot.default.data
    assert snapshot.states[1].state.data == default
    assert snapshot.at({"n": 2}).data == default
