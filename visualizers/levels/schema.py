"""JSON Schema of a figure: what it takes and what it gives, from its contract."""

from __future__ import annotations

from typing import Any

from visualizers.contract import Choice, Input, Number, Text, Visualizer
from visualizers.levels.describe import BADGES

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def entry(visualizer: Visualizer) -> dict[str, Any]:
    """A figure as a list of figures tells of it."""
    return {
        "name": visualizer.name,
        "title": visualizer.title,
        "summary": visualizer.summary,
        "badge": visualizer.badge,
        "chapters": list(visualizer.chapters),
        "inputs": [
            {
                "name": i.name,
                "label": i.label,
                "unit": i.unit,
                "default": i.default,
                "takes": i.range_text(),
                "help": i.help,
                "instant": i.instant,
                **({"stops": list(i.grid())} if isinstance(i, Number) and i.on_grid else {}),
            }
            for i in visualizer.inputs
        ],
        "values": dict(visualizer.units),
        "schema": {"inputs": inputs(visualizer), "output": output(visualizer)},
    }


def inputs(visualizer: Visualizer) -> dict[str, Any]:
    """What a figure takes: every input has a default, no other name is taken."""
    return {
        "$schema": DIALECT,
        "type": "object",
        "properties": {i.name: _input(i) for i in visualizer.inputs},
        "additionalProperties": False,
    }


def _input(given: Input) -> dict[str, Any]:
    found: dict[str, Any] = {"title": given.label, "description": given.help, "default": given.default}
    if given.unit:
        found["x-unit"] = given.unit
    if isinstance(given, Choice):
        return found | {"type": "string", "enum": list(given.options)}
    if isinstance(given, Text):
        return found | {"type": "string", "minLength": 1, "maxLength": given.max_length, "pattern": r"\S"}
    assert isinstance(given, Number)  # noqa: S101 - the three kinds there are
    kind = {"type": "integer" if given.integer else "number"}
    if given.on_grid:
        return found | kind | {"enum": list(given.grid())}
    return found | kind | {"minimum": given.low, "maximum": given.high}


def output(visualizer: Visualizer) -> dict[str, Any]:
    """What a figure gives: its named values beside what tells where they are from."""
    value = {"type": ["number", "string", "boolean", "null"]}
    values = {name: {**value, "x-unit": unit} if unit else value for name, unit in visualizer.units.items()}
    text, table = {"type": "string"}, {"type": "object", "required": ["columns", "rows"]}
    fixed = {
        "name": {"const": visualizer.name},
        "title": {"const": visualizer.title},
        "badge": {"const": visualizer.badge, "description": BADGES[visualizer.badge]},
        "inputs": {"type": "object"},
        "units": {"type": "object"},
        "table": table,
        "sentence": text,
    }
    more = {"provenance": text, "recorded_at": {"type": "string", "format": "date-time"}}
    return {
        "$schema": DIALECT,
        "type": "object",
        "properties": {**fixed, **values, **more},
        "required": [*fixed, *values],
        "additionalProperties": False,
    }
