"""What is the same thing in two pictures lights up together, and what can be dragged moves an input.

Both are selections of Vega-Lite, so they work wherever a chart is drawn by Vega; the printed chart is still.
The records of a picture say by their ``group`` to what they belong. A view says by its name that it takes part;
:func:`declare` adds the selections to the whole specification, one for all its views.
"""

from __future__ import annotations

from typing import Any

from altair import StrokeValue

from visualizers.palette import colour

GROUP, PARAM = "group", "pointed"
SETS = "set_"  # a selection of this name and an input's sets that input: `handbook/assets/js/chart.js`
_POINTING = {"type": "point", "fields": [GROUP], "on": "pointerover", "clear": "pointerout"}
_DRAG = "[pointerdown, window:pointerup] > pointermove"


def linker(chart: Any, name: str) -> Any:
    """``chart``, a single view, at whose marks the reader can point; ``name`` is its own in the figure."""
    return chart.properties(name=f"{PARAM}_{name}")


def linked(on: Any = None, off: Any = None, channel: Any = StrokeValue) -> Any:
    """A channel that is ``on`` for marks of the group that the reader points at: by default, a line around them."""
    value = colour("text") if on is None else on
    return channel("transparent" if off is None else off, condition={"param": PARAM, "empty": False, "value": value})


def setter(chart: Any, name: str) -> Any:
    """``chart``, whose records have a field called like the input ``name``: the nearest to a drag sets the input."""
    return chart.properties(name=f"{SETS}{name}")


def declare(spec: dict[str, Any]) -> None:
    """Adds to a specification the selections that the names of its views ask for."""
    names: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "mark" in node and "name" in node:
                names.append(node["name"])
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(spec)
    params = list(spec.get("params", []))
    pointed = [name for name in names if name.startswith(f"{PARAM}_")]
    if pointed:
        params.append({"name": PARAM, "select": _POINTING, "views": pointed})
    for name in names:
        if name.startswith(SETS):
            fields = [name.removeprefix(SETS)]
            select = {"type": "point", "fields": fields, "on": _DRAG, "nearest": True, "toggle": False, "clear": False}
            params.append({"name": name, "select": select, "views": [name]})
    if params:
        spec["params"] = params
