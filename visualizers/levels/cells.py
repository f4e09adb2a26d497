"""Turns what ``compute`` returns into plain JSON, and refuses, with its place, whatever is not.

A cell of ``Data`` is a number, text, a truth value, nothing, or an expression of formula inputs, which stays
what it is: only the instant level has a use for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from minillm.costs.arithmetic import is_expression
from visualizers.contract import Data, Table

Cell = Any  # int, float, str, bool, None, or an expression


class CellError(ValueError):
    """A cell that no figure can show: the message names the visualizer, the state and the cell."""


def plain(value: Any, place: str) -> Cell:
    """``value`` as JSON. ``place`` says where it stands."""
    if value is None or isinstance(value, str | bool) or is_expression(value):
        return value
    item = getattr(value, "item", None)  # a NumPy scalar, or an array of one
    if callable(item):
        value = item()
        if isinstance(value, str | bool):
            return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise CellError(f"{place} is {value}: a figure shows finite numbers (None where there is none)")
        return float(value)
    kind = type(value).__name__
    raise CellError(f"{place} is a {kind}: a cell is a number, text, a truth value, None or an expression")


def plain_data(data: Data, units: Mapping[str, str], where: str) -> Data:
    """``data`` with plain cells; its values must be those that the visualizer gives units for."""
    if set(data.values) != set(units):
        missing, extra = sorted(set(units) - set(data.values)), sorted(set(data.values) - set(units))
        raise CellError(f"{where}: compute leaves out {missing} and adds {extra} to the values that have units")
    values = {name: plain(data.values[name], f"{where}: value {name!r}") for name in units}
    return Data(values, {name: _records(records, f"{where}: {name}") for name, records in data.rows.items()})


def plain_table(table: Table, where: str) -> Table:
    """``table`` with plain cells, in each row just those of the columns."""
    rows = []
    for number, row in enumerate(table.rows):
        cells = {}
        for column in table.columns:
            if column.key not in row:
                raise CellError(f"{where}: row {number} of the table has no {column.key!r}: it has {list(row)}")
            cells[column.key] = plain(row[column.key], f"{where}: {column.key!r} in row {number} of the table")
        rows.append(cells)
    return Table(table.columns, rows)


def _records(records: Any, where: str) -> list[dict[str, Cell]]:
    return [
        {key: plain(value, f"{where}[{number}][{key!r}]") for key, value in record.items()}
        for number, record in enumerate(records)
    ]


def map_data(data: Data, change: Callable[[Any], Any]) -> Data:
    """``data`` with ``change`` applied to every cell."""
    return Data(
        {name: change(value) for name, value in data.values.items()},
        {
            name: [{key: change(value) for key, value in record.items()} for record in records]
            for name, records in data.rows.items()
        },
    )


def map_table(table: Table, change: Callable[[Any], Any]) -> Table:
    """``table`` with ``change`` applied to every cell."""
    return Table(table.columns, [{key: change(value) for key, value in row.items()} for row in table.rows])
