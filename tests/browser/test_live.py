"""The live level in a real Chromium: a notebook on a kernel of this machine, and one in the browser's own Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_pages import CHANGED_MS, STARTED_MS, Troubles, ask_live, local, page, plain, published, run_live
from live_site import live_of, served, wait_for, write_site
from playwright.sync_api import Page, expect

from visualizers import notebook
from visualizers.site.live import SESSION_TTL_S

pytestmark = pytest.mark.browser
__all__ = ["local", "page", "published"]  # fixtures


def _moves_to_a_changed_output(page: Page, address: str) -> None:
    """The notebook opens in the figure's state; a control of its own moves it on."""
    frame = run_live(page, address, "kv-cache-size", context=4096)
    sentence = frame.locator(".output-area .markdown", has_text="in the cache of").first
    expect(sentence).to_contain_text("4,096", timeout=STARTED_MS)  # carried over from the figure
    before = sentence.inner_text()
    slider = frame.get_by_role("slider").first
    slider.focus()
    slider.press("ArrowRight")
    expect(sentence).not_to_have_text(before, timeout=CHANGED_MS)
    expect(frame.locator("svg.marks")).to_be_attached()


def test_a_notebook_moves_on_the_local_kernel(page: Page, local: tuple[str, object]) -> None:
    troubles = Troubles(page, local[0])
    _moves_to_a_changed_output(page, local[0])
    expect(page.locator(".hbl-status")).to_have_text("Running on a kernel of this machine")
    assert troubles == []


def test_a_notebook_moves_in_the_browsers_python(page: Page, published: str) -> None:
    troubles = Troubles(page, published)
    page.add_init_script(
        """new MutationObserver(() => (globalThis.said ??= new Set()).add(document.querySelector('.hbl-status')
            ?.textContent)).observe(document, {subtree: true, childList: true, characterData: true})"""
    )
    _moves_to_a_changed_output(page, published)
    expect(page.locator(".hbl-status")).to_have_text("Running in this browser's Python")
    said = page.evaluate("[...globalThis.said].join('; ')")
    assert " MB" in said  # what it is loading, and how far it is
    assert troubles == []
    # Another time the browser has it all: the page leaves it to the frame to read.
    again = page.context.new_page()
    again.goto(published)
    ask_live(again, "kv-cache-size")
    expect(again.locator(".hbl-status")).to_contain_text("starting Python", timeout=STARTED_MS)
    read = "performance.getEntriesByType('resource').map((e) => e.name)"
    assert not [name for name in again.evaluate(read) if "/notebooks/packages/" in name]


def _grows_and_stops(page: Page, address: str) -> None:
    """Text comes in several drawings, not at the end; the stop button ends it before its length."""
    frame = run_live(page, address, "live-run")
    text = frame.locator("blockquote").first
    expect(text).to_be_attached(timeout=STARTED_MS)
    seen = {text.inner_text()}
    wait_for(lambda: seen.add(text.inner_text()) or len(seen) >= 4, 120)
    frame.get_by_role("button", name="Stop").click()
    page.wait_for_timeout(1500)
    stopped = text.inner_text()
    page.wait_for_timeout(1500)
    assert text.inner_text() == stopped
    lengths = sorted(map(len, seen))
    assert lengths[0] < lengths[-1]


def test_the_live_run_redraws_while_it_runs_on_the_local_kernel(page: Page, local: tuple[str, object]) -> None:
    _grows_and_stops(page, local[0])
    frame = page.frame_locator("iframe")
    expect(frame.get_by_text("memory of the process")).to_be_visible()


def test_the_live_run_redraws_while_it_runs_in_the_browser(page: Page, published: str) -> None:
    troubles = Troubles(page, published)
    _grows_and_stops(page, published)
    assert troubles == []


@pytest.mark.parametrize(("count", "rows"), [(3, [3]), (5, [5]), (6, [3, 3]), (8, [4, 4])])
def test_a_notebooks_numbers_stand_in_rows_without_a_hole(page: Page, count: int, rows: list[int]) -> None:
    page.set_viewport_size({"width": 668, "height": 400})
    page.set_content(notebook.numbers({f"number {i} of some": f"{i} MiB" for i in range(count)}).text)
    tops = page.evaluate("[...document.querySelectorAll('body > div > div')].map((e) => e.offsetTop)")
    assert [tops.count(top) for top in sorted(set(tops))] == rows


def test_the_live_run_takes_enter_and_says_what_it_does_not_take(page: Page, local: tuple[str, object]) -> None:
    frame = run_live(page, local[0], "live-run", tokens=20)
    text, prompt = frame.locator("blockquote").first, frame.get_by_role("textbox").first
    expect(text).to_be_attached(timeout=STARTED_MS)
    expect(frame.locator("marimo-slider").first).to_contain_text("20")  # as the figure had it
    for refused, why in (("", "Prompt is empty"), ("x " * 400, "Prompt has 800 characters, the limit is 600")):
        prompt.fill(refused)
        prompt.press("Enter")
        expect(frame.get_by_text(why)).to_be_visible(timeout=CHANGED_MS)
        expect(text).not_to_be_attached()  # what an earlier prompt gave is no answer to this one
    prompt.fill("We must")
    prompt.press("Enter")
    expect(text).to_be_attached(timeout=CHANGED_MS)
    expect(frame.get_by_text("the limit is 600")).not_to_be_attached()


@pytest.mark.parametrize("where", ["local", "published"])
def test_a_notebook_that_raises_says_so(page: Page, request: pytest.FixtureRequest, where: str) -> None:
    given = request.getfixturevalue(where)
    run_live(page, given if where == "published" else given[0], "raises")
    expect(page.locator(".hbl-problem")).to_have_text(
        "The notebook raised an error: the disk of this notebook is full", timeout=CHANGED_MS
    )


def test_one_frame_at_a_time_and_its_kernel_ends_with_it(page: Page, local: tuple[str, object]) -> None:
    address, app = local
    live = live_of(app)
    run_live(page, address, "kv-cache-size")
    assert live.sessions() >= 1
    ask_live(page, "raises")
    expect(page.locator("iframe")).to_have_count(1)
    page.locator(".hbl-close").click()
    expect(page.locator("iframe")).to_have_count(0)
    expect(page.locator("hb-figure[name=raises] [data-run]")).to_be_focused()
    wait_for(lambda: live.sessions() == 0, SESSION_TTL_S + 60)


def test_the_frame_follows_the_pages_theme(page: Page, local: tuple[str, object]) -> None:
    frame = run_live(page, local[0], "kv-cache-size")
    body = frame.locator("body")
    expect(body).to_have_attribute("data-vscode-theme-kind", "vscode-light")
    page.evaluate("document.body.dataset.mdColorScheme = 'slate'")
    expect(body).to_have_attribute("data-vscode-theme-kind", "vscode-dark")
    expect(frame.locator("svg.marks")).to_be_attached()
    colour = frame.locator("body").evaluate("e => getComputedStyle(e).getPropertyValue('--hb-kv').trim()")
    assert colour == "#f48d00"


@pytest.mark.parametrize("where", ["local", "published"])
def test_the_frame_is_as_high_as_the_notebook(page: Page, request: pytest.FixtureRequest, where: str) -> None:
    """In the browser's Python marimo draws all anew once the kernel is ready: the height must follow that too."""
    given = request.getfixturevalue(where)
    frame = run_live(page, given if where == "published" else given[0], "kv-cache-size")
    expect(frame.locator("svg.marks")).to_be_attached(timeout=CHANGED_MS)
    high = "document.querySelector('iframe').clientHeight"
    inner = "document.querySelector('iframe').contentDocument.querySelector('#App').scrollHeight"
    page.wait_for_function(f"{high} > 400 && {high} >= {inner}", timeout=CHANGED_MS)  # controls alone are lower


def test_a_figure_that_moved_offers_to_start_again(page: Page, local: tuple[str, object]) -> None:
    run_live(page, local[0], "kv-cache-size")
    again = page.locator(".hbl-again")
    expect(again).to_be_hidden()
    page.locator("hb-figure[name=kv-cache-size]").evaluate(
        """e => e.dispatchEvent(new CustomEvent('hb-inputs', {bubbles: true, detail:
            {name: 'kv-cache-size', inputs: {context: 2048}}}))"""
    )
    expect(again).to_be_visible()
    again.click()
    sentence = page.frame_locator("iframe").locator(".output-area .markdown", has_text="in the cache of").first
    expect(sentence).to_contain_text("2,048", timeout=STARTED_MS)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"wasm": False, "reason": "no index answers"}, "This copy of the site has no live notebooks."),
        ({"local": True, "notebooks": {}}, "There is no such notebook here."),
        ("{", "The notebook cannot be loaded"),
        (None, "This copy of the site has no live notebooks."),
    ],
)
def test_a_reader_hears_why_there_is_no_live_notebook(
    page: Page, tmp_path: Path, status: dict[str, object] | str | None, said: str
) -> None:
    site = write_site(tmp_path / "site", "live-run")
    if status is not None:
        (site / "notebooks").mkdir()
        (site / "notebooks" / "live.json").write_text(status if isinstance(status, str) else json.dumps(status))
    with served(plain(site)) as address:
        page.goto(address)
        ask_live(page, "live-run")
        expect(page.locator(".hbl-status")).to_contain_text(said)
        expect(page.locator(".hbl-status")).not_to_contain_text("no index answers")  # that is for the builder
        expect(page.locator("iframe")).to_have_count(0)
