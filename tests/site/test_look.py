"""Pages in a real Chromium: explanations by pointer, keyboard and touch, the copy button, no script, small screens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_page import served, watched
from playwright.sync_api import Browser, Page
from small_book import ROOT

from visualizers.site.mathml import to_mathml
from visualizers.site.project import load

pytestmark = pytest.mark.browser

PAGES = ["", "basics/cache/", "serving/paging/", "reference/map/", "reference/glossary/", "reference/sources/"]


@pytest.fixture(scope="module")
def address(built: Any) -> Iterator[str]:
    with served(built.out) as address:
        yield address


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    yield context.new_page()
    context.close()


def number(page: Page) -> Any:
    return page.locator(".hb-num[tabindex]", has_text="2 MiB").first


def test_a_number_explains_itself_to_the_pointer(page: Page, address: str) -> None:
    page.goto(f"{address}serving/paging/")
    tip = page.locator("#hb-tip")
    number(page).hover()
    assert tip.text_content() == '16 * tiny.kv_bytes_per_token("bf16")\n= 16 × 128 KiB\n= 2 MiB'
    assert number(page).get_attribute("title") is None  # or the browser's own would cover ours
    tip.hover()
    assert tip.is_visible()  # its text can be marked and copied
    page.mouse.move(5, 400)
    assert not tip.is_visible()
    assert number(page).get_attribute("title")


def test_a_number_explains_itself_to_the_keyboard(page: Page, address: str) -> None:
    page.goto(f"{address}serving/paging/")
    number(page).focus()
    tip = page.locator("#hb-tip")
    assert tip.is_visible()
    assert number(page).get_attribute("aria-describedby") == "hb-tip"
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert tip.is_visible()


def test_a_term_explains_itself_to_a_finger_before_it_leads_away(browser: Browser, address: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(f"{address}serving/paging/")
    term = page.locator("a.hb-term").first
    term.tap()
    tip = page.locator("#hb-tip")
    assert tip.text_content() == "The list of block numbers of a sequence."
    box = tip.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert page.url.endswith("/serving/paging/")
    page.touchscreen.tap(200, 780)
    assert not tip.is_visible()
    term.tap()
    assert tip.is_visible()
    term.tap()
    page.wait_for_url("**/reference/glossary/#block-table")
    context.close()


def test_listeners_serve_pages_that_the_theme_swaps_in(page: Page, built: Any, address: str) -> None:
    page.goto(f"{address}basics/cache/")
    page.locator(".md-footer__link--next").click()
    page.wait_for_url("**/serving/paging/")
    number(page).hover()
    assert page.locator("#hb-tip").is_visible()
    assert page.locator('link[rel="alternate"][type="text/markdown"]').get_attribute("href", timeout=2000) in (
        "../paging.md",
        f"{address}serving/paging.md",
    )


def test_the_copy_button_hands_over_the_markdown(browser: Browser, built: Any, address: str) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{address}serving/paging/")
    page.locator(".hb-copy").click()
    page.locator(".hb-copy", has_text="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.splitlines() == (built.out / "serving" / "paging.md").read_text(encoding="utf-8").splitlines()
    context.close()


def test_a_page_is_whole_without_a_script(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}serving/paging/")
    assert page.locator("hb-cardboard svg").is_visible()
    assert page.locator("math").count() == 2
    assert number(page).get_attribute("title")
    assert not page.locator(".hb-copy").is_visible()
    page.get_by_role("link", name="Markdown", exact=True).click()
    assert page.url.endswith("/serving/paging.md")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("url", PAGES)
def test_a_page_is_quiet_accessible_and_fits(browser: Browser, address: str, url: str, scheme: Any) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    troubles = watched(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address + url, wait_until="networkidle")
    assert [a for a in asked if not a.startswith((address, "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == scheme
    found = Axe().run(page).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")] == []
    page.set_viewport_size({"width": 1280, "height": 800})
    page.wait_for_function("document.documentElement.scrollWidth <= 1280")  # the side columns slide into place
    assert troubles == []
    context.close()


BROKEN = """(width) => {
    const item = [...document.querySelectorAll(".md-content li")].find((e) => e.textContent.includes("--seed"));
    // A cell beside a long one is pressed as far as its words allow.
    item.dataset.code ??= item.querySelector("code").parentElement.innerHTML;
    item.innerHTML = `<table><tr><td>${item.dataset.code}</td><td>${"of words ".repeat(40)}</td></tr></table>`;
    item.style.width = `${width}px`;
    const broken = [];
    for (const code of item.querySelectorAll("code")) {
        const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
        const range = document.createRange();
        for (let node = walker.nextNode(), before = null; node; node = walker.nextNode()) {
            for (let i = 0; i < node.length; i += 1) {
                range.setStart(node, i);
                range.setEnd(node, i + 1);
                const here = /[^ /]/.test(node.data[i]) ? range.getBoundingClientRect().top : null;
                if (before !== null && here !== null && here > before + 3) broken.push(node.data);
                before = here;
            }
        }
    }
    return broken;
}"""


def test_words_of_code_do_not_break_and_the_copy_button_lies_beside_the_code(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{address}serving/paging/")
    for width in range(170, 330, 4):
        assert page.evaluate(BROKEN, width) == [], width
    page.locator(".md-code__nav").first.wait_for()
    apart = page.evaluate(
        """() => {
            const button = document.querySelector(".md-code__nav");
            const code = button.closest("pre").querySelector("code");
            return button.getBoundingClientRect().left - code.getBoundingClientRect().right;
        }"""
    )
    assert apart >= 0


def test_every_formula_of_the_book_is_whole(page: Page) -> None:
    """A box that scrolls sideways clips above and below: exponents in a numerator stand out of their line."""
    formulas = [token.text for p in load(ROOT).pages for token in p.tokens if token.kind == "math_block"]
    formulas.append(r"\frac{e^{x_i^{2^k}}}{\sum_j e^{x_j / T}}")
    assert len(formulas) > 10
    style = (ROOT / "handbook/assets/css/book.css").read_text(encoding="utf-8")
    boxes = "".join(f'<div class="hb-math">{to_mathml(text, block=True)}</div>' for text in formulas)
    page.set_content(f'<style>{style}</style><main class="md-typeset">{boxes}</main>')
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        clipped = page.evaluate(
            """() => [...document.querySelectorAll(".hb-math")].filter((box) => {
                const { top, bottom } = box.getBoundingClientRect();
                const parts = [...box.querySelectorAll("math *")].map((e) => e.getBoundingClientRect());
                return box.scrollHeight > box.clientHeight || parts.some((r) => r.top < top || r.bottom > bottom);
            }).map((box) => box.querySelector("math").getAttribute("alttext"))"""
        )
        assert clipped == []


def test_paper_shows_the_text_alone(page: Page, address: str) -> None:
    page.goto(f"{address}serving/paging/")
    page.emulate_media(media="print")
    for hidden in (".md-header", ".md-sidebar--primary", ".md-footer", ".hb-actions", ".headerlink"):
        assert not page.locator(hidden).first.is_visible()
    assert page.locator("h1").is_visible()
    assert page.locator("hb-cardboard svg").is_visible()
