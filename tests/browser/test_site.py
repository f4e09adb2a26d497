"""The real book, built and served below a sub-path: every page in a real Chromium, every figure touched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_page import served, watched
from playwright.sync_api import Browser, Page
from search_queries import QUERIES, right

from visualizers import registry
from visualizers.levels.computed import ComputedFigures
from visualizers.site.build import Builder
from visualizers.site.project import load
from visualizers.site.searching import Index

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2].partition("\ntheme:")[0]
PAGES = [stem.removesuffix("index") for stem in re.findall(r"([\w/-]+)\.md", NAV)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site at ``/x/``, as a host of project pages would have it."""
    folder = tmp_path_factory.mktemp("host")
    Builder.of(ROOT).build(folder / "x")
    status = folder / "x" / "notebooks" / "live.json"  # as `handbook build` leaves it where no index answers
    status.parent.mkdir()
    status.write_text('{"wasm": false}')
    with served(folder) as base:
        yield f"{base}x/"


def url(address: str, page: str) -> str:
    return f"{address}{page}/" if page else address


def third_party(page: Page, address: str) -> list[str]:
    """Addresses of other hosts that the page asks from now on."""
    asked: list[str] = []
    own = (address, "data:", "blob:")
    page.on("request", lambda r: None if r.url.startswith(own) else asked.append(r.url))
    return asked


def wake(page: Page) -> int:
    """Scroll to each figure until it is awake; returns how many there are."""
    figures = page.locator("hb-figure")
    for index in range(figures.count()):
        figures.nth(index).scroll_into_view_if_needed()
        figures.nth(index).locator("fieldset.hbf-levers:not([disabled])").wait_for()
    return figures.count()


def test_the_navigation_names_every_page() -> None:
    sources = {p.relative_to(ROOT / "handbook").with_suffix("").as_posix() for p in (ROOT / "handbook").rglob("*.md")}
    generated = {"reference/map", "reference/glossary", "reference/sources", "reference/changelog"}
    assert {p or "index" for p in PAGES} == sources | generated


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_page_is_whole(browser: Browser, address: str, name: str, width: int, scheme: Any) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    troubles, asked = watched(page), third_party(page, address)
    response = page.goto(url(address, name))
    assert response is not None
    assert response.ok
    wake(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        page.evaluate(
            "[...document.querySelectorAll('[id]')].map((e) => e.id).filter((id, i, all) => all.indexOf(id) !== i)"
        )
        == []
    )
    violations = Axe().run(page).response["violations"]
    serious = [
        (v["id"], [node["target"] for node in v["nodes"]]) for v in violations if v["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert troubles == []
    assert asked == []
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_text_and_figures_stand_without_javascript(browser: Browser, address: str, name: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(url(address, name))
    figures = re.findall(r"```figure\n([\w-]+)", _source(name))
    assert page.locator("hb-figure .hbf-print-wide svg[role=img]").count() == len(figures)
    assert page.locator("hb-figure [data-sentence]").count() == len(figures)
    assert page.locator("h1").count() == 1
    assert len(page.locator("article").inner_text()) > 300
    context.close()


@pytest.mark.parametrize("name", [v.name for v in registry.all()])
def test_a_figure_moves_by_keyboard_and_agrees_with_its_twin(browser: Browser, address: str, name: str) -> None:
    home = next(p for p in PAGES if f"```figure\n{name}\n" in _source(p))
    context = browser.new_context()
    page = context.new_page()
    page.goto(url(address, home))
    figure = page.locator(f'hb-figure[name="{name}"]').first
    figure.scroll_into_view_if_needed()
    figure.locator("fieldset.hbf-levers:not([disabled])").wait_for()
    figure.locator("details[data-more]").evaluate_all("(all) => all.forEach((more) => (more.open = true))")
    control = figure.locator("input[type=range]:enabled").first
    control.wait_for()

    twin = context.request.get(f"{address}{home}.md" if home else f"{address}index.md").text()
    for number in re.findall(r"\d[\d,.]*\d", figure.locator("[data-sentence]").inner_text()):
        assert number in twin

    before = figure.locator("[data-stage]").inner_html()
    control.focus()
    key = "ArrowLeft" if control.input_value() == control.get_attribute("max") else "ArrowRight"
    for _ in range(3):
        page.keyboard.press(key)
    moved = "([figure, was]) => figure.querySelector('[data-stage]').innerHTML !== was"
    page.wait_for_function(moved, arg=[figure.element_handle(), before])
    page.wait_for_function("location.search.length > 1")
    context.close()


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_the_first_screen_says_what_this_is_and_where_to_begin(
    browser: Browser, address: str, width: int, height: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(address)
    for text in ("How language models are served", "For those who serve models", "It runs."):
        box = page.get_by_text(text).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < height
    begin = page.locator(".hb-begin a")
    box = begin.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < height
    begin.click()
    page.wait_for_url("**/foundations/prefill-and-decode/")
    page.context.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_map_can_be_read(browser: Browser, address: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(address)
    rows = page.locator(".hb-map li")
    assert rows.count() == len([name for name in PAGES if name and not name.startswith("reference/")])
    drawn = page.locator(".hb-map svg").bounding_box()
    assert drawn is not None
    dots = page.locator(".hb-map circle")
    for index in range(rows.count()):
        row, dot = rows.nth(index).bounding_box(), dots.nth(index).bounding_box()
        assert row is not None
        assert dot is not None
        assert abs(row["y"] + row["height"] / 2 - dot["y"] - dot["height"] / 2) < 2  # a line ends at its page
        assert row["x"] >= drawn["x"] + drawn["width"]  # and runs behind no word
        assert rows.nth(index).evaluate("e => e.scrollHeight <= e.clientHeight + 1")  # whose title is whole
    rows.filter(has_text="KV cache").first.locator("a").focus()
    assert page.locator(".hb-map path[data-lit]").count() > 2
    page.context.close()


def test_each_query_leads_to_the_right_page_first(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    box = page.locator(".md-search__input")
    box.click()
    wrong = {}
    for query in QUERIES:
        # The theme answers queries in their order: an answer to this one comes after that to nothing.
        for text in ("", query):
            box.fill(text)
            box.press("End")
            page.wait_for_function(
                "some => Boolean(document.querySelector('.md-search-result__link')) === some", arg=bool(text)
            )
        href = page.locator(".md-search-result__link").first.get_attribute("href") or ""
        found = re.sub(r"\?h=[^#]*", "", href.removeprefix(address))
        if not right(query, found):
            wrong[query] = found
    assert wrong == {}
    page.context.close()


def test_the_page_reads_queries_as_the_server_does(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    index = Index(load(ROOT), ComputedFigures())
    queries = [*QUERIES, "preem", '"block table"', "c", "", "what is", "-x", "AT&T <b>", "blocks' tables"]
    found = page.evaluate(
        """async ([script, queries]) => {
            const [code, index] = await Promise.all([
                fetch(script).then((r) => r.text()), fetch("search/search_index.json").then((r) => r.json()),
            ]);
            const self = {};
            new Function("self", code)(self);
            return queries.map((query) => self.hbQuery(query, index.config, index.docs));
        }""",
        ["assets/js/search.js", queries],
    )
    assert dict(zip(queries, found, strict=True)) == {query: index.words.query(query) for query in queries}
    page.context.close()


def _source(page: str) -> str:
    path = ROOT / "handbook" / f"{page or 'index'}.md"
    return path.read_text(encoding="utf-8") if path.exists() else ""
