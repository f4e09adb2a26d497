"""Pages with live notebooks in a real Chromium: the fixtures and the acts that tests of the live level share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_site import exported, served, write_project, write_site
from playwright.sync_api import Browser, FrameLocator, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from visualizers.site.files import place_tree
from visualizers.site.serve import application
from visualizers.site.static import Site

NAMES = ("kv-cache-size", "live-run", "raises")
STARTED_MS = 240_000  # a limit for a busy machine; how long it takes is measured elsewhere
CHANGED_MS = 60_000


class Troubles(list[str]):
    """Requests that leave the site, answers that fail, and errors on the console."""

    def __init__(self, page: Page, base: str) -> None:
        super().__init__()
        inside = (base, "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(inside) else self.append(f"third party: {r.url}"))
        page.on("response", lambda r: self.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
        page.on("console", lambda m: self.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: self.append(str(e)))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, object]]:
    """The local server with two notebooks and one that raises, below a path."""
    root = write_project(tmp_path_factory.mktemp("project"), "kv_cache_size", "live_run")
    site = write_site(tmp_path_factory.mktemp("site"), *NAMES)
    app = application(site, root, root_path="/x/")
    with served(app) as address:
        yield f"{address}x/", app


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same page as plain files, with the notebooks exported for the browser."""
    site = write_site(tmp_path_factory.mktemp("published"), *NAMES)
    place_tree(exported().folder, site / "notebooks")
    with served(plain(site)) as address:
        yield address


def plain(site: Path) -> Starlette:
    """A host that serves files and nothing else."""
    return Starlette(routes=[Mount("/", app=Site(site))])


def ask_live(page: Page, name: str, **inputs: object) -> None:
    """What a figure's script sends when "Run live" is pressed."""
    page.locator(f"hb-figure[name={name}]").evaluate(
        "(e, detail) => e.dispatchEvent(new CustomEvent('hb-live', {bubbles: true, detail}))",
        {"name": name, "inputs": inputs},
    )


def run_live(page: Page, address: str, name: str, **inputs: object) -> FrameLocator:
    """Asks for a figure's notebook and waits until it answers."""
    page.goto(address)
    ask_live(page, name, **inputs)
    figure = page.locator(f"hb-figure[name={name}]")
    expect(figure.locator("iframe[data-ready]")).to_be_attached(timeout=STARTED_MS)
    return figure.frame_locator("iframe")
