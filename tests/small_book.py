"""A book of three pages with every notation in it, figures made of cardboard, and a catalogue of two names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from visualizers.site.values import Entry, Function, Namespace

ROOT = Path(__file__).resolve().parents[1]

HOME = """\
---
title: A small book
description: Three pages for the tests.
updated: 2026-11-29
---

```figure
blocks
```

```begin
```

Start with [the cache](basics/cache.md#the-problem). Agents read [llms.txt](llms.txt).

```map
```
"""

CACHE = """\
---
title: The cache
description: What is kept, and how many bytes that takes.
ids: ["1.6"]
updated: 2026-11-28
depends_on: []
sources: []
---

A token takes [128 KiB]{= tiny.kv_bytes_per_token("bf16")} of "memory".

## The problem

Text.

## The mechanism

$$a_1 = \\lfloor b / 2 \\rfloor$$

## What it costs

Text.

## When not to use it

Text.

## What it depends on

Nothing.

## Try it

Text.
"""

PAGING = """\
---
title: Paging & sharing
description: Memory in blocks, "shared" where it can be.
ids: ["5.4", "5.5"]
updated: 2026-11-29
depends_on: [cache]
sources: [paper, sheet]
notebook: blocks
---

A block table lists each block. A block holds 16 tokens, [2 MiB]{= 16 * tiny.kv_bytes_per_token("bf16")} of them.

## The problem

The block is lost, up to [38.2%]{@ paper} of it, or [64 GB]{~}. See [the cache](../basics/cache.md) and
[its costs](../basics/cache.md#what-it-costs), or [this](#a-code-of-its-own).

| Size | Bytes |
|---|---|
| 16 | [2 MiB]{= 16 * tiny.kv_bytes_per_token("bf16")} |

## The mechanism

Inline $x_1 * y^2 < z$ and `code_with * stars`. The slot is

$$\\text{slot}(p) = \\text{table}[\\lfloor p / B \\rfloor] \\cdot B$$

```figure
blocks
size: 32
```

### A `code` of its own

```python title="a/b.py"
x = "[24 GB]{= nope}"  # not a mark
```

!!! note "A note"

    A block of a note, where it is [3 GB/s]{@ sheet, paper}.

=== "First tab"

    One.

=== "Second tab"

    Two.

## What it costs

[3.35 TB/s]{= fast.memory_bandwidth}, and half of [10]{= 2 * 5}.

## When not to use it

- Never *ever*.

## What it depends on

The [cache](../basics/cache.md).

## Try it

1. Try `--min-p 0.1, --seed 7` in `handbook/assets` or `llama-3-8b`.
"""

BIBLIOGRAPHY = """\
paper:
  title: A Paper <about> Blocks
  authors: A. One, B. Two, C. Three
  year: 2023
  publisher: SOSP 2023
  url: https://example.org/paper?a=1&b=2
  checked: 2026-11-01
  kind: paper
  values: ["38.2%"]
sheet:
  title: A Data Sheet
  authors: Maker
  year: 2024
  publisher: Maker's site
  url: https://example.org/sheet
  checked: 2026-11-02
  kind: datasheet
  values: ["3 GB/s"]
"""

GLOSSARY = """\
- term: block
  aliases: [blocks, KV block]
  definition: A fixed number of "slots" of memory.
  page: paging
- term: block table
  definition: The list of block numbers of a sequence.
  page: paging
"""


class CardboardFigures:
    """Figures whose HTML is hard on Markdown: blank lines, signs, capitals in names of attributes."""

    def names(self) -> tuple[str, ...]:
        return ("blocks",)

    def html(self, name: str, state: Mapping[str, str], base_url: str) -> str:
        if name != "blocks":
            raise LookupError(f"there is no visualizer {name!r}: choose from blocks")
        size = self._size(state)
        return (
            f'<hb-cardboard id="{name}" data-payload="{base_url}figures/{name}.json"><figure>\n'
            f'<svg viewBox="0 0 {size} 10"><clipPath id="c_1"/><text>a_b * c_ ` [x](y) {size}</text></svg>\n\n'
            f"<p>It holds <b>{size * 4}</b> bytes.</p>\n<figcaption>Blocks</figcaption></figure></hb-cardboard>"
        )

    def inputs(self, name: str) -> tuple[str, ...]:
        return ("size",)

    def refusal(self, name: str, state: Mapping[str, str]) -> str:
        if name != "blocks":
            return f"there is no visualizer {name!r}: choose from blocks"
        unknown = set(state) - {"size"}
        return f"blocks has no input {unknown.pop()!r}: it takes size" if unknown else ""

    def markdown(self, name: str, state: Mapping[str, str], page_url: str) -> str:
        size = self._size(state)
        return f"### Figure: Blocks\n\nIt holds {size * 4} bytes.\n\n[The figure]({page_url}?size={size}#{name})\n"

    def payload(self, name: str) -> Mapping[str, Any]:
        return {"name": name, "values": [64]}

    def about(self, name: str, state: Mapping[str, str]) -> tuple[str, str, str]:
        return name, "Blocks", "How many bytes they hold."

    def meanings(self, name: str) -> Mapping[str, str]:
        return {"size": "Block size (tokens)"}

    def record(self, name: str, state: Mapping[str, object]) -> Mapping[str, Any]:
        return {"name": name, "inputs": dict(state), "held": self._size(state) * 4}  # type: ignore[arg-type]

    def grid(self, name: str) -> Mapping[str, Any]:
        return {"name": name, "columns": ["size", "held"], "rows": [[16, 64]]}

    def values(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        return {"held": 64}, {"held": "KiB"}

    @staticmethod
    def _size(state: Mapping[str, str]) -> int:
        unknown = set(state) - {"size"}
        if unknown:
            raise ValueError(f"blocks has no input {unknown.pop()!r}: it takes size")
        return int(state.get("size", 16))


NAMES: Namespace = {
    "tiny": Entry("tiny", SimpleNamespace(kv_bytes_per_token=lambda dtype: 131072), {}),
    "fast": Entry("fast", SimpleNamespace(memory_bandwidth=3.35e12), {"memory_bandwidth": {"byte": 1, "s": -1}}),
    "twice": Function("twice", lambda x: 2 * x),
}


def write_book(root: Path) -> Path:
    """The small book below ``root``, with the real configuration but for the navigation."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = [
        "index.md",
        {"Basics": ["basics/cache.md"]},
        {"Serving": ["serving/paging.md"]},
        {"Reference": ["reference/map.md", "reference/glossary.md", "reference/sources.md"]},
    ]
    small = re.sub(r"^nav:\n(?:[ ].*\n)+", yaml.safe_dump({"nav": nav}), config, flags=re.MULTILINE)
    files = {
        "mkdocs.yml": small,
        "pyproject.toml": '[project]\nversion = "0.1.0"\n',
        "handbook/index.md": HOME,
        "handbook/basics/cache.md": CACHE,
        "handbook/serving/paging.md": PAGING,
        "handbook/bibliography.yml": BIBLIOGRAPHY,
        "handbook/glossary.yml": GLOSSARY,
        "notebooks/blocks.py": '# /// script\n# dependencies = ["inference-handbook==0.1.0"]\n# ///\n',
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    assets = ROOT / "handbook" / "assets"
    for file in sorted(assets.rglob("*")):
        if file.is_file():
            target = root / "handbook" / "assets" / file.relative_to(assets)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return root


class Article(HTMLParser):
    """What a page says, generator or theme apart: headings with anchors, links, figures, the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.headings: list[tuple[str, str, str]] = []
        self.links: list[tuple[str, str]] = []
        self.figures: list[str] = []
        self.ids: set[str] = set()
        self.targets: list[str] = []  # every href and src of the whole page
        self.text = ""
        self._inside = 0
        self._heading: tuple[str, str] | None = None
        self._link: str | None = None
        self._piece = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = {name: value or "" for name, value in attrs}
        self.targets += [fields[name] for name in ("href", "src") if name in fields]
        if "id" in fields:
            self.ids.add(fields["id"])
        if tag == "article":
            self._inside = 1
        if not self._inside:
            return
        if tag in ("h1", "h2", "h3", "h4"):
            self._heading, self._piece = (tag, fields.get("id", "")), ""
        elif tag == "a" and "headerlink" not in fields.get("class", ""):
            self._piece = self._piece if self._heading else ""
            self._link = fields.get("href")  # an anchor without an address is no link
        elif tag in ("hb-figure", "hb-cardboard"):
            self.figures.append(f"{fields['id']} {fields['data-payload']}")

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._inside = 0
        elif tag == "a" and self._link is not None:
            self.links.append((self._link, self._piece.strip()))
            self._link = None
        elif self._heading and tag == self._heading[0]:
            self.headings.append((*self._heading, self._piece.replace("¶", "").strip()))
            self._heading = None

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._piece += data
            self.text += data
