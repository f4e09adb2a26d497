"""The set-up that ``make serve`` and ``make test`` begin with."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, at work in an empty folder."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "tools" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    place = tmp_path / "here" / ".venv"
    for name, value in {"VENV": place, "PYTHON": place / "bin" / "python"}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_an_environment_of_another_folder_is_made_anew(bootstrap: ModuleType, tmp_path: Path) -> None:
    venv.create(tmp_path / "there" / ".venv", with_pip=True, symlinks=True)
    (tmp_path / "there").rename(tmp_path / "here")
    assert not bootstrap.is_of_here()
    bootstrap.make_venv()
    assert bootstrap.is_of_here()
    command = [bootstrap.VENV / "bin" / "pip", "--version"]
    assert str(bootstrap.VENV) in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_an_environment_that_works_is_kept_and_one_half_made_is_not(bootstrap: ModuleType) -> None:
    venv.create(bootstrap.VENV, with_pip=False, symlinks=True)
    (bootstrap.VENV / "mark").touch()
    bootstrap.make_venv()  # without pip it is half made
    assert not (bootstrap.VENV / "mark").exists()
    (bootstrap.VENV / "mark").touch()
    bootstrap.make_venv()
    assert (bootstrap.VENV / "mark").exists()


def test_a_link_to_an_environment_is_as_good(bootstrap: ModuleType, tmp_path: Path) -> None:
    venv.create(tmp_path / "shared", with_pip=True, symlinks=True)
    bootstrap.VENV.parent.mkdir()
    bootstrap.VENV.symlink_to(tmp_path / "shared")
    assert bootstrap.is_of_here()


def test_another_python_or_pin_is_another_environment(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    digests = {bootstrap.digest()}
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    assert bootstrap.digest() in digests
    monkeypatch.setattr(sys, "version", "3.99")
    digests.add(bootstrap.digest())
    (tmp_path / "constraints.txt").write_text("torch==0\n")
    digests.add(bootstrap.digest())
    assert len(digests) == 3
