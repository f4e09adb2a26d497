"""Every figure has a notebook: it runs, names our package and no stranger's, and takes its state from the address."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from example_figure import VISUALIZER as EXAMPLE

from minillm import __version__
from visualizers import notebook, registry
from visualizers.contract import Number, Visualizer

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
STRANGERS = {"minillm", "visualizers"}


def test_each_figure_has_its_notebook_and_each_notebook_its_figure() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(registry.stems())


def _metadata(path: Path) -> dict[str, Any]:
    block = re.search(r"^# /// script\n(.*?)^# ///$", path.read_text(), re.DOTALL | re.MULTILINE)
    assert block, f"{path.name} has no script metadata"
    return tomllib.loads("".join(line.removeprefix("#")[1:] + "\n" for line in block[1].splitlines()))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_metadata_name_our_package_and_no_stranger(path: Path) -> None:
    names = {re.split(r"[=<>\[ @]", requirement)[0]: requirement for requirement in _metadata(path)["dependencies"]}
    assert names["inference-handbook"] == f"inference-handbook=={__version__}"
    assert names["marimo"] == "marimo==0.25.2"
    assert not STRANGERS & set(names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_short_and_fetches_the_model_that_it_runs(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 120
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module}
    assert imported & {f"visualizers.figures.{path.stem}", "visualizers.desk.app"}
    model = getattr(sys.modules[registry.get(path.stem).compute.__module__], "MODEL", "")
    if model == "tiny":
        assert 'await notebook.fetch_model("tiny")' in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_as_a_script(path: Path) -> None:
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def _controls(monkeypatch: pytest.MonkeyPatch, visualizer: Visualizer, asked: dict[str, str]) -> Any:
    class Address:
        def to_dict(self) -> dict[str, str]:
            return asked

    monkeypatch.setattr(notebook.mo, "query_params", Address)
    return notebook.controls(visualizer)


def test_controls_stand_at_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for visualizer in (EXAMPLE, *registry.all()):
        assert notebook.read(visualizer, _controls(monkeypatch, visualizer, {})) == visualizer.defaults()


def test_controls_stand_where_the_address_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for visualizer in (EXAMPLE, *registry.all()):
        for end in (0, 1):
            asked = {i.name: i.ends()[end] for i in visualizer.inputs if not (isinstance(i, Number) and i.stops)}
            found = notebook.read(visualizer, _controls(monkeypatch, visualizer, {k: str(v) for k, v in asked.items()}))
            assert {name: found[name] for name in asked} == asked, visualizer.name


def test_what_the_address_says_wrongly_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {i.name: "\0no value" for i in EXAMPLE.inputs} | {"stranger": "1"}
    found = notebook.read(EXAMPLE, _controls(monkeypatch, EXAMPLE, asked))
    numbers = {i.name: i.default for i in EXAMPLE.inputs if isinstance(i, Number)}
    assert {name: found[name] for name in numbers} == numbers


@pytest.mark.parametrize(("asked", "width"), [({}, 0), ({"framed": "640"}, 640), ({"framed": "wide"}, 0)])
def test_the_frame_says_its_width(monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], width: int) -> None:
    class Address:
        def to_dict(self) -> dict[str, str]:
            return asked

    monkeypatch.setattr(notebook.mo, "query_params", Address)
    assert notebook.framed() == width


def test_a_chart_carries_its_data_and_follows_the_theme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "framed", lambda: 0)
    data = EXAMPLE.compute(EXAMPLE.defaults())
    spec = notebook.chart(EXAMPLE, data).spec
    assert set(spec["datasets"]) == set(data.rows)
    assert spec["usermeta"]["embedOptions"]["renderer"] == "svg"
    assert "var(--hb-" in str(spec)


def test_text_of_a_model_is_no_markup() -> None:
    assert "&lt;script&gt;" in notebook.quoted("<script>").text
    assert "&lt;b&gt;" in notebook.numbers({"<b>": "<b>"}).text


def test_every_backend_that_is_offered_can_be_made() -> None:
    for backend, device in notebook.backends().values():
        assert backend in ("numpy", "torch")
        assert device in ("cpu", "cuda")
    assert notebook.memory()["memory of the process"] > 1 << 20
