"""What is the same thing in two pictures lights up together under the pointer; what is dragged moves its input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import altair as alt
import pytest
from browser_page import served
from figure_pages import ASSETS, PAGE, opened, settle
from playwright.sync_api import Page

from visualizers import palette
from visualizers.contract import Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, rows, spec
from visualizers.levels.instant import payload, vega_bundle
from visualizers.levels.links import linked, linker, setter
from visualizers.levels.page import figure_html
from visualizers.levels.snapshot import Snapshot
from visualizers.levels.words import Look, flow, measured

pytestmark = pytest.mark.browser
FIGURE = "hb-figure[name=pointing]"
LIT = f'{FIGURE} .hbf-chart [stroke="{palette.colour("text")}"]'


def compute(inputs: Mapping[str, Any]) -> Data:
    words = ["one", "two", "three", "one", "two", "three"]
    records = [{**measured(f" {w}"), "kind": "plain", "group": n % 3} for n, w in enumerate(words)]
    return Data(
        {"cut": inputs["cut"]},
        {
            "words": records,
            "bars": [{"group": n, "size": n + 1} for n in range(3)],
            "stops": [{"cut": n, "x": n, "y": 1} for n in range(1, 6)],
        },
    )


def figure(data: Data) -> Spec:
    bars = alt.Chart(rows("bars")).mark_bar().encode(x="size:Q", y="group:O", stroke=linked())
    stops = alt.Chart(rows("stops")).mark_point(size=100).encode(x="x:Q", y="y:Q")
    stack = alt.vconcat(flow("words", {"plain": Look("kv")}, title="Words"), linker(bars, "bars"), setter(stops, "cut"))
    return spec(stack.resolve_scale(fill="independent"))


VISUALIZER = Visualizer(
    name="pointing",
    title="Pointing",
    badge="computed",
    chapters=("1.1",),
    summary="Two pictures of the same things.",
    formula="none",
    inputs=(Number("cut", "Cut", "", 2, 1, 5, "Where it is cut.", instant="grid"),),
    units={"cut": ""},
    compute=compute,
    figure=figure,
    table=lambda data: Table((Column("size", "Size"),), [{"size": r["size"]} for r in data.rows["bars"]]),
    sentence=lambda data: "The cut is at {cut|int}.",
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    out: Path = tmp_path_factory.mktemp("pointing")
    shutil.copytree(ASSETS, out / "assets")
    (out / "assets/css/palette.css").write_text(palette.css())
    (out / "assets/js/vega.js").write_text(vega_bundle())
    (out / "figures").mkdir()
    snapshot = Snapshot(VISUALIZER)
    (out / "figures/pointing.json").write_text(json.dumps(payload(snapshot)))
    (out / "index.html").write_text(PAGE.format(figure_html(snapshot, {}, base_url="")))
    with served(out) as url:
        yield url


def test_what_belongs_together_lights_up_together(page: Page, address: str) -> None:
    opened(page, address, FIGURE)
    assert page.locator(LIT).count() == 0
    word = page.locator(f"{FIGURE} .hbf-chart text", has_text="two").first.bounding_box()
    assert word
    page.mouse.move(word["x"] + word["width"] / 2, word["y"] + word["height"] / 2)
    page.wait_for_timeout(100)
    # Both words of the group and its bar in the other picture, and nothing else.
    assert page.locator(LIT).count() == 3
    page.mouse.move(2, 2)
    page.wait_for_timeout(100)
    assert page.locator(LIT).count() == 0


def test_a_drag_moves_the_input_to_the_nearest_stop(page: Page, address: str) -> None:
    opened(page, address, FIGURE)
    points = page.locator(f"{FIGURE} .hbf-chart .set_cut_marks path")
    boxes = [points.nth(i).bounding_box() for i in range(points.count())]
    places = sorted((b["x"] + b["width"] / 2, b["y"] + b["height"] / 2) for b in boxes if b)
    assert len(places) == 5
    page.mouse.move(*places[1])
    page.mouse.down()
    for x, y in (places[2], places[3]):
        page.mouse.move(x + 3, y, steps=4)
        settle(page)
    page.mouse.up()
    settle(page)
    assert page.locator(f"{FIGURE} [data-sentence]").inner_text() == "The cut is at 4."
    assert page.locator(f'{FIGURE} [data-input="cut"]').input_value() == "3"
    page.wait_for_function("location.search.includes('cut=4')")
    # What is moved by its slider can be dragged back to where it was dragged before.
    page.locator(f'{FIGURE} [data-input="cut"]').fill("0")
    settle(page)
    page.mouse.move(*places[2])
    page.mouse.down()
    page.mouse.move(places[3][0] + 2, places[3][1], steps=3)
    page.mouse.up()
    settle(page)
    assert page.locator(f"{FIGURE} [data-sentence]").inner_text() == "The cut is at 4."
