"""The small book, built once for all tests that only look at it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_book import NAMES, CardboardFigures, write_book

from visualizers.site.build import Builder, Content


class Built:
    """A built book: where its sources lie, where the site, and what was composed."""

    def __init__(self, root: Path, out: Path, content: Content) -> None:
        self.root, self.out, self.content = root, out, content

    def html(self, url: str) -> str:
        return (self.out / url / "index.html").read_text(encoding="utf-8")


def builder(root: Path, **options: object) -> Builder:
    return Builder(root, CardboardFigures(), NAMES, say=lambda _: None, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    root = write_book(tmp_path_factory.mktemp("book"))
    out = tmp_path_factory.mktemp("site") / "out"
    return Built(root, out, builder(root).build(out))
