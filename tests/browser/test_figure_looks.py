"""How figures stand on a page in a real Chromium: widths, themes, keyboard, and what they leave behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from browser_page import watched
from example_figure import VISUALIZER
from figure_pages import ASSETS, FIGURE, opened

from visualizers import palette
from visualizers.levels import charts

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("width", [1280, 768, 390, 320])
@pytest.mark.parametrize("query", ["", "?context=131072&batch=64&model=large&block=1"])
def test_nothing_runs_off_the_screen(page, site, width, query):
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, site + query)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    right = page.evaluate(
        "Math.max(...[...document.querySelectorAll('.hbf-chart svg, .hbf-chart svg text')]"
        ".map((e) => e.getBoundingClientRect().right))"
    )
    assert (
        right
        <= page.locator("[data-stage]").bounding_box()["x"] * 2 + page.locator("[data-stage]").bounding_box()["width"]
    )
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('.hbf-chart svg text')]"
        ".map((e) => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a))"
    )
    assert smallest >= 11


def test_the_chart_follows_the_width_of_the_window(page, site):
    opened(page, site)
    for width in (1280, 620, 390, 900):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        stage = page.locator("[data-stage]").bounding_box()
        chart = page.locator(".hbf-chart svg").bounding_box()
        assert chart["width"] == pytest.approx(stage["width"], abs=2), width
        assert page.locator(".hbf-chart svg").count() == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_shifts_when_the_figure_wakes(page, site, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.add_init_script(
        "window.shift = 0; new PerformanceObserver((list) => list.getEntries().forEach((e) => {"
        " if (!e.hadRecentInput) window.shift += e.value; })).observe({ type: 'layout-shift', buffered: true });"
    )
    opened(page, site)
    page.wait_for_timeout(500)
    assert page.evaluate("shift") <= 0.02


def test_the_theme_changes_without_drawing_again(page, site):
    opened(page, site)
    page.locator("body").evaluate("(body) => { body.dataset.mdColorScheme = 'default'; }")
    page.locator(".hbf-chart svg").evaluate("(svg) => { svg.marked = true; }")
    bar = page.locator(f'.hbf-chart [fill="{palette.colour("kv")}"]').first
    fills = []
    for scheme in ("default", "slate"):
        page.locator("body").evaluate("(body, scheme) => { body.dataset.mdColorScheme = scheme; }", scheme)
        fills.append(bar.evaluate("(e) => getComputedStyle(e).fill"))
    assert page.locator(".hbf-chart svg").evaluate("(svg) => svg.marked") is True
    expected = [palette.LIGHT["kv"], palette.DARK["kv"]]
    assert fills == [f"rgb({', '.join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5))})" for c in expected]


def test_without_a_scheme_the_system_decides(browser, site):
    for scheme, colours in (("light", palette.LIGHT), ("dark", palette.DARK)):
        context = browser.new_context(color_scheme=scheme)
        page = context.new_page()
        page.goto(site)
        found = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--hb-page').trim()")
        assert found == colours["page"]
        context.close()


def test_twenty_times_away_and_back_leaves_nothing_behind(page, site):
    """What the theme's instant navigation does: the content goes and comes, the document stays."""
    opened(page, site)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def measured() -> dict[str, float]:
        session.send("HeapProfiler.collectGarbage")
        metrics = session.send("Performance.getMetrics")["metrics"]
        return {m["name"]: m["value"] for m in metrics}

    page.evaluate("window.content = document.querySelector('main').innerHTML")
    circle = """async () => {
        const main = document.querySelector("main");
        main.replaceChildren();
        await new Promise((done) => setTimeout(done, 20));
        main.innerHTML = content;
        const figure = main.querySelector("hb-figure");
        for (const e of figure.querySelectorAll(".hbf-chart, .hbf-tip")) e.remove();
        delete figure.querySelector("[data-stage]").dataset.drawn;
        delete figure.dataset.ready;
        while (!figure.hasAttribute("data-ready")) await new Promise((done) => setTimeout(done, 10));
    }"""
    for _ in range(3):
        page.evaluate(circle)
    before = measured()
    for _ in range(20):
        page.evaluate(circle)
    after = measured()
    assert after["JSHeapUsedSize"] - before["JSHeapUsedSize"] < 3e6
    assert after["JSEventListeners"] - before["JSEventListeners"] < 20
    page.evaluate("window.heard = 0; addEventListener('hb-live', () => { heard += 1; })")
    page.get_by_role("button", name="Run live").click()
    assert page.evaluate("heard") == 1


def test_a_figure_that_goes_while_it_loads_is_no_error(browser, site):
    page = browser.new_page()
    troubles = watched(page)
    page.goto(site, wait_until="domcontentloaded")
    page.evaluate("document.querySelector('hb-figure').remove()")
    page.wait_for_timeout(500)
    assert troubles == []
    page.close()


def test_axe_finds_nothing_serious(page, site):
    from axe_playwright_python.sync_playwright import Axe

    for scheme in ("default", "slate"):
        opened(page, site)
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.locator("body").evaluate("(body, scheme) => { body.dataset.mdColorScheme = scheme; }", scheme)
        found = Axe().run(page, context=FIGURE).response["violations"]
        serious = [v for v in found if v["impact"] in ("serious", "critical")]
        assert not serious, json.dumps(_brief(serious), indent=1)


def _brief(violations: list[Any]) -> list[Any]:
    return [{"id": v["id"], "nodes": [n["html"][:160] for n in v["nodes"]]} for v in violations]


def test_every_control_is_reached_and_named_by_keyboard(page, site):
    opened(page, site)
    page.evaluate("document.activeElement.blur()")
    names = []
    for _ in range(16):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.closest('hb-figure') && document.activeElement.outerHTML"))
    reached = [n for n in names if n]
    for given in VISUALIZER.inputs:
        assert any(f"example-{given.name}" in html for html in reached), given.name
    page.locator("#figure-example-context").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_breakpoint_is_the_style_sheets():
    sheet = (ASSETS / "css/figure.css").read_text()
    assert sheet.count(f"@container (width < {charts.BREAKPOINT}px)") == sheet.count("@container") == 2
