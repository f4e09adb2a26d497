"""The instant level's payload: one JSON object from which the browser draws every state of a figure.

Cells are as in the snapshot's states: plain, or an expression of the formula inputs. To keep it small,
columns of cells, chart specifications, table heads and sentences stand once in a list and are named by
their index; an expression is ``{"e": index}``.

==============  ==========================================================================
``inputs``      for each input its kind, label, unit, default and what its control can show
``grid``        ``[[name, [value, ...]], ...]``: the state of a combination has the index of
                its values, the last input turning fastest
``values``      names of the values, as they stand in a state's ``v``
``cells``       the columns; ``exprs`` the expressions; ``charts``, ``heads``, ``sentences``
``states``      ``{"v": column, "c": chart, "s": sentence, "h": head, "t": {key: column},
                "d": {dataset: {field: column}}}``
==============  ==========================================================================
"""

from __future__ import annotations

import json
from typing import Any

import vl_convert

from visualizers import charts, controls
from visualizers.contract import Choice, Input, Number
from visualizers.snapshot import GridState, Snapshot

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
    """Writes states into shared pools."""

    def __init__(self) -> None:
        self.cells, self.exprs, self.charts = _Pool(), _Pool(), _Pool()
        self.heads, self.sentences = _Pool(), _Pool()

    def cell(self, cell: Any) -> Any:
        return {"e": self.exprs.add(cell["expr"])} if isinstance(cell, dict) else cell

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


def payload_path(snapshot: Snapshot) -> str:
    """Where a site serves the payload, from its root."""
    return f"figures/{snapshot.name}.json"


def payload(snapshot: Snapshot) -> dict[str, Any]:
    """Everything that the browser needs to move the figure."""
    visualizer, writer = snapshot.visualizer, _Writer()
    states = [writer.state(s) for s in snapshot.states]
    return {
        "name": visualizer.name,
        "title": visualizer.title,
        "badge": visualizer.badge,
        "provenance": snapshot.provenance(),
        "inputs": [_input(i) for i in visualizer.inputs],
        "grid": [[i.name, list(i.grid())] for i in snapshot.grid_inputs],
        "values": list(visualizer.units),
        "units": dict(visualizer.units),
        "cells": writer.cells.items,
        "exprs": writer.exprs.items,
        "charts": [vega_spec(spec) for spec in writer.charts.items],
        "heads": writer.heads.items,
        "sentences": writer.sentences.items,
        "states": states,
        "layout": {"breakpoint": charts.BREAKPOINT, "axisRoom": charts.AXIS_ROOM},
    }


def vega_spec(spec: charts.Spec) -> dict[str, Any]:
    """The chart compiled to Vega, which is two thirds of what Vega-Lite would ask the reader to load.

    ``usermeta.room`` says how far the drawing is to be narrower than the figure: for a stack of views the
    width is theirs, for a single one the whole; null where the chart's width is its own.
    """
    compiled: dict[str, Any] = vl_convert.vegalite_to_vega(json.dumps(charts.sized(spec, {}, charts.WIDE)))
    multiple = "vconcat" in spec
    own = spec.get("width", "container") != "container" or any(k in spec for k in ("hconcat", "facet", "concat"))
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
        }
    if isinstance(given, Choice):
        return found | {"kind": "choice", "options": dict(given.options)}
    return found | {"kind": "text", "max": given.max_length}
