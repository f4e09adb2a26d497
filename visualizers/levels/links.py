"""What is the same thing in two pictures lights up together, and what can be dragged moves an input.

Both are selections of Vega-Lite, so they work wherever a chart is drawn by Vega; the printed chart is still.
The records of a picture say by their ``group`` to what they belong.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import altair as alt

from visualizers.palette import colour

GROUP, PARAM = "group", "pointed"
SETS = "set_"  # a selection of this name and an input's sets that input: `handbook/assets/js/chart.js`


@cache
def _pointed() -> Any:
    """One for all pictures: they share what is pointed at."""
    return alt.selection_point(name=PARAM, fields=[GROUP], on="pointerover", clear="pointerout", empty=False)


def linker(chart: Any, name: str) -> Any:
    """``chart``, a single view, at whose marks the reader can point; ``name`` is its own in the figure."""
    return chart.properties(name=name).add_params(_pointed())


def linked(on: Any = None, off: Any = None, channel: Any = alt.StrokeValue) -> Any:
    """A channel that is ``on`` for marks of the group that the reader points at: by default, a line around them."""
    value = colour("text") if on is None else on
    return channel("transparent" if off is None else off, condition={"param": PARAM, "empty": False, "value": value})


def setter(chart: Any, name: str) -> Any:
    """``chart``, whose records have a field called like the input ``name``: the nearest to a drag sets the input."""
    drag = "[pointerdown, window:pointerup] > window:pointermove!"
    param = alt.selection_point(name=f"{SETS}{name}", fields=[name], on=drag, nearest=True, toggle=False, clear=False)
    return chart.properties(name=f"drag_{name}").add_params(param)
