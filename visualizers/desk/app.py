"""The desk in a notebook: ``show(Recipe(...))`` as a cell's last line."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import marimo as mo

from visualizers.desk.machines import IN_BROWSER
from visualizers.desk.recipe import Recipe
from visualizers.desk.session import Session
from visualizers.desk.setup import DeskError
from visualizers.desk.side import Replacements
from visualizers.desk.widget import Widget

SLICE_S = 0.02  # of the engines, before the page is listened to
FRAME_S = 1 / 15
# A message of the page takes about so many turns of the browser's loop; a kernel of this machine has threads.
TURNS = 20 if IN_BROWSER else 1


class Desk:
    """A session, its widget and the task that drives both. Ends when its cell runs again or the kernel does."""

    def __init__(self, recipe: Recipe, replace: Replacements | None = None) -> None:
        self._failed = ""
        try:
            recipe = _asked(recipe)
        except DeskError as error:
            self._failed = str(error)
        self.session = Session(recipe, replace=replace)
        if self._failed:
            self.session.note("refused", self._failed)
        self._visible, self._greeted = True, False
        self._generation = 0
        self._wake = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None
        self.widget = Widget(self._on_message)
        self.task = asyncio.get_running_loop().create_task(self._run())

    def _on_message(self, command: dict[str, Any]) -> None:
        match command.get("cmd"):
            case "hello":
                if not self._greeted and command.get("reduced"):
                    self.session.paused = True  # nothing moves by itself
                self._greeted, self._generation = True, 0
            case "visible":
                self._visible = bool(command.get("on"))
            case "ping":
                pass
            case "machine" if not IN_BROWSER:
                self._loading = asyncio.get_running_loop().create_task(self._load(command))
            case _:
                self.session.handle(command)
        self._push()
        self._wake.set()

    async def _load(self, command: dict[str, Any]) -> None:
        """Another model: read beside the engine that runs, which goes on until it is there."""
        clock, model = str(command.get("clock")), str(command.get("model"))
        self.session.note("started", f"Loading {model}; the run goes on until it is there")
        self._push()
        try:
            await asyncio.to_thread(self.session.prepare, clock, model)
        except DeskError as error:
            self.session.note("refused", str(error))
        else:
            self.session.handle(command)
        self._push()
        self._wake.set()

    def _push(self) -> None:
        if self._generation != self.session.generation:
            self._generation = self.session.generation
            self.widget.send(self.session.everything())
        else:
            self.widget.send(self.session.news())

    async def _run(self) -> None:
        due_s = 0.0
        while not self.widget.closed:
            if not self._visible or not self._greeted or self.session.rests:
                self._wake.clear()
                if self._greeted:
                    self._push()
                # Woken at times, to end with its cell.
                try:
                    await asyncio.wait_for(self._wake.wait(), 30 if IN_BROWSER else 5)
                except TimeoutError:
                    continue
            self.session.advance(SLICE_S)
            if time.perf_counter() >= due_s:
                self._push()
                due_s = time.perf_counter() + FRAME_S
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if not IN_BROWSER:
                await asyncio.sleep(0.002)


def show(recipe: Recipe, *, replace: Replacements | None = None) -> Any:
    """An engine that goes on, for the end of a cell. ``replace`` has functions of the notebook: see `side.Side`."""
    desk = Desk(recipe, replace)  # held by its widget's comm, and with it the task
    return mo.ui.anywidget(desk.widget)


def _asked(recipe: Recipe) -> Recipe:
    """The recipe as the page's address changes it."""
    packed = mo.query_params().to_dict().get("desk", "")
    return recipe.opened(str(packed)) if packed else recipe
