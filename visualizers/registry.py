"""Finds the visualizers: every module of ``visualizers/figures`` that defines ``VISUALIZER``, by its file's stem."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from functools import cache
from importlib.machinery import FileFinder
from pathlib import Path

from visualizers import figures
from visualizers.contract import Visualizer


class UnknownVisualizerError(LookupError):
    """No visualizer has this name: the message lists those there are."""

    def __str__(self) -> str:
        return str(self.args[0])


def _defines_visualizer(path: Path) -> bool:
    """Whether the module assigns ``VISUALIZER``: read, not imported, so that a look stays cheap."""
    for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == "VISUALIZER" for t in targets):
            return True
    return False


@cache
def stems() -> tuple[str, ...]:
    """The stems of all visualizers, sorted."""
    found = []
    for info in pkgutil.iter_modules(figures.__path__):
        if info.ispkg or not isinstance(info.module_finder, FileFinder):
            continue
        if _defines_visualizer(Path(info.module_finder.path) / f"{info.name}.py"):
            found.append(info.name)
    return tuple(sorted(found))


def get(name: str) -> Visualizer:
    """The visualizer called ``name`` (``block-manager``; its stem, ``block_manager``, works too)."""
    stem = name.replace("-", "_")
    if stem not in stems():
        known = ", ".join(s.replace("_", "-") for s in stems()) or "none"
        raise UnknownVisualizerError(f"there is no visualizer {name!r}: choose from {known}")
    visualizer = importlib.import_module(f"visualizers.figures.{stem}").VISUALIZER
    if not isinstance(visualizer, Visualizer) or visualizer.stem != stem:
        raise TypeError(
            f"visualizers/figures/{stem}.py: VISUALIZER must be a Visualizer named {stem.replace('_', '-')!r}"
        )
    return visualizer


def all() -> tuple[Visualizer, ...]:
    """All visualizers, sorted by name."""
    return tuple(get(stem) for stem in stems())
