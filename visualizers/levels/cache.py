"""Keeps the computed data of a visualizer on disk, under a digest of the sources that compute them.

The sources are found, not listed: the visualizer's module and whatever it imports from this project,
directly or not, with the data files that lie beside them; and what checks a figure. The code that
draws is left out, since it runs anew each time.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from visualizers.contract import Data, Visualizer

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("minillm", "visualizers")
_DRAWING = frozenset(["visualizers.levels.charts", "visualizers.levels.links", "visualizers.palette"])
_CHECKING = tuple(f"visualizers.levels.{name}" for name in ("cache", "cells", "expressions", "snapshot"))


def default_folder() -> Path | None:
    """``.cache/figures`` of the checkout; None where the package is installed elsewhere."""
    return ROOT / ".cache" / "figures" if (ROOT / "pyproject.toml").is_file() else None


class DataCache:
    """The data of one visualizer by its inputs. ``folder`` None keeps them in memory only."""

    def __init__(self, visualizer: Visualizer, folder: Path | None) -> None:
        self._path = folder / f"{visualizer.name}.json" if folder else None
        self._digest = digest(visualizer) if folder else ""
        self._states: dict[str, Any] = {}
        self._checked = False
        self._provenance: str | None = None
        self._changed = False
        if self._path:
            self._load(self._path)

    def get(self, inputs: Mapping[str, Any]) -> Data | None:
        """The data at these inputs, or None."""
        found = self._states.get(_key(inputs))
        return None if found is None else Data(found["values"], found["rows"])

    def put(self, inputs: Mapping[str, Any], data: Data) -> None:
        """Keeps plain data for this process; :meth:`save` writes them."""
        self._states[_key(inputs)] = {"values": dict(data.values), "rows": dict(data.rows), "at": _now()}
        self._changed = True

    def recorded_at(self, inputs: Mapping[str, Any]) -> str:
        """When the data at these inputs were computed, in UTC: now for those that are not kept."""
        found = self._states.get(_key(inputs))
        return str(found["at"]) if found else _now()

    @property
    def checked(self) -> bool:
        """Whether all states of these sources have been found in order."""
        return self._checked

    @checked.setter
    def checked(self, value: bool) -> None:
        self._changed |= value != self._checked
        self._checked = value

    def provenance(self, make: Callable[[], str]) -> str:
        """What ``make`` said when the data were computed."""
        if self._provenance is None:
            self._provenance = make()
            self._changed = True
        return self._provenance

    def save(self) -> None:
        """Writes what is new, whole or not at all. A disk that refuses costs speed, not the figure."""
        if not (self._path and self._changed):
            return
        self._load(self._path)  # what another process has kept meanwhile stays
        content = {
            "digest": self._digest,
            "checked": self._checked,
            "provenance": self._provenance,
            "states": self._states,
        }
        draft = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
            draft.replace(self._path)
            self._changed = False
        except OSError as problem:
            with suppress(OSError):
                draft.unlink()
            print(f"computed figures are not kept: {problem}", file=sys.stderr)

    def _load(self, path: Path) -> None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if isinstance(content, dict) and content.get("digest") == self._digest:
            self._states = {**content["states"], **self._states}
            self._provenance = self._provenance or content["provenance"]
            self._checked |= content["checked"]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _key(inputs: Mapping[str, Any]) -> str:
    return json.dumps(inputs, sort_keys=True, ensure_ascii=False)


def digest(visualizer: Visualizer) -> str:
    """A digest of the sources and data files that compute a visualizer."""
    modules: set[str] = set()
    waiting = [visualizer.compute.__module__, *visualizer.source, *_CHECKING]
    while waiting:
        module = waiting.pop()
        if module in modules or module in _DRAWING:
            continue
        modules.add(module)
        path = _path(module)
        if path:
            waiting += _imports(path)
    found = hashlib.sha256()
    for file in sorted({file for module in modules if (path := _path(module)) for file in _files(path)}):
        found.update(str(file).encode())
        found.update(file.read_bytes())
    return found.hexdigest()


@cache
def _path(module: str) -> Path | None:
    """The file of a module of this project or of the tests; None for names that are no module.

    Looked up by its folder, since ``find_spec`` of a module imports the packages above it, with all they need.
    """
    top, *below = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or not below:
        return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None
    for folder in spec.submodule_search_locations or ():
        stem = Path(folder, *below)
        for file in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
            if file.is_file():
                return file
    return None


@cache
def _imports(path: Path) -> list[str]:
    """The modules of this project that a file imports, wherever in the file; packages on the way included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    inside = [n for n in names if n.split(".")[0] in _PACKAGES]
    return sorted({".".join(n.split(".")[: i + 1]) for n in inside for i in range(1, n.count(".") + 1)})


def _files(path: Path) -> list[Path]:
    """A module's file, and the data files of its folder and of those below that hold no code."""
    return [path, *_data_files(path.parent)]


@cache
def _data_files(folder: Path) -> list[Path]:
    found = [f for f in folder.iterdir() if f.is_file() and f.suffix != ".py"]
    for below in folder.iterdir():
        if below.is_dir() and below.name != "__pycache__" and not any(below.rglob("*.py")):
            found += [f for f in below.rglob("*") if f.is_file()]
    return found
