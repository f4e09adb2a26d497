"""Drawings of the book: each is shown somewhere, follows the theme, and is well-formed for a page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from visualizers import palette
from visualizers.site import blocks
from visualizers.site.project import load
from visualizers.site.scan import tokens

ROOT = Path(__file__).resolve().parents[2]
HANDBOOK = ROOT / "handbook"
DRAWINGS = sorted((HANDBOOK / "assets" / "pictures").glob("*.svg"))


def test_every_drawing_is_on_a_page() -> None:
    shown = {
        blocks.picture(token, HANDBOOK).name
        for page in load(ROOT, strict=False).pages
        for token in page.tokens
        if blocks.is_picture(token)
    }
    assert shown == {file.stem for file in DRAWINGS}


@pytest.mark.parametrize("file", DRAWINGS, ids=lambda file: file.stem)
def test_a_drawing_is_labelled_and_has_the_books_colours(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).get("aria-label")  # noqa: S314 -- our own file
    assert "\n\n" not in text  # Markdown ends a block of HTML there
    used = set(re.findall(r'(?:fill|stroke)="(?!none)([^"]+)"', text))
    known = {f"var(--hb-{name})" for name in palette.LIGHT}
    assert used <= known


@pytest.mark.parametrize("body", ["nowhere\nA caption.", "roofline", ""])
def test_a_picture_block_without_drawing_or_caption_is_refused(body: str) -> None:
    (token,) = tokens(f"```picture\n{body}\n```\n")
    with pytest.raises(blocks.BlockError):
        blocks.picture(token, HANDBOOK)
