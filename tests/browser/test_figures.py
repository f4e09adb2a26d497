"""Figures in a real Chromium: printed first, then moved by hand, by keyboard and by the page's address."""

from __future__ import annotations

import datetime
import json
import math
import random
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from example_figure import VISUALIZER
from figure_pages import FIGURE, opened, sentence, settle
from playwright.sync_api import Page

from visualizers import formats, palette
from visualizers.levels import charts
from visualizers.levels.controls import stops, value_text
from visualizers.levels.describe import record

pytestmark = pytest.mark.browser


def close(found: Any, expected: Any) -> bool:
    """Whether two JSON values are equal, numbers to the last digits that two orders of adding may differ in."""
    if isinstance(expected, Mapping):
        return found.keys() == expected.keys() and all(close(found[k], expected[k]) for k in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-12, abs_tol=1e-15)
    return bool(found == expected)


def test_without_scripts_the_figure_is_whole_and_nothing_promises_to_move(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site)
    assert page.locator(".hbf-print-wide svg").is_visible()
    assert "512 MiB" in sentence(page)
    assert not page.locator(".hbf-form").is_visible()
    assert not page.locator("[data-run]").is_visible()
    page.locator("summary", has_text="Table").click()
    assert page.locator("td", has_text="KV cache").is_visible()
    context.close()


def test_a_figure_loads_when_it_nears_the_view_and_not_before(page, site):
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url))
    page.goto(f"{site}far.html")
    page.wait_for_timeout(300)
    assert not [u for u in asked if u.endswith(("vega.js", "example.json"))]
    page.locator(FIGURE).scroll_into_view_if_needed()
    page.locator(f"{FIGURE}[data-ready]").wait_for()
    assert all(u.startswith(site) for u in asked)


def test_a_slider_moves_numbers_sentence_table_and_chart_alike(page, site, snapshot):
    opened(page, site)
    before = page.locator(".hbf-chart svg").inner_html()
    slider = page.get_by_role("slider", name="Context")
    slider.focus()
    slider.press("ArrowRight")
    settle(page)
    state = snapshot.at({"context": 10240})
    assert slider.get_attribute("aria-valuetext") == "10,240 tokens"
    assert page.locator("output").first.inner_text() == "10,240 tokens"
    assert sentence(page) == state.text()
    cells = page.locator(".hbf-values td").all_text_contents()
    assert cells == ["KV cache", "0.63", "kept free in the last block", "0.00"]
    assert page.locator(".hbf-chart svg").inner_html() != before
    assert "--context 10240 --fresh --json" in page.locator("[data-command]").text_content()


def test_the_woken_figure_says_what_was_printed(page, site):
    # Nor is it written again: text that is painted anew counts as painted late.
    page.add_init_script(
        """addEventListener("DOMContentLoaded", () => new MutationObserver(() => (window.rewritten = true)).observe(
            document.querySelector("[data-sentence]"), {subtree: true, childList: true, characterData: true}))"""
    )
    page.goto(site)
    printed = (sentence(page), page.locator(".hbf-values").text_content())
    page.locator(f"{FIGURE}[data-ready]").wait_for()
    assert (sentence(page), page.locator(".hbf-values").text_content()) == printed
    assert not page.evaluate("window.rewritten")
    page.get_by_role("slider", name="Context").press("ArrowRight")
    settle(page)
    assert page.evaluate("window.rewritten")


def test_every_state_has_the_numbers_of_python(page, site, snapshot):
    opened(page, site)
    rng = random.Random(11)
    samples = []
    for _ in range(60):
        inputs = {
            "model": rng.choice(["small", "large"]),
            "block": rng.choice([1, 16, 256]),
            "context": rng.randint(1, 131072),
            "batch": rng.randint(1, 64),
            "prompt": VISUALIZER.defaults()["prompt"],
        }
        samples.append(inputs)
    found = page.evaluate(
        """async (samples) => {
            const { Model, compiler, sentenceText } = await import("/assets/js/model.js");
            const { loadVega } = await import("/assets/js/chart.js");
            const payload = await (await fetch("/figures/example.json")).json();
            const model = new Model(payload, compiler(await loadVega()));
            return samples.map((inputs) => {
                const state = model.at(inputs);
                return { ...state, sentence: sentenceText(state.sentence, state.values) };
            });
        }""",
        samples,
    )
    for inputs, state in zip(samples, found, strict=True):
        expected = snapshot.at(inputs)
        assert close(state["values"], expected.data.values), inputs
        assert state["sentence"] == expected.text()
        assert close(state["datasets"], expected.data.rows), inputs
        assert close(state["rows"], expected.table.rows), inputs


def test_logarithms_are_exact_in_the_browser_too(page, site):
    opened(page, site)
    found = page.evaluate(
        """async () => {
            const { compiler } = await import("/assets/js/model.js");
            const { loadVega } = await import("/assets/js/chart.js");
            const at = compiler(await loadVega())("ceil(log2(n)) + log10(n) % 1");
            return [...Array(50).keys()].map((k) => at({ n: 2 ** k }) - (Math.log10(2 ** k) % 1));
        }"""
    )
    assert found == pytest.approx(list(range(50)), abs=1e-9)


def test_a_slider_plays_to_its_end_and_stops_when_touched(page, site):
    opened(page, site)
    slider = page.get_by_role("slider", name="Block size")
    button = page.get_by_role("button", name="Play Block size")
    button.click()
    page.wait_for_function("document.querySelector('#figure-example-block').value === '2'")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    page.wait_for_function("document.querySelector('#figure-example-block').value === '1'")
    assert button.get_attribute("aria-pressed") == "true"
    page.get_by_role("slider", name="Batch").press("ArrowRight")
    assert button.get_attribute("aria-pressed") == "false"
    page.wait_for_timeout(1000)
    assert slider.get_attribute("aria-valuetext") == "16 tokens"


def test_a_moment_ends_where_its_run_ends(page, site):
    opened(page, site)
    found = page.evaluate(
        """async () => {
            const { Model } = await import("/assets/js/model.js");
            const stops = [0, 1, 2, 3];
            const moment = { name: "moment", kind: "number", instant: "grid", stops };
            const inputs = (play) => [{ name: "run", kind: "choice" }, { ...moment, play }];
            const payload = { grid: [["run", ["short", "long"]], ["moment", stops]] };
            payload.states = [0, 1, 1, 1, 0, 1, 2, 3].map((v) => ({ v }));
            const ends = (play) => {
                const model = new Model({ ...payload, inputs: inputs(play) });
                return ["short", "long"].map((run) => model.end("moment", { run, moment: 0 }));
            };
            return [ends(true), ends(false)];
        }"""
    )
    assert found == [[1, 3], [3, 3]]


def test_a_text_that_is_too_long_is_refused_aloud_and_not_cut(page, site):
    opened(page, site)
    prompt = page.get_by_role("textbox", name="Prompt")
    prompt.fill("x" * 201)
    assert prompt.input_value() == "x" * 201
    assert page.locator("[data-note]").first.inner_text() == "Prompt takes 1 to 200 characters."


def test_choices_and_grids_move_too(page, site, snapshot):
    opened(page, site)
    page.get_by_role("radio", name="Large").check(force=True)
    block = page.get_by_role("slider", name="Block size")
    block.press("End")
    settle(page)
    assert sentence(page) == snapshot.at({"model": "large", "block": 256}).text()
    assert block.get_attribute("aria-valuetext") == "256 tokens"


def test_the_address_follows_the_figure_and_the_figure_the_address(page, site, snapshot):
    opened(page, site)
    page.get_by_role("slider", name="Context").press("ArrowRight")
    page.wait_for_url("**/?context=10240")
    page.get_by_role("radio", name="Large").check(force=True)
    page.wait_for_url("**/?context=10240&model=large")
    opened(page, page.url)
    assert sentence(page) == snapshot.at({"context": 10240, "model": "large"}).text()
    page.get_by_role("button", name="Reset").click()
    page.wait_for_url(site)
    assert sentence(page) == snapshot.default.text()


def test_an_address_may_name_a_value_between_the_sliders_stops(page, site, snapshot):
    opened(page, f"{site}?context=9000")
    assert sentence(page) == snapshot.at({"context": 9000}).text()
    slider = page.get_by_role("slider", name="Context")
    assert slider.get_attribute("aria-valuetext") == "9,000 tokens"
    assert slider.input_value() == str(stops(VISUALIZER.inputs[1]).index(8192))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("context=0", "Context takes whole numbers from 1 to 131,072 tokens, not “0”"),
        ("context=1e400", "Context takes whole numbers"),
        ("context=", "Context takes whole numbers"),
        ("context=1.5", "Context takes whole numbers"),
        ("model=huge", "Model has no “huge”: choose from small, large"),
        ("model=toString", "Model has no “toString”"),
        ("block=17", "Block size takes 1, 16, 256, not “17”"),
        ("prompt=%20", "Prompt takes 1 to 200 characters"),
        ("context=%3Cimg%20src%3Dx%3E", "not “<img src=x>”"),
    ],
)
def test_a_bad_value_in_the_address_is_said_and_left(page, site, snapshot, query, said):
    opened(page, f"{site}?{query}&other=1")
    assert said in page.locator("[data-note]").inner_text()
    assert sentence(page) == snapshot.default.text()
    assert page.locator("[data-note] img").count() == 0


def test_figures_of_a_page_share_the_inputs_they_know(page, site, snapshot):
    opened(page, f"{site}two.html")
    page.locator(f"{FIGURE}[data-ready]").nth(1).wait_for()
    first, second = page.locator(FIGURE).nth(0), page.locator(FIGURE).nth(1)
    assert "160 GiB" not in second.locator("[data-sentence]").inner_text()
    first.get_by_role("slider", name="Context").press("End")
    settle(page)
    assert first.locator("[data-sentence]").inner_text() == snapshot.at({"context": 131072}).text()
    large = snapshot.at({"context": 131072, "model": "large"}).text()
    assert second.locator("[data-sentence]").inner_text() == large
    assert second.get_by_role("slider", name="Context").get_attribute("aria-valuetext") == "131,072 tokens"


def test_text_needs_a_kernel_and_the_figure_says_so(page, site, snapshot):
    opened(page, site)
    page.get_by_role("textbox", name="Prompt").fill("Another prompt")
    settle(page)
    assert "“Run live” computes this with your prompt" in page.locator("[data-note]").inner_text()
    assert sentence(page) == snapshot.default.text()
    page.get_by_role("textbox", name="Prompt").fill("")
    assert "Prompt takes 1 to 200 characters" in page.locator("[data-note]").inner_text()


def test_run_live_hands_over_the_current_inputs(page, site):
    opened(page, site)
    page.evaluate("window.heard = []; addEventListener('hb-live', (e) => heard.push(e.detail))")
    page.get_by_role("slider", name="Batch").press("End")
    page.get_by_role("textbox", name="Prompt").fill("Hello")
    page.get_by_role("button", name="Run live").click()
    expected = {**VISUALIZER.defaults(), "batch": 64, "prompt": "Hello"}
    assert page.evaluate("heard") == [{"name": "example", "inputs": expected}]
    assert page.locator(FIGURE).evaluate("(figure) => figure.inputs") == expected


def test_moves_are_announced_once_the_reader_stops(page, site, snapshot):
    opened(page, site)
    spoken = page.locator("[data-announce]")
    assert spoken.text_content() == ""
    for _ in range(3):
        page.get_by_role("slider", name="Batch").press("ArrowRight")
    page.wait_for_timeout(1500)
    assert spoken.text_content() == snapshot.at({"batch": 7}).text()
    assert spoken.get_attribute("aria-live") == "polite"


def test_a_payload_that_cannot_be_loaded_leaves_the_printed_figure(browser, site):
    page = browser.new_page()
    page.goto(f"{site}broken.html")
    note = page.locator("[data-note]:not([hidden])")
    note.wait_for()
    assert "stays as printed (404" in note.inner_text()
    assert page.locator(".hbf-print-wide svg").is_visible()
    assert page.get_by_role("slider", name="Context").is_disabled()
    assert page.get_by_role("button", name="Run live").is_enabled()
    page.close()


def downloaded(page: Page, label: str) -> bytes:
    with page.expect_download() as waiting:
        page.get_by_role("button", name=label, exact=True).click()
    assert waiting.value.suggested_filename == f"example.{label.lower()}"
    return Path(waiting.value.path()).read_bytes()


def test_downloads_hold_the_current_state(page, site, snapshot):
    opened(page, f"{site}?context=10240&block=256")
    state = snapshot.at({"context": 10240, "block": 256})
    assert json.loads(downloaded(page, "JSON")) == record(snapshot, state)
    lines = downloaded(page, "CSV").decode().splitlines()
    assert lines[0] == "Memory,Size (GiB)"
    assert lines[1] == f"KV cache,{state.table.rows[0]['gib']}"
    svg = downloaded(page, "SVG").decode()
    assert svg.startswith("<svg ")
    assert "var(" not in svg
    assert palette.LIGHT["kv"] in svg
    drawn = ET.fromstring(svg)  # noqa: S314 - our own
    told = " ".join("".join(text.itertext()) for text in drawn if text.tag.endswith("}text"))
    for part in (VISUALIZER.title, "Context: 10,240 tokens", "Computed.", str(datetime.date.today()), "CC BY 4.0"):
        assert part in told
    assert f"{site}?context=10240&block=256#figure-example" in "".join(drawn.itertext()).replace(" ", "")
    width = float(drawn.get("width"))
    assert (
        page.evaluate(
            """svg => {
            const box = document.createElement("div");
            box.innerHTML = svg;
            document.body.append(box);
            const boxes = [...box.querySelectorAll("svg > text")].map((text) => text.getBBox());
            const widest = Math.max(...boxes.map(({ x, width }) => x + width));
            box.remove();
            return widest;
        }""",
            svg,
        )
        <= width
    )
    png = downloaded(page, "PNG")
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20]) == pytest.approx(2 * charts.WIDE, abs=4)


def test_what_was_typed_and_not_run_is_not_in_the_file(page, site):
    opened(page, site)
    page.get_by_role("textbox", name="Prompt").fill("Another one")
    page.get_by_text("Run live” computes this").wait_for()
    found = json.loads(downloaded(page, "JSON"))
    assert found["inputs"]["prompt"] == "The capital of France is"
    assert "Another one" not in downloaded(page, "SVG").decode()


def test_copy_link_gives_the_state_and_the_figure(page, site):
    opened(page, site)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("slider", name="Batch").press("End")
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("on the clipboard").wait_for()
    warned, done = page.evaluate(
        """() => {
            const note = document.querySelector("[data-note]");
            const colour = () => getComputedStyle(note).color;
            const found = colour();
            note.dataset.kind = "warning";
            return [colour(), found];
        }"""
    )
    assert warned != done  # what is done is no warning
    assert page.evaluate("navigator.clipboard.readText()") == f"{site}?batch=64#figure-example"


def test_value_texts_are_pythons(page, site):
    opened(page, site)
    found = page.evaluate(
        """async (values) => {
            const { Model } = await import("/assets/js/model.js");
            const model = new Model(await (await fetch("/figures/example.json")).json());
            return values.map(([name, value]) => model.valueText(name, value));
        }""",
        [[i.name, v] for i in VISUALIZER.inputs for v in (i.default, *i.ends())],
    )
    assert found == [value_text(i, v) for i in VISUALIZER.inputs for v in (i.default, *i.ends())]
    assert formats.format_value(8192) in found[3]


def test_what_is_rarely_moved_stands_behind_more_and_is_open_where_it_was_moved(page, site, snapshot):
    opened(page, f"{site}more.html")
    assert page.get_by_role("slider", name="Context").is_visible()
    assert not page.get_by_role("slider", name="Batch").is_visible()
    page.get_by_text("More", exact=True).click()
    page.get_by_role("slider", name="Batch").press("End")
    settle(page)
    assert sentence(page) == snapshot.at({"batch": 64}).text()
    opened(page, f"{site}more.html?batch=64")
    assert page.get_by_role("slider", name="Batch").is_visible()


def test_what_moves_glides_and_stands_still_for_who_wants_less_motion(browser, site):
    seen = {}
    for motion in ("no-preference", "reduce"):
        context = browser.new_context(reduced_motion=motion)
        page = context.new_page()
        opened(page, site)
        page.evaluate(
            """async () => {
                window.lines = new Set(); // of what the axes say
                const slider = document.querySelector('[data-input="context"]');
                const frame = () => new Promise(requestAnimationFrame);
                slider.value = slider.max;
                slider.dispatchEvent(new Event("input", { bubbles: true }));
                for (let i = 0; i < 40; i += 1) {
                    await frame();
                    lines.add(document.querySelector(".hbf-chart svg").textContent);
                }
            }"""
        )
        seen[motion] = page.evaluate("lines.size")
        context.close()
    assert seen["reduce"] <= 2
    assert seen["no-preference"] > 4
