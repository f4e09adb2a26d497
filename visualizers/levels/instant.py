"""The instant level's payload: one JSON object from which the browser draws every state of a figure.

To keep it small, what several states share stands once, in a list, and is named by its index there.

==============  ==========================================================================
``inputs``      for each input its kind, label, unit, default and what its control can show
``more``        the names of those that stand behind "More"
``grid``        ``[[name, [value, ...]], ...]``: the state of a combination has the index of
                its values, the last input turning fastest
``values``      names of the values, as they stand in a state's ``v``
``cells``       columns of cells: numbers, truth values, null, text, and text that begins with
                ``=``, which is an expression of the formula inputs and of ``exprs``
``exprs``       expressions that others use, as ``_0``, ``_1`` ...
``charts``      Vega specifications; ``heads``, ``sentences``: columns of tables, templates
``states``      ``{"v": column, "c": chart, "s": sentence, "h": head, "t": {key: column},
                "d": {dataset: {field: column}}}``
==============  ==========================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import vl_convert

from minillm.costs.arithmetic import is_expression
from visualizers.contract import Choice, Input, Number
from visualizers.levels import charts, controls
from visualizers.levels.snapshot import GridState, Snapshot, State

VEGA = "https://cdn.jsdelivr.net/npm/vega@{version}/+esm"  # a name inside vl-convert: nothing is fetched
VEGA_NAMES = ("View", "parse", "parseExpression", "codegenExpression", "expressionFunction", "version")


class _Pool:
    """A list of JSON values in which equal ones stand once."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._index: dict[str, int] = {}

    def add(self, item: Any) -> int:
        key = json.dumps(item, sort_keys=True)
        if key not in self._index:
            self._index[key] = len(self.items)
            self.items.append(item)
        return self._index[key]


class _Writer:
    """Writes the states of a snapshot into shared pools."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.cells, self.charts, self.heads, self.sentences = _Pool(), _Pool(), _Pool(), _Pool()
        self._graph = snapshot.graph
        # A column that several states have is written once, so its expressions count once.
        columns = {tuple(map(self._key, column)) for s in snapshot.states for column in _columns(s.state)}
        shared = self._graph.shared(n for column in columns for kind, n in column if kind == "expression")
        self._names = {number: f"_{i}" for i, number in enumerate(shared)}
        self.exprs = [self._graph.text(number, self._names) for number in shared]

    def _key(self, cell: Any) -> tuple[str, Any]:
        return ("expression", self._graph.add(cell)) if is_expression(cell) else (type(cell).__name__, cell)

    def cell(self, cell: Any) -> Any:
        if is_expression(cell):
            number = self._graph.add(cell)
            return "=" + (self._names.get(number) or self._graph.text(number, self._names))
        # Text that happens to begin like an expression becomes the expression of itself.
        return f"={json.dumps(cell)}" if isinstance(cell, str) and cell.startswith("=") else cell

    def column(self, cells: list[Any]) -> int:
        return self.cells.add([self.cell(c) for c in cells])

    def columns(self, records: Any) -> dict[str, int]:
        """The records, column by column. A field that some records lack is None there."""
        fields = dict.fromkeys(key for record in records for key in record)
        return {key: self.column([record.get(key) for record in records]) for key in fields}

    def state(self, grid_state: GridState) -> dict[str, Any]:
        state, spec = grid_state.state, grid_state.spec
        head = [[c.key, c.label, c.unit, c.format] for c in state.table.columns]
        return {
            "v": self.column(list(state.data.values.values())),
            "c": self.charts.add(spec),
            "s": self.sentences.add(state.sentence),
            "h": self.heads.add(head),
            "t": self.columns(state.table.rows),
            "d": {
                name: self.columns(records)
                for name, records in state.data.rows.items()
                if name in charts.dataset_names(spec)
            },
        }


def _columns(state: State) -> Iterator[list[Any]]:
    """The columns of a state as they are written."""
    yield list(state.data.values.values())
    for records in (state.table.rows, *state.data.rows.values()):
        for key in dict.fromkeys(key for record in records for key in record):
            yield [record.get(key) for record in records]


def payload_path(snapshot: Snapshot) -> str:
    """Where a site serves the payload, from its root."""
    return f"figures/{snapshot.name}.json"


def payload(snapshot: Snapshot) -> dict[str, Any]:
    """Everything that the browser needs to move the figure."""
    visualizer, writer = snapshot.visualizer, _Writer(snapshot)
    states = [writer.state(s) for s in snapshot.states]
    return {
        "name": visualizer.name,
        "title": visualizer.title,
        "badge": visualizer.badge,
        "provenance": snapshot.provenance(),
        "inputs": [_input(i) for i in visualizer.inputs],
        "more": [i.name for i in visualizer.inputs if i.more],
        "grid": [[i.name, list(i.grid())] for i in snapshot.grid_inputs],
        "values": list(visualizer.units),
        "units": dict(visualizer.units),
        "cells": writer.cells.items,
        "exprs": writer.exprs,
        "charts": [vega_spec(spec) for spec in writer.charts.items],
        "heads": writer.heads.items,
        "sentences": writer.sentences.items,
        "states": states,
        "breakpoint": charts.BREAKPOINT,
    }


def vega_spec(spec: charts.Spec) -> dict[str, Any]:
    """The chart compiled to Vega, which is two thirds of what Vega-Lite would ask the reader to load.

    ``usermeta.room`` says how far the drawing is to be narrower than the figure: for a stack of views the
    width is theirs, for a single one the whole; null where the chart's width is its own.
    """
    compiled: dict[str, Any] = vl_convert.vegalite_to_vega(json.dumps(charts.sized(spec, {}, charts.WIDE)))
    multiple = charts.stacked(spec) is not None
    beside = not multiple and any(k in spec for k in ("hconcat", "facet", "concat"))
    own = beside or spec.get("width", "container") != "container"
    compiled["usermeta"] = {"room": None if own else charts.AXIS_ROOM if multiple else 0}
    return compiled


def vega_bundle() -> str:
    """The parts of Vega that figures use, as a script for ``assets/js/vega.js``: it sets ``globalThis.hbVega``.

    It is made from the copy inside vl-convert, the one that also drew the printed level.
    """
    names = ", ".join(VEGA_NAMES)
    source = VEGA.format(version=vl_convert.get_vega_version())
    snippet = f'import {{ {names} }} from "{source}"; globalThis.hbVega = {{ {names} }};'
    return str(vl_convert.javascript_bundle(snippet))


def _input(given: Input) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": given.name,
        "label": given.label,
        "unit": given.unit,
        "default": given.default,
        "instant": given.instant,
    }
    if isinstance(given, Number):
        return found | {
            "kind": "number",
            "low": given.low,
            "high": given.high,
            "integer": given.integer,
            "stops": list(controls.stops(given)),
            "play": given.play,
            "words": [[value, word] for value, word in given.words.items()],
        }
    if isinstance(given, Choice):
        return found | {"kind": "choice", "options": dict(given.options)}
    return found | {"kind": "text", "max": given.max_length}
