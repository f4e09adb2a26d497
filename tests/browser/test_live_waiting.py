"""Before, around and after a run: the notebook started unseen, stages, a lost kernel, the recipe in the address."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from live_pages import CHANGED_MS, STARTED_MS, Troubles, ask_live, local, page, published, run_live
from live_site import live_of, wait_for
from playwright.sync_api import Page, expect

from visualizers.site import front_end
from visualizers.site.live import SESSION_TTL_S

pytestmark = pytest.mark.browser
__all__ = ["local", "page", "published"]  # fixtures

WHERE = pytest.mark.parametrize("where", ["local", "published"])
SAID = """new MutationObserver(() => (globalThis.said ??= []).push(document.querySelector('.hbl-status')?.textContent))
    .observe(document, {subtree: true, childList: true, characterData: true})"""


def address_of(request: pytest.FixtureRequest, where: str) -> str:
    given = request.getfixturevalue(where)
    return str(given if where == "published" else given[0])


class Loaded(set[str]):
    """The paths, without the folder that they stand in, of what the page and its frames ask for."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        page.on("request", lambda r: self.update(re.split(r"/_static/|/notebooks/", r.url)[1:]))


@WHERE
def test_a_pointer_on_the_button_starts_the_notebook_unseen(
    page: Page, request: pytest.FixtureRequest, where: str
) -> None:
    page.goto(address_of(request, where))
    figure = page.locator("hb-figure[name=kv-cache-size]")
    height = page.evaluate("document.documentElement.scrollHeight")
    figure.locator("[data-run]").hover()
    expect(figure.locator("iframe[data-ready]")).to_be_attached(timeout=STARTED_MS)
    expect(figure.locator(".hbl")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollHeight") == height
    page.evaluate("globalThis.frame = document.querySelector('iframe')")
    ask_live(page, "kv-cache-size")
    expect(figure.locator(".hbl")).to_be_visible()
    assert page.evaluate("globalThis.frame === document.querySelector('iframe')")  # the very one
    expect(figure.frame_locator("iframe").locator("svg.marks")).to_be_visible(timeout=CHANGED_MS)


def test_what_was_started_unseen_with_other_inputs_is_not_shown(page: Page, local: tuple[str, object]) -> None:
    page.goto(local[0])
    figure = page.locator("hb-figure[name=kv-cache-size]")
    figure.locator("[data-run]").focus()
    expect(figure.locator("iframe")).to_be_attached()
    ask_live(page, "kv-cache-size", context=2048)
    expect(figure.locator("iframe")).to_have_count(1)
    sentence = figure.frame_locator("iframe").locator(".output-area .markdown", has_text="in the cache of").first
    expect(sentence).to_contain_text("2,048", timeout=STARTED_MS)


def test_at_most_one_notebook_waits_and_its_kernel_ends(page: Page, local: tuple[str, object]) -> None:
    live = live_of(local[1])
    page.goto(local[0])
    for name in ("kv-cache-size", "live-run"):
        page.locator(f"hb-figure[name={name}] [data-run]").hover()
        expect(page.locator(f"hb-figure[name={name}] iframe")).to_be_attached(timeout=CHANGED_MS)
    expect(page.locator("iframe")).to_have_count(1)
    page.goto("about:blank")
    wait_for(lambda: live.sessions() == 0, SESSION_TTL_S + 60)


def test_the_local_front_end_is_fetched_in_view(page: Page, local: tuple[str, object]) -> None:
    loaded = Loaded(page)
    page.goto(local[0])
    named = set(front_end.files())
    wait_for(lambda: page.wait_for_timeout(100) or named <= loaded, CHANGED_MS / 1000)
    # And it is what a frame loads: nothing that it needs before its kernel answers is left out.
    loaded.clear()
    run_live(page, local[0], "kv-cache-size")
    scripts = {name for name in loaded if name.endswith(".js") and name.startswith("assets/")}
    assert len(scripts & named) > 150
    assert len(scripts - named) < 80, scripts - named  # languages of the code editor, the figure's renderer


def test_the_published_site_fetches_nothing_until_a_figure_is_moved(page: Page, published: str) -> None:
    loaded = Loaded(page)
    page.goto(published, wait_until="networkidle")
    page.wait_for_timeout(1000)
    assert loaded <= {"live.json"}
    page.locator("hb-figure[name=kv-cache-size]").evaluate(
        "e => e.dispatchEvent(new CustomEvent('hb-inputs', {bubbles: true, detail: {inputs: {}}}))"
    )
    wait_for(lambda: page.wait_for_timeout(100) or "pyodide/pyodide.asm.wasm" in loaded, STARTED_MS / 1000)
    expect(page.locator("iframe")).to_have_count(0)


@pytest.mark.parametrize("line", ["{saveData: true}", "{effectiveType: '3g'}"])
def test_who_saves_data_gets_nothing_unasked(page: Page, published: str, line: str) -> None:
    page.add_init_script(f"Object.defineProperty(navigator, 'connection', {{value: {line}}})")
    loaded = Loaded(page)
    page.goto(published, wait_until="networkidle")
    page.locator("hb-figure[name=kv-cache-size] [data-run]").hover()
    page.locator("hb-figure[name=kv-cache-size]").evaluate(
        "e => e.dispatchEvent(new CustomEvent('hb-inputs', {bubbles: true, detail: {inputs: {}}}))"
    )
    page.wait_for_timeout(1500)
    assert loaded <= {"live.json"}
    expect(page.locator("iframe")).to_have_count(0)


@WHERE
def test_the_wait_is_named_step_by_step(page: Page, request: pytest.FixtureRequest, where: str) -> None:
    page.add_init_script(SAID)
    run_live(page, address_of(request, where), "kv-cache-size")
    said = " | ".join(filter(None, page.evaluate("globalThis.said")))
    assert re.search(r"Step \d of \d, running its first cells: \d of 6", said), said
    if where == "published":
        assert "loading its packages" in said
    else:
        assert "Step 1 of 3, loading the notebook's page" in said


def test_a_connection_that_closes_is_told_and_the_picture_stays(page: Page, local: tuple[str, object]) -> None:
    live = live_of(local[1])
    troubles = Troubles(page, local[0])
    frame = run_live(page, local[0], "kv-cache-size")
    expect(frame.locator("svg.marks")).to_be_visible(timeout=CHANGED_MS)
    for manager in live._managers():
        manager.close_all_sessions()
    expect(page.locator(".hbl-status")).to_contain_text("The kernel has ended", timeout=CHANGED_MS)
    expect(frame.locator("svg.marks")).to_be_visible()
    assert page.locator("iframe").evaluate("e => e.inert")
    page.wait_for_timeout(2000)  # marimo's own notices, if any, would be there by now
    expect(frame.get_by_text("disconnected")).not_to_be_visible()
    page.get_by_role("button", name="Start again").click()
    expect(page.locator(".hbl-status")).to_have_text("Running on a kernel of this machine", timeout=STARTED_MS)
    expect(frame.locator("svg.marks")).to_be_visible(timeout=CHANGED_MS)
    assert troubles == []


def test_a_worker_that_ends_is_told_and_the_picture_stays(page: Page, published: str) -> None:
    frame = run_live(page, published, "kv-cache-size")
    expect(frame.locator("svg.marks")).to_be_visible(timeout=CHANGED_MS)
    python = next(worker for worker in page.workers if "/worker-" in worker.url)
    python.evaluate("self.close()")
    expect(page.locator(".hbl-status")).to_contain_text("The kernel has ended", timeout=CHANGED_MS)
    expect(frame.locator("svg.marks")).to_be_visible()
    page.get_by_role("button", name="Start again").click()
    expect(page.locator(".hbl-status")).to_have_text("Running in this browser's Python", timeout=STARTED_MS)


@WHERE
def test_the_recipe_goes_in_and_comes_back(page: Page, request: pytest.FixtureRequest, where: str) -> None:
    base = address_of(request, where)
    recipe = 'v1;[{"prompt":"Ä&=#? +"}]'
    page.goto(base)
    page.evaluate(
        "(r) => history.replaceState({kept: 1}, '', '?context=4096&desk=' + encodeURIComponent(r) + '#here')", recipe
    )
    ask_live(page, "kv-cache-size")
    iframe = page.locator("hb-figure[name=kv-cache-size] iframe")
    expect(iframe).to_be_attached()
    query = parse_qs(urlsplit(iframe.get_attribute("src") or "").query)
    assert query["desk"] == [recipe]
    wait_for(lambda: page.wait_for_timeout(100) or "/live/" in page.frames[-1].url or ".html" in page.frames[-1].url)
    inside = page.frames[-1]

    def send(value: object, kind: str = "hb-desk-recipe") -> None:
        inside.evaluate("(m) => parent.postMessage(m, location.origin)", {"type": kind, "value": value})

    send("new & longer")
    wait_for(lambda: page.wait_for_timeout(50) or parse_qs(urlsplit(page.url).query)["desk"] == ["new & longer"])
    assert parse_qs(urlsplit(page.url).query)["context"] == ["4096"]
    assert urlsplit(page.url).fragment == "here"
    assert page.evaluate("history.state") == {"kept": 1}
    kept = page.url
    for value, kind in (("x" * 4001, "hb-desk-recipe"), (7, "hb-desk-recipe"), ("y", "other")):
        send(value, kind)
    page.evaluate("postMessage({type: 'hb-desk-recipe', value: 'forged'}, '*')")  # not from the frame
    page.wait_for_timeout(300)
    assert page.url == kept
    ask_live(page, "live-run")  # another notebook: this is no recipe for it
    other = page.locator("hb-figure[name=live-run] iframe")
    assert "desk" not in parse_qs(urlsplit(other.get_attribute("src") or "").query)
    ask_live(page, "kv-cache-size")
    assert parse_qs(urlsplit(iframe.get_attribute("src") or "").query)["desk"] == ["new & longer"]


@WHERE
def test_a_page_opens_a_notebook_without_a_figure(page: Page, request: pytest.FixtureRequest, where: str) -> None:
    page.goto(address_of(request, where))
    page.evaluate(
        """document.body.insertAdjacentHTML('afterbegin',
            '<hb-desk-slot notebook="kv_cache_size" query="context=2048"><p>A picture</p></hb-desk-slot>')"""
    )
    slot = page.locator("hb-desk-slot")
    expect(slot.get_by_text("A picture")).to_be_visible()
    slot.get_by_role("button", name="Start the engine").press("Enter")
    expect(slot.get_by_text("A picture")).to_be_hidden()
    sentence = slot.frame_locator("iframe").locator(".output-area .markdown", has_text="in the cache of").first
    expect(sentence).to_contain_text("2,048", timeout=STARTED_MS)
    slot.get_by_role("button", name="Close").click()
    expect(slot.get_by_text("A picture")).to_be_visible()
    expect(slot.get_by_role("button", name="Start the engine")).to_be_focused()


def test_instant_navigation_ends_the_kernel(page: Page, local: tuple[str, object]) -> None:
    """The theme replaces the page's content and keeps its document."""
    live = live_of(local[1])
    page.add_init_script("globalThis.document$ = {subscribe(f) { (globalThis.heard ??= []).push(f); f(document); }}")
    run_live(page, local[0], "kv-cache-size")
    assert live.sessions() >= 1
    page.evaluate("document.body.replaceChildren(); heard.forEach((f) => f(document))")
    expect(page.locator("iframe")).to_have_count(0)
    wait_for(lambda: live.sessions() == 0, SESSION_TTL_S + 60)


def test_scrolled_away_and_back_it_is_the_same_notebook(page: Page, local: tuple[str, object]) -> None:
    frame = run_live(page, local[0], "kv-cache-size")
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"height: 4000px\">')")
    frame.locator("html").evaluate("(e) => { e.dataset.mine = '1'; }")
    page.mouse.wheel(0, 4000)
    page.wait_for_timeout(500)
    page.evaluate("scrollTo(0, 0)")
    expect(frame.locator("html")).to_have_attribute("data-mine", "1")
    expect(page.locator(".hbl-status")).to_have_text("Running on a kernel of this machine")
