"""The shared look of all charts, and what turns a chart into a specification at a width.

A visualizer's ``figure`` returns a plain Altair chart whose data are ``charts.rows("name")``; fonts,
axes, grid, legends and width come from here. Where it gives no width the chart fills its container,
from 300 pixels up; a chart that must be wider gives a width and scrolls inside its figure.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt

from visualizers import palette
from visualizers.levels import links
from visualizers.palette import colour

Spec = dict[str, Any]
Rows = Mapping[str, Sequence[Mapping[str, Any]]]

# The page sets the same stack, so that text measured here fits when the page draws it.
FONT = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
HEIGHT = 260  # plot height in pixels where a chart gives none
WIDE, NARROW = 700, 340  # total widths in pixels of the two printed sizes
BREAKPOINT = 520  # below this width of the figure the narrow size is drawn
AXIS_ROOM = 56  # pixels that a stack of views leaves for its axes until they have been measured

_LETTER = 0.62  # of the size of type: how wide a letter is on average, in a font wider than most
_MULTI = ("hconcat", "vconcat", "concat", "facet", "repeat", "spec")

CONFIG: Spec = {
    # The figure is one image with a name and a table, not a tree of marks.
    "aria": False,
    "mark": {"aria": False},
    "background": "transparent",
    "font": FONT,
    "padding": {"left": 2, "right": 10, "top": 4, "bottom": 2},
    "view": {"stroke": None, "continuousHeight": HEIGHT, "discreteHeight": HEIGHT},
    "axis": {
        "labelColor": colour("muted"),
        "labelFontSize": 12,
        "labelLimit": 150,
        "labelPadding": 6,
        "titleColor": colour("muted"),
        "titleFontSize": 12,
        "titleFontWeight": 500,
        "titlePadding": 8,
        "gridColor": colour("grid"),
        "domainColor": colour("axis"),
        "tickColor": colour("axis"),
        "tickSize": 4,
    },
    "axisX": {"grid": False, "labelOverlap": "greedy", "labelSeparation": 8},
    "axisQuantitative": {"tickCount": 5},
    # The title of the vertical axis lies above it: nobody turns the head, and a phone keeps its width.
    "axisY": {
        "domain": False,
        "ticks": False,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleAnchor": "end",
        "titleBaseline": "bottom",
        "titleX": 0,
        "titleY": -10,
    },
    "legend": {
        "orient": "top",
        "direction": "horizontal",
        "title": None,
        "labelColor": colour("text"),
        "labelFontSize": 12,
        "labelLimit": 220,
        "titleColor": colour("muted"),
        "titleFontSize": 12,
        "titleFontWeight": 500,
        "symbolSize": 120,
        "symbolType": "square",
        "symbolStrokeWidth": 0,
        "columnPadding": 16,
        "rowPadding": 4,
        "offset": 10,
    },
    "header": {"labelColor": colour("text"), "labelFontSize": 12, "titleColor": colour("muted")},
    "title": {
        "color": colour("text"),
        "fontSize": 13,
        "fontWeight": 600,
        "anchor": "start",
        "offset": 8,
        "subtitleColor": colour("muted"),
        "subtitleFontSize": 12,
    },
    "text": {"color": colour("text"), "fontSize": 12},
    "line": {"color": colour("series-1"), "strokeWidth": 2.5, "strokeCap": "round"},
    "point": {"color": colour("series-1"), "filled": True, "size": 70},
    "bar": {"color": colour("series-1")},
    "rect": {"color": colour("series-1")},
    "area": {"color": colour("series-1")},
    "rule": {"color": colour("axis")},
    "tick": {"color": colour("series-1")},
    "range": {"category": [colour(name) for name in palette.SERIES]},
}


def rows(name: str) -> alt.NamedData:
    """The data of a chart, by its name in ``Data.rows``. Encodings then say their type: ``"x:Q"``."""
    return alt.NamedData(name=name)


def colour_scale(names: Mapping[str, str]) -> alt.Scale:
    """The colour scale of a legend: what a row calls a thing, to the palette's name for its colour."""
    return alt.Scale(domain=list(names), range=[colour(name) for name in names.values()])


def constant(channel: Callable[..., Any], value: Any) -> Any:
    """A channel that is the same for all rows: ``x=constant(alt.XValue, 0)``.

    What ``alt.value`` says too; but that is a dictionary, whose class Altair finds by hashing its whole schema,
    each time, which a notebook in a browser spends seconds on.
    """
    return channel(value)


def either(channel: Callable[..., Any], test: str, yes: Any, no: Any) -> Any:
    """One constant where the Vega expression ``test`` holds, else another; ``alt.condition`` is as slow as above."""
    return channel(no, condition={"test": test, "value": yes})


_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def bytes_text(field: str, style: str = ".3~r") -> str:
    """A Vega expression that writes a number of bytes in the unit that suits it."""
    text = f"{field} + ' B'"
    for size, unit in reversed(_UNITS):
        text = f"{field} >= {size} ? format({field} / {size}, '{style}') + ' {unit}' : {text}"
    return text


def seconds_text(field: str) -> str:
    """A Vega expression that writes seconds in s, ms or µs, three digits."""
    text = f"format({field} * 1e6, '.3~r') + ' µs'"
    for scale, unit in ((1e3, "ms"), (1, "s")):
        text = f"{field} >= {1 / scale} ? format({field} * {scale}, '.3~r') + ' {unit}' : {text}"
    return f"({text})"


def spec(chart: Any) -> Spec:
    """The chart as Vega-Lite with the shared look, without data and without a width in pixels.

    A specification stays what it is, so a figure whose chart is the same in every state keeps that.
    Not held against Vega-Lite's schema, which takes longer than all the rest: the tests do that.
    """
    found: Spec = copy.deepcopy(chart) if isinstance(chart, dict) else chart.to_dict(validate=False)
    found.pop("datasets", None)
    found.pop("usermeta", None)
    own = found.get("config", {})
    own.get("view", {}).pop("continuousWidth", None)
    own.get("view", {}).pop("continuousHeight", None)
    found["config"] = _merged(CONFIG, own)
    _strip_values(found)
    _fill_container(found)
    links.declare(found)
    if not any(key in found for key in _MULTI):
        found["autosize"] = {"type": "fit-x", "contains": "padding"}
    return found


def stacked(found: Spec) -> list[Spec] | None:
    """The views of a chart that stand one below the other; None where it is no such stack."""
    views: list[Spec] | None = found.get("vconcat")
    return found["concat"] if views is None and found.get("columns") == 1 else views


def sized(found: Spec, datasets: Rows, width: int, room: int = AXIS_ROOM) -> Spec:
    """``found`` with its data, drawn so that the whole is ``width`` pixels wide where it fills its container.

    ``room`` is how much of that the axes of a stack of views take; a single view finds that out itself.
    """
    found = copy.deepcopy(found)
    multiple = any(key in found for key in _MULTI)
    inner = width - room if multiple else width

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("width") == "container":
                node["width"] = inner
            for key, child in node.items():
                if key != "data":
                    walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(found)
    if width < BREAKPOINT:
        found["config"]["legend"]["columns"] = 2
    found["datasets"] = {name: list(records) for name, records in datasets.items()}
    return found


def dataset_names(found: Spec) -> set[str]:
    """The names of all data that the chart draws."""
    names: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            data = node.get("data")
            if isinstance(data, dict) and "name" in data:
                names.add(data["name"])
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(found)
    return names


def _merged(base: Spec, over: Spec) -> Spec:
    """``base`` overlaid with ``over``, dictionaries key by key."""
    out = copy.deepcopy(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merged(out[key], value) if both else copy.deepcopy(value)
    return out


def _strip_values(node: Any) -> None:
    """Takes inline values out of named data, so that the specification is the same in every state."""
    if isinstance(node, dict):
        data = node.get("data")
        if isinstance(data, dict) and "name" in data:
            node["data"] = {"name": data["name"]}
        for child in node.values():
            _strip_values(child)
    elif isinstance(node, list):
        for child in node:
            _strip_values(child)


def _fill_container(found: Spec) -> None:
    """Lets every view without a width fill the figure: the chart itself, or each child of a stack."""
    views = stacked(found)
    if views is not None:
        for child in views:
            _fill_container(child)
    elif not any(key in found for key in _MULTI):
        found.setdefault("width", "container")
