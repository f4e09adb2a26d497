"""Words as a picture: tokens of a text, one behind the other, that break over lines at the width of the figure.

A record is a token: its ``text``, its ``kind``, its ``px`` from :func:`measured`, and the ``group`` that lights up
together with it. The browser breaks the lines, so one set of records serves every width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from visualizers.levels.charts import rows
from visualizers.levels.links import linked, linker
from visualizers.palette import colour

FONT_PX, LINE_PX, GAP_PX = 12, 27, 10  # of a word: its type, the step to the next line, what stands beside its letters
LONGEST = 14  # letters of a word that are drawn; the rest is cut with a mark
_WIDEST_PX = 122  # no word is wider
# Widths of letters in parts of the type's size, in a font wider than most.
_NARROW, _SLIM, _WIDE = frozenset("ijl|.,:;'!·"), frozenset('frtI()[]{}-/" '), frozenset("mwMW@%—…⏎")


@dataclass(frozen=True)
class Look:
    """How words of a kind look: colours of the cell (None for none) and the letters, a line through, a cursor."""

    fill: str | None = None
    text: str = "text"
    struck: bool = False
    cursor: bool = False


def visible(text: str) -> str:
    """A token as it is drawn: its cell stands for the space at its beginning, and what nobody sees is marked."""
    return text.removeprefix(" ").replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥") or ("·" if text else "")


def measured(text: str) -> dict[str, Any]:
    """The fields of a word that the picture needs: what is drawn and how many pixels that takes at most."""
    drawn = visible(text)
    drawn = drawn if len(drawn) <= LONGEST else drawn[: LONGEST - 1] + "…"
    letters = sum(
        0.36 if c in _NARROW else 0.46 if c in _SLIM else 0.98 if c in _WIDE else 0.73 if c.isupper() else 0.64
        for c in drawn
    )
    return {"text": drawn, "px": round(min(letters * FONT_PX + GAP_PX, _WIDEST_PX), 1)}


def flow(name: str, looks: Mapping[str, Look], *, title: Any, legend: Sequence[str] = ()) -> Any:
    """The words of the dataset ``name``. ``legend``: the kinds that are explained above."""
    base = (
        alt.Chart(rows(name))
        .transform_window(end="sum(px)", frame=[None, 0])
        .transform_calculate(start="datum.end - datum.px")
        .transform_joinaggregate(widest="max(px)")  # a line begins no word that could cross the edge
        .transform_calculate(line=f"floor(datum.start / max({_WIDEST_PX}, width - datum.widest))")
        .transform_joinaggregate(left="min(start)", groupby=["line"])
        .transform_calculate(x="datum.start - datum.left", x2="datum.end - datum.left - 2")
        .transform_calculate(middle="(datum.x + datum.x2) / 2")
    )
    y = alt.Y("line:O", axis=None)
    kinds = list(looks)
    fills = alt.Scale(domain=kinds, range=[colour(k.fill) if k.fill else "transparent" for k in looks.values()])
    inks = alt.Scale(domain=kinds, range=[colour(k.text) for k in looks.values()])
    fill = alt.Fill(
        "kind:N", scale=fills, legend=alt.Legend(values=list(legend), symbolOpacity=0.45) if legend else None
    )
    cells = base.mark_rect(height=LINE_PX - 7, cornerRadius=3, fillOpacity=0.26, strokeWidth=1.5).encode(
        x=alt.X("x:Q", scale=None), x2="x2:Q", y=y, fill=fill, stroke=linked()
    )
    texts = base.mark_text(fontSize=FONT_PX).encode(
        x=alt.X("middle:Q", scale=None), y=y, text="text:N", color=alt.Color("kind:N", scale=inks, legend=None)
    )
    layers = [linker(cells, name), texts]
    for kind, look in looks.items():
        these = base.transform_filter(f"datum.kind === {json.dumps(kind)}")
        if look.struck:
            line = these.mark_rule(color=colour("muted"), strokeWidth=1.5)
            layers.append(line.encode(x=alt.X("x:Q", scale=None), x2="x2:Q", y=y))
        if look.cursor:
            before = these.mark_tick(orient="vertical", color=colour("text"), thickness=2.5, size=LINE_PX - 3)
            layers.append(before.encode(x=alt.X("x:Q", scale=None), y=y))
    return alt.layer(*layers, title=title, height=alt.Step(LINE_PX))


def fitting(chart: Any) -> Any:
    """``chart`` with a field ``fits``: the text of a cell where a row of ``columns`` has room for it, else nothing."""
    return chart.transform_calculate(fits=f"datum.px - {GAP_PX - 3} < width / datum.columns ? datum.text : ''")
