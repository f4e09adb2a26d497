"""Turns of phrase that made readers stop, kept out of the pages: riddles, jabs at other texts, persons for things."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "handbook").rglob("*.md"))
AVOIDED = re.compile(
    r"as one can read|\bwhoever\b|texts that (?:forget|leave)|textbooks (?:draw|say)|next section but one|"
    r"compares nothing|keeps only coincidences|spoken for|pays for losing|public calculators|\bof strangers\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_explains_instead_of_hinting(page: Path) -> None:
    found = [match.group() for match in AVOIDED.finditer(page.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.stem not in ("index", "how-to-run")], ids=lambda page: page.stem
)
def test_an_opening_has_two_numbers_at_most(page: Path) -> None:
    """Marks before the first heading; more than two numbers belong in a table."""
    text = page.read_text(encoding="utf-8").split("---\n", 2)[2]
    assert len(re.findall(r"\]\{[=@~]", text.split("\n## ")[0])) <= 2
