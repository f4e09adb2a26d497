"""Computes a figure once: at its defaults, in every state of its grid, at any state that is asked for.

Every level takes its numbers from here, so they are equal by construction. Computed data are kept on
disk under a digest of the sources that compute them (:mod:`visualizers.levels.cache`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minillm.costs.arithmetic import is_expression
from visualizers import formats
from visualizers.contract import Data, Input, Number, Table, Visualizer
from visualizers.levels import charts, expressions
from visualizers.levels.cache import DataCache
from visualizers.levels.cells import map_data, map_table, plain_data, plain_table

MAX_STATES = 3000  # more would make a payload that no reader waits for
_SAME = 1e-9  # relative difference that the two ways to compute a number may have


class FigureError(ValueError):
    """A visualizer breaks its contract: the message names it, the state and the way out."""


@dataclass(frozen=True)
class State:
    """A figure at some values of its inputs. Cells are plain; in a state of the grid they may be expressions."""

    inputs: Mapping[str, Any]
    data: Data
    table: Table
    sentence: str  # the template

    def text(self) -> str:
        """The sentence with its numbers, for a state without expressions."""
        return formats.fill(self.sentence, self.data.values)


@dataclass(frozen=True)
class GridState:
    """One state of the grid: what the browser shows for these grid inputs, and the chart's specification."""

    state: State
    spec: charts.Spec


class Snapshot:
    """One visualizer, computed. ``cache`` is where computed data are kept; without it they live in memory."""

    def __init__(self, visualizer: Visualizer, cache: DataCache | None = None) -> None:
        self.visualizer = visualizer
        self._cache = cache or DataCache(visualizer, None)
        self._drawn: tuple[Any, charts.Spec] = None, {}
        self.graph = expressions.Graph()  # of the expressions in all states of the grid

    @property
    def name(self) -> str:
        return self.visualizer.name

    @cached_property
    def default(self) -> State:
        """The figure at its defaults."""
        return self.at({})

    def at(self, raw: Mapping[str, object], keep: bool = True) -> State:
        """The figure at the defaults overlaid with ``raw``, kept for the next time. Raises ``InputError``."""
        return self._state(self.visualizer.parse(raw), keep)

    def end(self, given: Number, inputs: Mapping[str, Any]) -> float:
        """The stop after which nothing changes, the other inputs being ``inputs``: where a run has ended.

        A moment of the grid, an input with ``play``, goes no further; any other goes to its highest value.
        """
        if not given.play or given.instant != "grid":
            return given.high
        *earlier, end = given.grid()
        last = self._shown(given, end, inputs)
        for stop in reversed(earlier):
            if self._shown(given, stop, inputs) != last:
                break
            end = stop
        return end

    def _shown(self, given: Number, value: float, inputs: Mapping[str, Any]) -> Any:
        state = self.at({**inputs, given.name: value})
        return state.data, state.table, state.sentence

    def spec(self, state: State) -> charts.Spec:
        """The chart of a state, without its data."""
        with expressions.quickly():
            chart = self.visualizer.figure(state.data)
        if chart is self._drawn[0]:  # hundreds of states may share one that is built once
            return self._drawn[1]
        spec = charts.spec(chart)
        missing = sorted(charts.dataset_names(spec) - set(state.data.rows))
        if missing:
            has = ", ".join(state.data.rows)
            raise FigureError(f"{self._where(state.inputs)}: the chart draws {missing}, compute gives {has}")
        self._drawn = chart, spec
        return spec

    def provenance(self) -> str:
        """Where the numbers are from: for a run the model, machine and date of the run that is shown."""
        make = self.visualizer.provenance
        if make is None:
            return ""
        self.default  # noqa: B018  (a run has no provenance before it has run)
        return self._cache.provenance(make)

    def recorded_at(self, state: State) -> str:
        """When the data of a state were computed: now, or when they were put into the cache."""
        return self._cache.recorded_at(state.inputs)

    @cached_property
    def grid_inputs(self) -> tuple[Input, ...]:
        return tuple(i for i in self.visualizer.inputs if i.instant == "grid")

    @cached_property
    def formula_inputs(self) -> tuple[Number, ...]:
        return tuple(i for i in self.visualizer.inputs if isinstance(i, Number) and i.instant == "formula")

    @cached_property
    def states(self) -> tuple[GridState, ...]:
        """A state for every combination of grid inputs, the last input turning fastest."""
        stops = [i.grid() for i in self.grid_inputs]
        count = math.prod(len(s) for s in stops)
        if count > MAX_STATES:
            sizes = ", ".join(f"{i.name} {len(s)}" for i, s in zip(self.grid_inputs, stops, strict=True))
            raise FigureError(
                f"{self.name}: {count:,} grid states ({sizes}), the limit is {MAX_STATES:,}: "
                "give an input fewer stops, or instant='formula' or 'live'"
            )
        names = [i.name for i in self.grid_inputs]
        found = tuple(self._grid_state(dict(zip(names, values, strict=True))) for values in itertools.product(*stops))
        self._cache.checked = True
        self.save()
        return found

    def save(self) -> None:
        """Keeps on disk what was computed so far."""
        self._cache.save()

    def _state(self, inputs: Mapping[str, Any], keep: bool = True) -> State:
        data = self._cache.get(inputs)
        if data is None:
            data = plain_data(self.visualizer.compute(inputs), self.visualizer.units, self._where(inputs))
            if keep:
                self._cache.put(inputs, data)
        return self._described(inputs, data)

    def _described(self, inputs: Mapping[str, Any], data: Data) -> State:
        """``data`` with its table and sentence. Expressions may stand in both as in the data."""
        where = self._where(inputs)
        sentence = self.visualizer.sentence(data)
        for name, style in formats.fields(sentence):
            if name not in data.values or style not in formats.FORMATS:
                known = ", ".join(data.values)
                raise FigureError(f"{where}: the sentence has {{{name}|{style}}}; values are {known}")
        table = plain_table(self.visualizer.table(data), where)
        for column in table.columns:
            if column.format not in formats.FORMATS:
                raise FigureError(f"{where}: column {column.key!r} has the unknown format {column.format!r}")
        return State(dict(inputs), data, table, sentence)

    def _grid_state(self, chosen: Mapping[str, Any]) -> GridState:
        plain_state = self._state({**self.visualizer.defaults(), **chosen})
        spec = self.spec(plain_state)
        if not self.formula_inputs:
            return GridState(plain_state, spec)
        inputs = dict(plain_state.inputs)
        for i in self.formula_inputs:
            inputs[i.name] = expressions.parameter(i.name)
        with expressions.quickly():
            data = self.visualizer.compute(inputs)
            table, sentence = self.visualizer.table(data), self.visualizer.sentence(data)
        where = self._where(plain_state.inputs)
        symbolic = State(
            dict(plain_state.inputs),
            plain_data(data, self.visualizer.units, where),
            plain_table(table, where),
            sentence,
        )
        functions = map_data(symbolic.data, self._function), map_table(symbolic.table, self._function)
        for env in () if self._cache.checked else self._probes(plain_state.inputs):
            self._compare(env, *functions, sentence, spec)
        return GridState(symbolic, spec)

    def _function(self, cell: Any) -> expressions.Function:
        """A cell as a function of the inputs."""
        return self.graph.function(self.graph.add(cell)) if is_expression(cell) else lambda _: cell

    def _probes(self, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Where the expressions are compared with plain numbers: the defaults, and all inputs at either end."""
        low, high = ({i.name: i.ends()[end] for i in self.formula_inputs} for end in (0, 1))
        return [dict(inputs), {**inputs, **low}, {**inputs, **high}]

    def _compare(self, env: Mapping[str, Any], data: Data, table: Table, sentence: str, spec: charts.Spec) -> None:
        """Refuses a figure whose expressions and plain numbers differ at ``env``. Cells are functions of it."""
        where = self._where(env)
        truth = self._state(env, keep=False)
        found_data = map_data(data, lambda cell: cell(env))
        found_table = map_table(table, lambda cell: cell(env))
        way_out = (
            "compute, table and sentence may not ask a formula input for a truth value: use where, minimum and "
            "ceil of minillm.costs.arithmetic, or instant='grid'"
        )
        for name, expected in truth.data.values.items():
            _same(found_data.values.get(name), expected, f"{where}: value {name!r}", way_out)
        for name, records in truth.data.rows.items():
            _same_rows(found_data.rows.get(name, []), records, f"{where}: {name}", way_out)
        _same_rows(found_table.rows, truth.table.rows, f"{where}: table", way_out)
        if sentence != truth.sentence:
            raise FigureError(f"{where}: the sentence is another than for an expression; {way_out}")
        if self.spec(truth) != spec:
            raise FigureError(
                f"{where}: figure() draws another chart than at the defaults: what a formula input changes must "
                "stand in the rows, not in a scale or title"
            )

    def _where(self, inputs: Mapping[str, Any]) -> str:
        return f"{self.name} at " + (", ".join(f"{k}={v}" for k, v in inputs.items()) or "its defaults")


def _same_rows(found: Any, expected: Any, place: str, way_out: str) -> None:
    if len(found) != len(expected):
        raise FigureError(f"{place} has {len(found)} rows as expressions, {len(expected)} as numbers; {way_out}")
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        for key in b:
            _same(a.get(key), b[key], f"{place}[{number}][{key!r}]", way_out)


def _same(found: Any, expected: Any, place: str, way_out: str) -> None:
    numbers = isinstance(found, int | float) and isinstance(expected, int | float)
    close = math.isclose(found, expected, rel_tol=_SAME, abs_tol=1e-300) if numbers else found == expected
    if not close:
        raise FigureError(f"{place} is {found!r} as an expression, {expected!r} as a number; {way_out}")
