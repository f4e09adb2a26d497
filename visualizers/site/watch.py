"""Builds again what an author edits while the site is served, and says which pages changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Protocol

from watchfiles import awatch

from visualizers.site.errors import SiteError
from visualizers.site.events import Events

DEBOUNCE_MS = 120  # editors write a file in several steps
CODE = ("minillm/", "visualizers/")  # the running process: a change needs a new one
FOLDERS = ("handbook", "notebooks", "minillm", "visualizers")
_BELOW = tuple(f"{folder}/" for folder in FOLDERS)
_ENTRIES = ("mkdocs.yml", *FOLDERS)


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
        async for changed in self._changes():
            if any(path.startswith(CODE) and path.endswith(".py") for path in changed):
                if self._compiles(changed):
                    print(f"{', '.join(changed)}: starting anew with the new code")
                    return
                continue
            await self._rebuild(changed)

    async def _changes(self) -> AsyncIterator[list[str]]:
        """What changed, relative to the root, time after time.

        The root is watched for its own entries, since an editor replaces ``mkdocs.yml`` by another file
        and a change of branch a folder by another folder, which a watch of the first would not see.
        """
        found: asyncio.Queue[list[str]] = asyncio.Queue()

        async def follow(paths: list[Path], *, recursive: bool) -> None:
            if not paths:
                await asyncio.Event().wait()  # until one comes
            async for changes in awatch(*paths, debounce=DEBOUNCE_MS, step=30, recursive=recursive):
                shown = sorted({self._shown(path) for _, path in changes})
                if changed := [path for path in shown if path.startswith(_BELOW) or path in _ENTRIES]:
                    await found.put(changed)

        def below() -> asyncio.Task[None]:
            folders = [self._root / name for name in FOLDERS if (self._root / name).is_dir()]
            return asyncio.create_task(follow(folders, recursive=True))

        tasks = [asyncio.create_task(follow([self._root], recursive=False)), below()]
        try:
            while True:
                news = asyncio.create_task(found.get())
                await asyncio.wait([news, *tasks], return_when=asyncio.FIRST_COMPLETED)
                if not news.done():
                    news.cancel()
                    for task in tasks:
                        if task.done():
                            task.result()  # raises why edits are no longer seen
                    return
                changed = news.result()
                if any(path in FOLDERS for path in changed):
                    tasks[1].cancel()
                    tasks[1] = below()
                yield changed
        finally:
            for task in tasks:
                task.cancel()

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
