"""Names at the ends of lines, in place of a legend: each in its line's colour, moved apart where two ends meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from visualizers.levels.charts import rows
from visualizers.palette import colour

SIZE = 12


def labelled_ends(ends: Mapping[str, tuple[float, float]], x: str, y: str) -> list[dict[str, Any]]:
    """A record for each line from where it ends. A name stands over its end, the lowest one below it."""
    lowest = min(ends, key=lambda name: ends[name][1])
    return [{"line": name, x: at, y: value, "below": name == lowest} for name, (at, value) in ends.items()]


def end_labels(name: str, x: Any, y: Any, colours: Mapping[str, str]) -> Any:
    """The layer that writes the names of the dataset ``name`` at the right edge."""
    scale = alt.Scale(domain=list(colours), range=[colour(c) for c in colours.values()])
    base = alt.Chart(rows(name))
    ink = alt.Color("line:N", scale=scale, legend=None)
    over = base.transform_filter("!datum.below").mark_text(align="right", baseline="bottom", dy=-7, fontSize=SIZE)
    under = base.transform_filter("datum.below").mark_text(align="right", baseline="top", dy=8, fontSize=SIZE)
    return alt.layer(*(mark.encode(x=x, y=y, text="line:N", color=ink) for mark in (over, under)))
