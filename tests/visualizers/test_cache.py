"""Computed data are kept under a digest of whatever computes them, whole or not at all."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from example_figure import VISUALIZER

from visualizers.contract import Visualizer
from visualizers.levels import cache
from visualizers.levels.cache import DataCache, digest
from visualizers.levels.snapshot import Snapshot


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package ``bench`` of three modules with a data file; a function that makes a visualizer of one anew."""
    root = tmp_path / "bench"
    root.mkdir()
    (root / "__init__.py").write_text("")
    (root / "figure.py").write_text("from bench.engine import run\ndef compute(inputs):\n    return run(inputs)\n")
    (root / "engine.py").write_text("def run(inputs):\n    from bench import costs\n    return costs.X\n")
    (root / "costs.py").write_text("X = 1\n")
    (root / "table.json").write_text("{}")
    (root / "assets/tiny").mkdir(parents=True)
    (root / "assets/tiny/weights.bin").write_text("0")
    (tmp_path / "apart.py").write_text("Y = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cache, "_PACKAGES", ("bench",))
    for name in ("_path", "_imports", "_data_files"):
        getattr(cache, name).cache_clear()

    def visualizer() -> Visualizer:
        for name in ("_path", "_imports", "_data_files"):
            getattr(cache, name).cache_clear()
        module: ModuleType = importlib.import_module("bench.figure")
        return dataclasses.replace(VISUALIZER, name="bench-figure", compute=module.compute)

    yield root, visualizer
    for name in [n for n in sys.modules if n.split(".")[0] == "bench"]:
        del sys.modules[name]
    for name in ("_path", "_imports", "_data_files"):
        getattr(cache, name).cache_clear()


@pytest.mark.parametrize("file", ["figure.py", "engine.py", "costs.py", "table.json", "assets/tiny/weights.bin"])
def test_a_change_of_whatever_computes_it_changes_the_digest(project, file):
    root, visualizer = project
    before = digest(visualizer())
    (root / file).write_text((root / file).read_text() + "\n")
    assert digest(visualizer()) != before


def test_a_change_elsewhere_does_not(project):
    root, visualizer = project
    before = digest(visualizer())
    (root.parent / "apart.py").write_text("Y = 2\n")
    assert digest(visualizer()) == before


def test_what_draws_is_not_among_the_sources():
    assert digest(VISUALIZER) == digest(dataclasses.replace(VISUALIZER, source=("visualizers.levels.charts",)))


def test_a_second_process_computes_nothing(tmp_path):
    first = Snapshot(VISUALIZER, DataCache(VISUALIZER, tmp_path))
    assert len(first.states) == 6

    def compute(inputs):
        assert not isinstance(inputs["context"], int), f"computed again at {inputs}"
        return VISUALIZER.compute(inputs)

    compute.__module__ = VISUALIZER.compute.__module__
    again = dataclasses.replace(VISUALIZER, compute=compute)
    snapshot = Snapshot(again, DataCache(again, tmp_path))
    assert snapshot.default.data == first.default.data
    assert snapshot.at({"model": "large", "block": 256}).data == first.at({"model": "large", "block": 256}).data
    assert len(snapshot.states) == 6  # their expressions are made anew, and were found in order before


def test_two_processes_that_compute_at_once_keep_what_both_found(tmp_path):
    one, two = (Snapshot(VISUALIZER, DataCache(VISUALIZER, tmp_path)) for _ in range(2))
    _ = one.states
    _ = two.at({"context": 3})
    two.save()
    third = DataCache(VISUALIZER, tmp_path)
    assert third.checked
    assert third.get(two.at({"context": 3}).inputs) == two.at({"context": 3}).data
    assert third.get(one.default.inputs) == one.default.data


def test_a_run_keeps_the_provenance_of_when_it_ran(tmp_path):
    said = iter(["on Monday", "on Tuesday"])
    ran = dataclasses.replace(VISUALIZER, provenance=lambda: next(said))
    first = Snapshot(ran, DataCache(ran, tmp_path))
    assert first.provenance() == "on Monday"
    first.save()
    assert Snapshot(ran, DataCache(ran, tmp_path)).provenance() == "on Monday"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"digest": "another", "states": {}}'])
def test_a_broken_or_stale_file_is_as_good_as_none(tmp_path, content):
    (tmp_path / "example.json").write_text(content)
    kept = DataCache(VISUALIZER, tmp_path)
    assert kept.get({"context": 1}) is None
    snapshot = Snapshot(VISUALIZER, kept)
    _ = snapshot.default
    snapshot.save()
    assert json.loads((tmp_path / "example.json").read_text())["digest"] == digest(VISUALIZER)


def test_a_disk_that_refuses_costs_speed_and_leaves_nothing_half_written(tmp_path, capsys):
    (tmp_path / "figures").write_text("a file where the folder should be")
    snapshot = Snapshot(VISUALIZER, DataCache(VISUALIZER, tmp_path / "figures"))
    _ = snapshot.default
    snapshot.save()
    assert "computed figures are not kept" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["figures"]
