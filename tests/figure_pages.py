"""Pages with one figure, and what tests do on them."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

ASSETS = Path(__file__).parents[1] / "handbook/assets"
FIGURE = "hb-figure[name=example]"
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A page</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="assets/icon.svg">
<link rel="stylesheet" href="assets/css/palette.css"><link rel="stylesheet" href="assets/css/figure.css">
<style>html {{ font-size: 125% }} body {{ background: var(--hb-page); color: var(--hb-text); margin: 0 }}
main {{ max-width: 700px; margin: 0 auto; padding: 0 16px }} .far {{ height: 3000px }}</style>
<script type="module" src="assets/js/figure.js"></script></head><body><main>{}</main></body></html>"""


def opened(page: Page, url: str, figure: str = FIGURE) -> None:
    """Opens the page and waits until its figures in view have woken."""
    page.goto(url)
    page.locator(f"{figure}[data-ready]").first.wait_for()


def sentence(page: Page, figure: str = FIGURE) -> str:
    return page.locator(f"{figure} [data-sentence]").first.inner_text()


def settle(page: Page) -> None:
    """Waits until what was moved is painted."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.wait_for_timeout(50)
