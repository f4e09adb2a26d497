"""The live level in a real Chromium: a notebook on a kernel of this machine, and one in the browser's own Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_pages import CHANGED_MS, STARTED_MS, Troubles, ask_live, local, page, plain, published, run_live
from live_site import live_of, served, wait_for, write_site
from playwright.sync_api import Page, expect

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


def _goes_on(page: Page, address: str) -> None:
    """The desk of the first page: requests of its recipe write tokens, one after the other."""
    desk = run_live(page, address, "live-run").locator("[data-hb-desk]")
    expect(desk).to_be_attached(timeout=STARTED_MS)

    def tokens() -> int:
        return int(desk.evaluate("e => e.state().requests.reduce((sum, r) => sum + r.output_tokens, 0)"))

    wait_for(lambda: tokens() > 0, 120)
    before = tokens()
    wait_for(lambda: tokens() > before + 20, 120)


def test_the_live_run_goes_on_on_the_local_kernel(page: Page, local: tuple[str, object]) -> None:
    _goes_on(page, local[0])


def test_the_live_run_goes_on_in_the_browser(page: Page, published: str) -> None:
    troubles = Troubles(page, published)
    _goes_on(page, published)
    assert troubles == []


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
