"""What a notebook needs beside the engine: controls from a visualizer's contract, its chart, table and sentence.

The same code runs on a local kernel and in the browser's Python; only :func:`fetch_model` tells them apart.
Values come from the page's address (``?context=8192``), so a notebook opens in the state that its figure had.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import marimo as mo

from minillm import hub
from visualizers import formats, palette
from visualizers.contract import Choice, Data, Input, InputError, Number, Visualizer
from visualizers.levels.cells import plain_data, plain_table
from visualizers.levels.controls import nearest, stops
from visualizers.levels.tables import markdown_table

if TYPE_CHECKING:
    from visualizers.levels import charts

NUMBERS_ABREAST = 5  # more stand in two rows of about as many
IN_BROWSER = sys.platform == "emscripten"


def style() -> Any:
    """The colours of the book in both themes; to be shown once, by a notebook's first cell."""
    variables = {
        theme: "".join(f"--hb-{name}:{value};" for name, value in colours.items())
        for theme, colours in (("light", palette.LIGHT), ("dark", palette.DARK))
    }
    return mo.Html(
        f"<style>:root{{{variables['light']}}} :is(.dark,.dark-theme){{{variables['dark']}}}"
        # marimo pales what is being computed anew, which would flicker in a run that redraws as it goes.
        " :is(.marimo-output-stale,.marimo-output-loading){opacity:1!important;filter:none!important}"
        # A slider's bubble repeats the value beside it, and covers the label above.
        " :root:has(marimo-slider:is(:hover,:active)) [role=tooltip]{display:none}</style>"
    )


def desk(shown: Any) -> Any:
    """What :func:`visualizers.desk.app.show` gives, in the colours of the book."""
    return mo.vstack([style(), shown])


def framed() -> int:
    """The width in pixels that a page gives the notebook in a frame, whose reader has asked for a run; else 0."""
    width = str(mo.query_params().to_dict().get("framed", ""))
    return int(width) if width.isdecimal() else 0


def controls(visualizer: Visualizer, *names: str, end: float = math.inf) -> Any:
    """A marimo dictionary with a control for each input (or for those of ``names``), standing where the address says.

    A value there that the input does not take is left out. Sliders go no further than ``end``.
    """
    asked = mo.query_params().to_dict()
    chosen = [i for i in visualizer.inputs if not names or i.name in names]
    return mo.ui.dictionary({i.name: _control(i, _asked(i, asked), end) for i in chosen})


def asked(visualizer: Visualizer, name: str) -> Any:
    """The value of an input that the address gives, without one its default."""
    given = next(i for i in visualizer.inputs if i.name == name)
    return _asked(given, mo.query_params().to_dict())


def read(visualizer: Visualizer, ui: Any) -> dict[str, Any]:
    """The values of the controls. Where one is not taken (an empty prompt), says so and stops the cells below."""
    try:
        return visualizer.parse(ui.value)
    except InputError as error:
        said = str(error)
        for given in visualizer.inputs:
            said = said.replace(f"--{given.name} ", f"{given.label} ")  # what a command calls its option
        mo.stop(True, mo.callout(said, kind="warn"))
        raise  # not reached: stop raises


def show(visualizer: Visualizer, data: Data) -> Any:
    """Chart, sentence and table of ``data``, one below the other."""
    return mo.vstack([chart(visualizer, data), sentence(visualizer, data), table(visualizer, data)], gap=1)


class Chart:
    """A Vega-Lite specification that marimo draws as SVG, whose colours then follow the page's theme."""

    def __init__(self, spec: charts.Spec) -> None:
        self.spec = spec

    def _mime_(self) -> tuple[str, str]:
        return "application/vnd.vegalite.v6+json", json.dumps(self.spec)


def chart(visualizer: Visualizer, data: Data) -> Chart:
    """The figure. A single view fills its container; a stack of views, which cannot, takes the frame's width."""
    # Here, since a notebook that draws with the desk alone need not wait for Altair: 0.6 s in the browser's Python.
    from visualizers.levels import charts

    plain = plain_data(data, visualizer.units, visualizer.name)
    spec = charts.spec(visualizer.figure(plain))
    if "autosize" not in spec:
        width = min(framed() or charts.WIDE, charts.WIDE)
        spec = charts.sized(spec, plain.rows, width, charts.room(spec, plain.rows))
    spec["datasets"] = dict(plain.rows)
    spec["usermeta"] = {"embedOptions": {"renderer": "svg", "actions": False}}
    return Chart(spec)


def sentence(visualizer: Visualizer, data: Data) -> Any:
    """What to see in the figure, with its numbers."""
    return mo.md(formats.fill(visualizer.sentence(data), data.values, wrap=lambda value: f"**{value}**"))


def table(visualizer: Visualizer, data: Data) -> Any:
    """The values behind the figure, folded."""
    found = plain_table(visualizer.table(data), visualizer.name)
    listed = mo.md(markdown_table(found.headings(), found.texts(), found.numeric()))
    return mo.accordion({f"Table: {visualizer.title}": listed})


def quoted(text: str) -> Any:
    """What a model wrote, as it wrote it."""
    return mo.Html(f'<blockquote style="white-space:pre-wrap">{escape(text)}</blockquote>')


def code(*functions: Callable[..., Any]) -> Any:
    """The source of the functions, folded."""
    shown = {f"{f.__module__}.{f.__qualname__}": mo.md(f"```python\n{inspect.getsource(f)}\n```") for f in functions}
    return mo.accordion(shown, multiple=True)


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


def numbers(named: Mapping[str, str]) -> Any:
    """A few results by name, side by side, that do not move while they change."""
    columns = len(named) if len(named) <= NUMBERS_ABREAST else -(-len(named) // 2)
    least = f"max(7em,calc((100% - {columns - 1}em)/{columns} - 1px))"
    cells = "".join(
        f'<div><div style="font-size:.8em;opacity:.8">{escape(name)}</div>'
        f'<div style="font-size:1.3em;font-weight:600;font-variant-numeric:tabular-nums">{escape(value)}</div></div>'
        for name, value in named.items()
    )
    grid = f"display:grid;gap:.5em 1em;grid-template-columns:repeat(auto-fit,minmax({least},1fr))"
    return mo.Html(f'<div style="{grid};margin:.5em 0">{cells}</div>')


def hidden(element: Any) -> Any:
    """``element`` at work but not in sight: a timer needs no room."""
    return mo.Html(f'<div style="display:none">{mo.as_html(element).text}</div>')


def backends() -> dict[str, tuple[str, str]]:
    """What can run the engine here: the name that a reader chooses by, to backend and device."""
    found = {"NumPy": ("numpy", "cpu")}
    if importlib.util.find_spec("torch"):
        found["PyTorch, CPU"] = ("torch", "cpu")
        # Importing torch takes seconds: only where there is something to find.
        if shutil.which("nvidia-smi"):
            import torch

            if torch.cuda.is_available():
                found[f"PyTorch, {torch.cuda.get_device_name()}"] = ("torch", "cuda")
    return found


def memory() -> dict[str, int]:
    """Bytes that this process holds, and that its tensors hold on a GPU; what is not known here is left out."""
    found = {}
    if not IN_BROWSER:
        import psutil  # type: ignore[import-untyped]

        found["memory of the process"] = psutil.Process().memory_info().rss
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["memory on the GPU"] = torch.cuda.memory_allocated()
    return found


def _asked(given: Input, asked: Mapping[str, Any]) -> Any:
    try:
        return given.parse(asked[given.name]) if given.name in asked else given.default
    except InputError:
        return given.default


def _control(given: Input, value: Any, end: float = math.inf) -> Any:
    if isinstance(given, Choice):
        options = {text: key for key, text in given.options.items()}
        return mo.ui.dropdown(options, value=given.options[value], label=given.label, allow_select_none=False)
    label = formats.heading(given.label, given.unit)
    if isinstance(given, Number):
        positions = [v for v in stops(given) if v <= end]
        value = min(value, positions[-1])
        if value not in positions:
            positions = sorted([*positions, value]) if given.instant != "grid" else positions
        start = positions[nearest(tuple(positions), value)]
        return mo.ui.slider(steps=positions, value=start, label=label, show_value=True, debounce=False)
    # Without marimo's own limit, which cuts a text that is too long and says nothing: `read` tells of it.
    return mo.ui.text(value=value, label=label, full_width=True)
