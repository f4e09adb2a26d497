"""marimo's front end as our pages use it: what it loads before it shows a notebook, and our script in its head."""

from __future__ import annotations

import re
from pathlib import Path

import marimo

FOLDER = Path(marimo.__file__).parent / "_static"
PAGE = "run-page"  # the part of marimo's front end that shows a notebook without its editor


def head() -> str:
    """The script that tells the page around a notebook how far its kernel is; to stand before marimo's own."""
    return f"<script>{Path(__file__).with_name('live_head.js').read_text(encoding='utf-8')}</script>"


def files(folder: Path = FOLDER) -> list[str]:
    """The scripts and styles, below ``folder`` (marimo's own static files), that a page loads to show a notebook.

    The page names most of them; the rest its first script loads, by a list that marimo's bundler wrote into it.
    """
    page = (folder / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|href)="\./(assets/[^"]+\.(?:js|css))"', page)
    entry = next((name for name in named if re.match(r"assets/index-[^/]*\.js$", name)), "")
    found = dict.fromkeys([*named, *(_loaded_by(folder / entry) if entry else [])])
    return [name for name in found if (folder / name).is_file()]


def _loaded_by(script: Path) -> list[str]:
    """What ``script`` loads with :data:`PAGE`; nothing where the list is not written as we know it."""
    text = script.read_text(encoding="utf-8")
    every = re.search(r"m\.f\|\|\(m\.f=\[([^\]]*)\]", text)
    chosen = re.search(rf"import\(`\./{PAGE}-[^`]*`\)[^\[\]]*?__vite__mapDeps\(\[([\d,]*)\]\)", text)
    if not every or not chosen:
        return []
    names = re.findall(r'"\./([^"]+)"', every[1])
    return [f"assets/{names[int(index)]}" for index in chosen[1].split(",")]
