"""The printed level: a figure as SVG that follows the theme, as an HTML table, and as a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any

import vl_convert

from visualizers.contract import Table
from visualizers.formats import fill
from visualizers.levels import charts
from visualizers.levels.snapshot import Snapshot, State

VALUE_LETTERS = 24
# Text is laid out larger than it is drawn: the build knows its own font, which may be narrower than the reader's.
ROOM_FOR_TEXT = 1.125  # an eighth, so that the sizes of CONFIG come back exactly

# Vega draws a frame around every group: invisible ones, and what CSS says better, only cost bytes.
_EMPTY_PATH = re.compile(
    r'<path class="(?:background|foreground)"[^>]*?(?:d="M0,0h-?0v-?0h-?0Z"|display="none")[^>]*?/>'
)
_FONT = re.compile(r' font-family="[^"]*"')
_NOISE = re.compile(
    r' (?:role|aria-roledescription|aria-hidden|pointer-events|class|stroke-miterlimit)="[^"]*"| opacity="1"'
)
_EMPTY_GROUP = re.compile(r"<g(?: transform=\"translate\(0,0\)\")?></g>")
_ATTRIBUTE = re.compile(r'="[^"]*"')
_LONG = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
_FONT_SIZE = re.compile(r'(?<= font-size=")([\d.]+)(?=px")')
_SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)"')
_OPEN = re.compile(r'<svg [^>]*?viewBox="([^"]*)">')
_ID = re.compile(r'\bid="([^"]+)"')


def svg(snapshot: Snapshot, state: State, width: int, figure_id: str) -> str:
    """The chart of a state, ``width`` pixels wide, as inline SVG named by the figure's title and sentence."""
    spec, room = snapshot.spec(state), charts.AXIS_ROOM
    drawn = _drawn(spec, state, width, room)
    if charts.stacked(spec) is not None:  # its axes are as wide as their labels: drawn once more, it fills the width
        room += size(drawn)[0] - width
        drawn = _drawn(spec, state, width, room)
    drawn = _tidied(drawn, f"{figure_id}-{width}")
    title = f"{figure_id}-{width}"
    opening = _OPEN.match(drawn)
    if not opening:
        raise ValueError(f"{snapshot.name}: vl-convert gave no SVG that can be read: {drawn[:120]!r}")
    wide, high = size(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="{title}-title {title}-desc" '
        f'width="{wide}" height="{high}" viewBox="{opening[1]}"><title id="{title}-title">'
        f'{escape(snapshot.visualizer.title)}</title><desc id="{title}-desc">{escape(state.text())}</desc>'
        + drawn[opening.end() :]
    )


def size(drawn: str) -> tuple[int, int]:
    """Width and height of an SVG, in pixels."""
    found = _SIZE.search(drawn)
    if not found:
        raise ValueError(f"no size in {drawn[:120]!r}")
    return round(float(found[1])), round(float(found[2]))


def table_html(table: Table, caption: str) -> str:
    """The table with units in its headings and formatted cells; numbers align at the right."""
    numeric = table.numeric()

    def cells(tag: str, texts: Sequence[str]) -> str:
        looks = (' class="hbf-number"' if n in numeric else "" for n in range(len(texts)))
        opening = '<th scope="col"' if tag == "th" else "<td"
        return "".join(f"{opening}{look}>{escape(text)}</{tag}>" for look, text in zip(looks, texts, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in table.texts())
    return (
        f'<table class="hbf-values"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{cells('th', table.headings())}</tr></thead><tbody>{body}</tbody></table>"
    )


def sentence_html(state: State) -> str:
    """The sentence; each number stands in an element that does not break and that the browser refills."""
    return fill(
        state.sentence,
        state.data.values,
        wrap=lambda value: f'<span class="{value_class(value)}">{escape(value)}</span>',
        text=escape,
    )


def value_class(value: str) -> str:
    """A number stays on one line and stands out; words that a value may be flow with the sentence."""
    return "hbf-value" if len(value) <= VALUE_LETTERS else "hbf-words"


def _drawn(spec: charts.Spec, state: State, width: int, room: int) -> str:
    sized = charts.sized(_spread(spec), state.data.rows, width, room)
    drawn = str(vl_convert.vegalite_to_svg(json.dumps(sized)))
    return _FONT_SIZE.sub(lambda found: f"{float(found[1]) / ROOM_FOR_TEXT:g}", drawn)


def _spread(node: Any, key: str = "") -> Any:
    """A specification in which every size and limit of text is ``ROOM_FOR_TEXT`` times as large."""
    if isinstance(node, dict):
        return {name: _spread(child, name) for name, child in node.items()}
    if isinstance(node, list):
        return [_spread(child) for child in node]
    return node * ROOM_FOR_TEXT if key.endswith(("ontSize", "labelLimit")) and isinstance(node, int | float) else node


def _tidied(drawn: str, prefix: str) -> str:
    """The SVG without what no reader sees, with short numbers and with ids of its own on a page of many."""
    drawn = _NOISE.sub("", _FONT.sub("", _EMPTY_PATH.sub("", drawn)))
    while (shorter := _EMPTY_GROUP.sub("", drawn)) != drawn:
        drawn = shorter
    drawn = _ATTRIBUTE.sub(lambda m: _LONG.sub(lambda n: _short(n[0]), m[0]), drawn)
    for name in dict.fromkeys(_ID.findall(drawn)):
        own = f"{prefix}-{name}"
        drawn = drawn.replace(f'id="{name}"', f'id="{own}"').replace(f"url(#{name})", f"url(#{own})")
    return drawn


def _short(number: str) -> str:
    return f"{float(number):.2f}".rstrip("0").rstrip(".")
