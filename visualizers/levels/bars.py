"""What fills something of a size: its hundredths as cells, and stacked bars of several needs against its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from minillm.costs.arithmetic import where
from visualizers.levels.charts import constant, rows
from visualizers.palette import colour

STEP_PX, BAR_PX = 40, 13
CELLS, COLUMNS, CELL_PX = 100, 25, 19


def hundredths(ends: Sequence[tuple[Any, Any]], rest: str) -> list[dict[str, Any]]:
    """A cell for each hundredth of something. ``ends``: kinds in their order, each with the share at which it ends.

    What lies in a cell's middle colours it, ``rest`` where nothing does. Kinds and shares may be expressions.
    """
    found = []
    for place in range(CELLS):
        kind: Any = rest
        for name, end in reversed(ends):
            kind = where(end > (place + 0.5) / CELLS, name, kind)
        found.append({"x": place % COLUMNS, "y": place // COLUMNS, "kind": kind})
    return found


def cells(name: str, kind: Any, title: Any) -> Any:
    """The picture of the dataset ``name``, which is from :func:`hundredths`."""
    base = alt.Chart(rows(name), height=alt.Step(CELL_PX), title=title)
    x, y = alt.X("x:O", axis=None), alt.Y("y:O", axis=None)
    return base.mark_rect(stroke=colour("page"), strokeWidth=2, cornerRadius=3).encode(x=x, y=y, color=kind)


def stacked(names: Sequence[str], amount: str, kind: Any, limit: str, title: Any) -> Any:
    """Bars of the datasets ``names``, with ``label``, ``kind``, ``from`` and ``to``; the last one is named.

    ``amount`` is a Vega expression of a record of the last dataset; ``limit`` a dataset with one ``limit``, a line
    across all bars. The axis follows the data and the limit, so nothing lies outside.
    """
    label = alt.Y("label:N", sort=None, axis=None)
    start = alt.X("from:Q", axis=None, scale=alt.Scale(nice=False, zero=True))
    bars = [
        alt.Chart(rows(name)).mark_bar(height=BAR_PX, yOffset=8).encode(x=start, x2="to:Q", y=label, color=kind)
        for name in names
    ]
    named = alt.Chart(rows(names[-1])).transform_calculate(amount=amount)
    texts = [  # the limit's line does not cross a name
        named.mark_text(align="left", dy=-9, **look).encode(x=constant(alt.XValue, 0), y=label, text="label:N")
        for look in ({"stroke": colour("page"), "strokeWidth": 3}, {"stroke": None})
    ]
    amounts = named.mark_text(align="right", dy=-9, fontWeight=600).encode(
        x=constant(alt.XValue, "width"), y=label, text="amount:N"
    )
    end = alt.Chart(rows(limit)).mark_rule(color=colour("text"), strokeWidth=2).encode(x=alt.X("limit:Q"))
    return alt.layer(*bars, end, *texts, amounts, height=alt.Step(STEP_PX), title=title)
