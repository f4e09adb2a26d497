"""Keeps the figures' JSON on disk between builds: a second start then takes seconds.

A payload is made anew when a source of the figure changed, or a library that draws it, or the values at its
defaults, which a measured figure computes anew once its data are gone.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import visualizers
from visualizers import registry
from visualizers.levels.cache import digest
from visualizers.site.figures import Figures
from visualizers.site.files import write

_LIBRARIES = ("altair", "vl-convert-python")


class Payloads:
    """The JSON texts of ``figures``. Without a ``folder`` they are kept for this process only."""

    def __init__(self, figures: Figures, folder: Path | None = None) -> None:
        self._figures = figures
        self._folder = folder
        self._texts: dict[str, str] = {}

    def text(self, name: str) -> str:
        """What the site serves at ``figures/NAME.json``."""
        if name not in self._texts:
            self._texts[name] = self._make(name) if self._folder is None else self._kept(name, self._folder)
        return self._texts[name]

    def _make(self, name: str) -> str:
        return json.dumps(self._figures.payload(name), ensure_ascii=False, separators=(",", ":"))

    def _kept(self, name: str, folder: Path) -> str:
        file = folder / f"{name}-{self._key(name)}.json"
        if not file.is_file():
            text = self._make(name)
            for old in folder.glob(f"{name}-{'[0-9a-f]' * 16}.json"):
                old.unlink()
            write(file, text)
        return file.read_text(encoding="utf-8")

    def _key(self, name: str) -> str:
        package = Path(visualizers.__file__).parent
        parts = [path.read_bytes() for path in sorted(package.glob("*.py"))]
        parts += [f"{library} {version(library)}".encode() for library in _LIBRARIES]
        parts.append(digest(registry.get(name)).encode())
        parts.append(json.dumps(dict(self._figures.values(name)[0]), sort_keys=True).encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
