"""The text of every printed chart in a real Chromium: inside its drawing, and clear of its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from visualizers import registry
from visualizers.levels import charts, printed
from visualizers.levels.snapshot import Snapshot

pytestmark = pytest.mark.browser

# A font that is wider than most: what fits in it fits in the reader's.
STYLE = """<style>text { font-family: Verdana, "DejaVu Sans", sans-serif; font-variant-numeric: tabular-nums }
svg { overflow: visible }</style>"""
CLEAR_PX = 2  # between two texts, or a text and the square before the next one
OUTSIDE = """(svg) => {
    const box = svg.getBoundingClientRect();
    const out = ({ left, right, top, bottom }) =>
        right > box.right + 1 || left < box.left - 1 || top < box.top - 2 || bottom > box.bottom + 2;
    const texts = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim());
    return texts.filter((t) => out(t.getBoundingClientRect())).map((t) => t.textContent);
}"""
TOUCHING = """(svg, clear) => {
    const words = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim().length > 6);
    const texts = words.map((t) => [t.textContent, t.getBoundingClientRect()]);
    const squares = [...svg.querySelectorAll("path")].map((p) => p.getBoundingClientRect())
        .filter((r) => r.width > 4 && r.width < 16 && r.height < 16);
    // Where a legend's square stands before a text, that is where the text begins.
    const start = (box) => Math.min(box.left, ...squares
        .filter((q) => q.top < box.bottom && q.bottom > box.top && q.right <= box.left + 1 && q.right > box.left - 9)
        .map((q) => q.left));
    const found = [];
    for (const [one, a] of texts) for (const [other, b] of texts) {
        const sameLine = Math.abs(a.top - b.top) < 3 && a.left < b.left;
        if (sameLine && start(b) - a.right < clear) found.push([one, other, start(b) - a.right]);
    }
    return found;
}"""


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    found = browser.new_page()
    yield found
    found.close()


@pytest.mark.parametrize("stem", registry.stems())
def test_printed_text_stays_in_its_chart_and_apart(page: Page, stem: str) -> None:
    snapshot = Snapshot(registry.get(stem.replace("_", "-")))
    for width in (charts.WIDE, charts.NARROW):
        page.set_content(STYLE + printed.svg(snapshot, snapshot.default, width, "f"))
        svg: Any = page.locator("svg")
        assert svg.bounding_box()["width"] <= width + 2
        assert svg.evaluate(OUTSIDE) == [], width
        assert svg.evaluate(TOUCHING, CLEAR_PX) == [], width
