"""Every figure has a notebook: it runs on the desk, and names our package and no stranger's."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from minillm import __version__
from visualizers import registry
from visualizers.site.wasm import models_of

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
def test_a_notebook_is_short_has_the_desk_and_fetches_the_models_that_it_runs(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 110
    assert "from visualizers.desk.app import show" in text
    models = {"tiny"} | ({"tiny-draft"} if re.search(r'speculate="(draft|tree)"', text) else set())
    assert set(models_of(path)) == models


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_imports_no_torch(path: Path) -> None:
    """The browser's Python has none, and elsewhere it is imported where it is chosen: it takes seconds."""
    names = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    code = f"import sys; [__import__(name) for name in {sorted(filter(None, names))!r}]; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_as_a_script(path: Path) -> None:
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
