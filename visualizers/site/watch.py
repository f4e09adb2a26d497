"""Builds again what an author edits while the site is served, and says which pages changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from watchfiles import awatch

from visualizers.site.errors import SiteError
from visualizers.site.events import Events

DEBOUNCE_MS = 120  # editors write a file in several steps
CODE = ("minillm/", "visualizers/")  # the running process: a change needs a new one
WATCHED = ("handbook", "notebooks", "mkdocs.yml", *CODE)


class Rebuilds(Protocol):
    """The builder, as far as a server needs it."""

    def update(self, out: Path) -> tuple[str, ...]:
        """Brings edits into ``out``; returns the addresses, below the site's root, of the pages that changed."""
        ...


class Watcher:
    """Builds what changed and tells the pages. :meth:`run` ends when the code of this process changed."""

    def __init__(self, root: Path, out: Path, builder: Rebuilds, events: Events) -> None:
        self._root, self._out, self._builder, self._events = root, out, builder, events

    async def run(self) -> None:
        paths = [self._root / name for name in WATCHED if (self._root / name).exists()]
        async for changes in awatch(*paths, debounce=DEBOUNCE_MS, step=30):
            changed = sorted({self._shown(path) for _, path in changes})
            if any(path.startswith(CODE) and path.endswith(".py") for path in changed):
                if self._compiles(changed):
                    print(f"{', '.join(changed)}: starting anew with the new code")
                    return
                continue
            await self._rebuild(changed)

    async def _rebuild(self, changed: list[str]) -> None:
        started = time.perf_counter()
        stems = [Path(path).stem for path in changed if path.startswith("notebooks/")]
        if stems:
            self._events.publish(notebooks=stems)
        if len(stems) == len(changed):
            return
        try:
            pages = await asyncio.to_thread(self._builder.update, self._out)
        except Exception as error:  # whatever an edit breaks, the server and the site of before stay
            problem = str(error) if isinstance(error, SiteError) else f"{type(error).__name__}: {error}"
            print(problem)
            self._events.publish(problem=problem)
            return
        assets = any(path.startswith("handbook/assets/") for path in changed)
        self._events.publish(pages=list(pages), assets=assets)
        print(f"{', '.join(changed)}: {len(pages)} pages in {time.perf_counter() - started:.1f} s")

    def _compiles(self, changed: Iterable[str]) -> bool:
        """Whether the changed modules can be read at all: half a line must not end the server."""
        for path in changed:
            file = self._root / path
            if path.endswith(".py") and file.is_file():
                try:
                    compile(file.read_text(encoding="utf-8"), path, "exec")
                except (SyntaxError, ValueError) as error:
                    print(f"{path}: {error}: still serving the code from before")
                    return False
        return True

    def _shown(self, path: str) -> str:
        return Path(path).relative_to(self._root).as_posix()
