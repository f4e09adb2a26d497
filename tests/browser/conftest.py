"""A site of a few static pages with the figure of ``example_figure``, for the tests of the browser side."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser_page import served, watched
from example_figure import VISUALIZER
from figure_pages import ASSETS, PAGE
from playwright.sync_api import Browser, Page

from visualizers import palette
from visualizers.levels.instant import payload, vega_bundle
from visualizers.levels.page import figure_html
from visualizers.levels.snapshot import Snapshot


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return Snapshot(VISUALIZER)


@pytest.fixture(scope="module")
def folder(snapshot: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of a few static pages."""
    out = tmp_path_factory.mktemp("pages")
    shutil.copytree(ASSETS, out / "assets")
    (out / "assets/css/palette.css").write_text(palette.css())
    (out / "assets/js/vega.js").write_text(vega_bundle())
    (out / "figures").mkdir()
    (out / "figures/example.json").write_text(json.dumps(payload(snapshot), separators=(",", ":")))
    one = figure_html(snapshot, {}, base_url="", repo_url="https://code.example/book")
    two = figure_html(snapshot, {"model": "large", "context": "16384"}, base_url="")
    (out / "index.html").write_text(PAGE.format(f"<p>Text.</p>{one}"))
    (out / "two.html").write_text(PAGE.format(one + two))
    rare = replace(VISUALIZER, inputs=tuple(replace(i, more=i.name != "context") for i in VISUALIZER.inputs))
    (out / "more.html").write_text(PAGE.format(figure_html(Snapshot(rare), {}, base_url="")))
    behind = payload(Snapshot(rare))
    (out / "figures/more.json").write_text(json.dumps(behind))
    (out / "more.html").write_text((out / "more.html").read_text().replace("figures/example.json", "figures/more.json"))
    (out / "far.html").write_text(PAGE.format(f'<div class="far"></div>{one}'))
    (out / "broken.html").write_text(PAGE.format(one.replace("figures/example.json", "figures/none.json")))
    return out


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    with served(folder) as url:
        yield url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose test fails when anything goes wrong on it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    found = context.new_page()
    troubles = watched(found)
    yield found
    context.close()
    assert troubles == []
