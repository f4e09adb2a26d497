"""Code that a page quotes with a path is what the file says: a quote of code that changed misleads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r'^```python title="(?P<path>[^"]+)"\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL)
QUOTES = [
    pytest.param(match["path"], match["code"], id=f"{page.stem}-{match['path']}-{number}")
    for page in sorted((ROOT / "handbook").rglob("*.md"))
    for number, match in enumerate(FENCE.finditer(page.read_text(encoding="utf-8")))
]


def test_pages_quote_the_engine() -> None:
    assert QUOTES, "no page quotes code with a path: the pattern above no longer fits the pages"


@pytest.mark.parametrize(("path", "code"), QUOTES)
def test_a_quote_is_in_its_file(path: str, code: str) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    assert code in source, f"{path} does not contain, line for line:\n{code}"
