"""What a notebook needs beside the engine: the book's colours, the desk in them, and the model where it runs.

The same code runs on a local kernel and in the browser's Python; only :func:`fetch_model` tells them apart.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import marimo as mo

from minillm import hub
from visualizers import palette

IN_BROWSER = sys.platform == "emscripten"


def style() -> Any:
    """The colours of the book in both themes; to be shown once, by a notebook's first cell."""
    variables = {
        theme: "".join(f"--hb-{name}:{value};" for name, value in colours.items())
        for theme, colours in (("light", palette.LIGHT), ("dark", palette.DARK))
    }
    return mo.Html(
        f"<style>:root{{{variables['light']}}} :is(.dark,.dark-theme){{{variables['dark']}}}"
        # marimo pales what is being computed anew, which would flicker in a cell that is run again.
        " :is(.marimo-output-stale,.marimo-output-loading){opacity:1!important;filter:none!important}</style>"
    )


def desk(shown: Any, note: str = "") -> Any:
    """What :func:`visualizers.desk.app.show` gives, in the colours of the book; ``note`` is said below it."""
    return mo.vstack([style(), shown, *([mo.md(note)] if note else [])])


async def fetch_model(name: str) -> str:
    """Brings a bundled model into the browser, once, beside the published notebooks; returns its name.

    On a local kernel the model is there already.
    """
    folder = hub.BUNDLED / name
    if not IN_BROWSER or folder.exists():
        return name
    from pyodide.http import pyfetch

    base = str(mo.notebook_location()).rstrip("/")
    files = json.loads(await (await pyfetch(f"{base}/live.json")).string())["models"][name]
    for path, _ in files:
        response = await pyfetch(f"{base}/{path}")
        target = hub.BUNDLED / path.removeprefix("models/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(await response.bytes())
    return name
