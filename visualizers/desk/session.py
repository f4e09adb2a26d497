"""A desk without a page: one or two engines that go on, what a reader tells them, what there is to tell the reader.

:meth:`Session.handle` takes a command of the page, :meth:`Session.advance` lets the engines run for a slice of
time, :meth:`Session.news` has what happened since. Two engines take the same requests at the same times of their
own clocks, and the one that is behind goes first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from visualizers.desk import compare, export, machines
from visualizers.desk.asks import Ask, gap_s, pasted
from visualizers.desk.machines import Machine, memory_bytes
from visualizers.desk.recipe import MOST_RATE, Recipe
from visualizers.desk.record import COLUMNS
from visualizers.desk.setup import LEVERS, OF_REQUESTS, DeskError, Setup, described
from visualizers.desk.side import Replacements, Side
from visualizers.runs.measure import one_thread

BURST = 8
MOST_KEPT = 200  # asks that a restart sends again
MOST_WAITING = 64  # of one engine: who comes on top at a rate is left out
SPEEDS = (0.02, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


class Session:
    """The state of a desk. ``replace`` has the reader's functions for the engines, see `side.Side`."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        replace: Replacements | None = None,
        timer: Callable[[], float] = time.perf_counter,
        machine: Callable[[str, str], Machine] = machines.machine,
    ) -> None:
        self.preset = recipe
        self.recipe = recipe
        self.paused = False
        self.notes: list[dict[str, str]] = []  # told once
        self.files: list[dict[str, str]] = []
        self.sides: list[Side] = []
        self.asks: list[Ask] = []
        self.rounds: list[list[dict[str, float]]] = [[], []]
        self.generation = 0  # rises with each start: a page forgets what it drew before
        self._replace, self._timer, self._new_machine = replace, timer, machine
        self._machine: Machine | None = None
        self._prepared: dict[tuple[str, str], Machine] = {}  # loaded, and not started yet
        self._machine_key: tuple[str, str] = ("", "")
        self._number = 0
        self._refused: set[int] = set()
        self._drawn = self._left_out = 0  # arrivals at the rate: made, and left out because too many waited
        self._next_draw_s = self._last_draw_s = 0.0
        self._wall_s: float | None = None  # of the last slice
        self._allowed_s = 0.0  # how far the clocks may go
        self._settled = False  # whether this round was counted
        self._packed: tuple[Any, str] = None, ""
        self.start(recipe)

    # Starting

    def start(self, recipe: Recipe) -> None:
        """Both engines anew, with the recipe's requests. What can't be had leaves the run before as it is."""
        key = (recipe.clock, recipe.model)
        fresh = self._machine is None or key != self._machine_key
        used = self._prepared.pop(key, None) or (self._machine if not fresh else None) or self._new_machine(*key)
        setups = [recipe.a] if recipe.b is None else [recipe.a, recipe.b]
        sides = [
            Side(used, s, name, self._replace if name == "A" else None) for s, name in zip(setups, "AB", strict=False)
        ]
        self._machine, self._machine_key = used, key
        self.recipe, self.sides = recipe, sides
        self.generation += 1
        self.asks, self._number, self._refused = [], 0, set()
        self._drawn, self._left_out, self._next_draw_s, self._last_draw_s = 0, 0, 0.0, 0.0
        self._allowed_s, self._wall_s, self._settled = 0.0, None, False
        for ask in recipe.requests:
            self._send(ask)

    def prepare(self, clock: str, model: str) -> Machine:
        """Loads what a later command ``machine`` starts: to be called where waiting does no harm."""
        found = self._new_machine(clock, model)
        found.load()
        self._prepared = {(clock, model): found}
        return found

    def _again(self, recipe: Recipe, why: str) -> None:
        """A new start with the requests that were sent so far."""
        self.start(replace(recipe, requests=tuple(self.asks[-MOST_KEPT:])))
        self.rounds = [[], []]
        self.note("started", why)

    @property
    def machine(self) -> Machine:
        if self._machine is None:
            raise DeskError("nothing runs yet")
        return self._machine

    # What the reader tells

    def handle(self, command: Mapping[str, Any]) -> None:
        """Carries out a command of the page; what can't be done becomes a note, and nothing else changes."""
        try:
            self._handle(command)
        except DeskError as error:
            self.note("refused", str(error))

    def _handle(self, command: Mapping[str, Any]) -> None:
        match command.get("cmd"):
            case "pause":
                self.paused = bool(command.get("on", not self.paused))
                self._wall_s = None
            case "step":
                self.paused = True
                self._one_step()
            case "speed":
                self.recipe = replace(self.recipe, speed=_number(command, "value"))
                self._allowed_s = self.time_s
            case "send":
                self._send_now(str(command.get("prompt", "")), int(_number(command, "max_tokens")))
            case "burst":
                for _ in range(BURST):
                    self._send_now(self._prompt(), self.recipe.max_tokens)
            case "rate":
                self.recipe = replace(self.recipe, rate=_number(command, "value"))
                self._next_draw_s = self._last_draw_s = self.time_s
            case "trace":
                self._again_with(pasted(str(command.get("text", ""))))
            case "preset":
                self.start(self.preset)
                self.rounds = [[], []]
            case "abort":
                number = int(_number(command, "n"))
                if not [side for side in self.sides if side.abort(number)]:
                    raise DeskError(f"request {number} has ended already")
            case "lever":
                self._lever(str(command.get("side", "A")), str(command.get("name")), str(command.get("value")))
            case "compare":
                self._compare(bool(command.get("on")))
            case "rounds":
                rounds = int(_number(command, "value"))
                self._again(
                    replace(self.recipe, rounds=rounds), f"{rounds} rounds of the same requests, from the start"
                )
            case "machine":
                clock, model = str(command.get("clock")), str(command.get("model"))
                self._again(replace(self.recipe, clock=clock, model=model), f"{model} on another clock, from the start")
            case "export":
                self.files.append(export.file(self, str(command.get("kind"))))
            case "restart":
                self._again(self.recipe, "from the start, with the same requests")
            case other:
                raise DeskError(f"the desk knows no command {other!r}")

    def _again_with(self, asks: tuple[Ask, ...]) -> None:
        self.start(replace(self.recipe, requests=asks, rate=0.0))
        self.rounds = [[], []]
        self.note("started", f"{len(asks)} requests of the trace, from the start")

    def _lever(self, side: str, name: str, value: str) -> None:
        if name not in LEVERS:
            raise DeskError(f"there is no lever {name!r}: choose from {', '.join(LEVERS)}")
        setup = self.recipe.b if side == "B" else self.recipe.a
        if setup is None:
            raise DeskError("there is no side B: compare first")
        changed = setup.with_lever(name, value)
        recipe = replace(self.recipe, b=changed) if side == "B" else replace(self.recipe, a=changed)
        label = f"{LEVERS[name].label}: {LEVERS[name].options[value]}"
        if name in OF_REQUESTS:
            self.recipe = recipe
            self.sides[1 if side == "B" else 0].setup = changed
            self.note("started", f"{label}, for the requests that come from now on")
            return
        self._again(recipe, f"{side} is a new engine ({label}); the same requests run again from the start")

    def _compare(self, on: bool) -> None:
        if not on:
            self._again(replace(self.recipe, b=None), "one engine, from the start")
            return
        lever = LEVERS[self.recipe.lever]
        other = next(v for v in lever.options if v != getattr(self.recipe.a, lever.name))
        setup = (
            (self.preset.b or self.recipe.a.with_lever(lever.name, other)) if self.recipe.b is None else self.recipe.b
        )
        self._again(replace(self.recipe, b=setup), "two engines, the same requests at the same times")

    def _send_now(self, prompt: str | int, max_tokens: int) -> None:
        ask = Ask(round(self.time_s, 6), prompt, max_tokens)
        self._settled = False
        self._send(ask)
        self._allowed_s = max(self._allowed_s, self.time_s)

    def _send(self, ask: Ask) -> None:
        self._number += 1
        self.asks.append(ask)
        del self.asks[:-MOST_KEPT]
        reasons = {side.submit(self._number, ask) for side in self.sides} - {""}
        for reason in reasons:
            self.note("refused", f"Request {self._number} was refused: {reason}")

    def _prompt(self) -> str | int:
        return self.recipe.prompts[self._number % len(self.recipe.prompts)]

    def note(self, kind: str, text: str) -> None:
        self.notes = [*self.notes[-9:], {"kind": kind, "text": text}]

    # Running

    @property
    def time_s(self) -> float:
        """Where the run is: the clock of the side that is ahead, or how long it has waited for an arrival."""
        ahead_s = max(side.time_s for side in self.sides)
        due_s = min(side.next_s() for side in self.sides)
        return ahead_s if math.isinf(due_s) and not self.recipe.rate else max(ahead_s, min(self._allowed_s, due_s))

    @property
    def rests(self) -> bool:
        """Whether nothing would happen, however long one waited."""
        return self.paused or not (any(side.has_work() for side in self.sides) or self.recipe.rate > 0)

    def advance(self, seconds: float) -> bool:
        """Lets the engines run for about ``seconds`` of this machine; returns whether any did a step.

        Their clocks go on no faster than the speed that the reader chose.
        """
        now_s = self._timer()
        if self.rests:
            self._wall_s = None
            return False
        passed_s = 0.0 if self._wall_s is None else min(now_s - self._wall_s, 0.25)
        self._wall_s = now_s
        # A machine that is too slow for the speed does not catch up later; a wait for an arrival takes its time.
        due_s = min(side.next_s() for side in self.sides)
        if due_s <= self._allowed_s:
            self._allowed_s = min(self._allowed_s, due_s + 0.25 * self.recipe.speed)
        self._allowed_s += passed_s * self.recipe.speed
        end_s, stepped = now_s + seconds, False
        with one_thread():
            while self._timer() < end_s:
                self._draw_arrivals()
                behind = min(self.sides, key=lambda side: side.next_s())
                if behind.next_s() > self._allowed_s:
                    break
                stepped = self._step(behind) or stepped
        self._settle()
        return stepped

    def _one_step(self) -> None:
        """One step of each engine that has one; where none has, the next request of a rate is not waited for."""
        if self.recipe.rate and not any(side.has_work() for side in self.sides):
            self._allowed_s = max(self._allowed_s, self._next_draw_s)
        self._draw_arrivals()
        with one_thread():
            for side in self.sides:
                self._step(side)
        self._allowed_s = self.time_s
        self._settle()

    def _step(self, side: Side) -> bool:
        did = side.step()
        if side.failed:
            self.note("failed", f"Engine {side.name} cannot go on: {side.failed}")
        return did

    def _draw_arrivals(self) -> None:
        """Requests at the rate that the reader chose: those that are due, and the one after them."""
        rate = self.recipe.rate
        now_s = max(side.time_s for side in self.sides)
        while rate > 0 and self._next_draw_s <= self._allowed_s and self._last_draw_s <= now_s:
            waiting = max(side.engine.scheduler.waiting.num_requests for side in self.sides)
            self._last_draw_s = self._next_draw_s
            if waiting < MOST_WAITING:
                self._send(Ask(round(max(self._next_draw_s, 0.0), 6), self._prompt(), self.recipe.max_tokens))
            else:
                self._left_out += 1
            self._drawn += 1
            self._next_draw_s += gap_s(rate, self.generation, self._drawn)

    def _settle(self) -> None:
        """Once all requests have ended on all sides, the round counts; a comparison starts the next one."""
        if (
            self._settled
            or not self.asks
            or any(s.failed or s.engine.has_work() for s in self.sides)
            or self.recipe.rate
        ):
            return
        self._settled = True
        for found, side in zip(self.rounds, self.sides, strict=False):
            found.append(compare.of_record(side.record))
        if self.recipe.b is not None and not self.machine.modelled and len(self.rounds[0]) < self.recipe.rounds:
            self.start(replace(self.recipe, requests=tuple(self.asks[-MOST_KEPT:])))

    # What there is to tell

    def news(self) -> dict[str, Any]:
        """What happened since this was asked last."""
        notes, self.notes = self.notes, []
        files, self.files = self.files, []
        told = {
            "kind": "news", "generation": self.generation, "paused": self.paused, "rests": self.rests,
            "time_s": self.time_s, "recipe": self.packed(), "notes": notes, "files": files, "left_out": self._left_out,
            "sides": [{"time_s": side.time_s, "failed": side.failed, **side.record.news()} for side in self.sides],
        }  # fmt: skip
        if len(self.sides) > 1:
            told["compared"] = self.compared()
        return told

    def everything(self) -> dict[str, Any]:
        """All that a page needs which has just come, or whose run has started anew."""
        machine, recipe = self.machine, self.recipe
        sides = []
        for side in self.sides:
            usage = side.engine.kv_usage()
            sides.append(
                {
                    "name": side.name, "time_s": side.time_s, "failed": side.failed, "setup": vars_of(side.setup),
                    "block_size": side.engine.config.block_size, "blocks": usage.total_blocks,
                    "total_bytes": usage.total_blocks * side.record.block_bytes, "block_bytes": side.record.block_bytes,
                    "budget": side.engine.config.max_batch_tokens, "mapped": side.record.mapped,
                    **{f"all_{name}": value for name, value in side.record.everything().items()},
                }
            )  # fmt: skip
        told = self.news()
        return {
            **told, "kind": "everything", "sides": sides, "columns": COLUMNS, "title": recipe.title,
            "lever": recipe.lever, "rate": recipe.rate, "most_rate": MOST_RATE, "speed": recipe.speed, "speeds": SPEEDS,
            "levers": [{"name": v.name, "label": v.label, "options": v.options} for v in LEVERS.values()],
            "clock": recipe.clock, "model": recipe.model, "modelled": machine.modelled, "device": machine.device,
            "clocks": machines.clocks(), "models": machines.models(machine.modelled), "rounds": recipe.rounds,
            "prompt": next((p for p in recipe.prompts if isinstance(p, str)), ""), "max_tokens": recipe.max_tokens,
            "memory": memory_bytes()[0], "recipe": replace(recipe, requests=tuple(self.asks)).packed(),
        }  # fmt: skip

    def packed(self) -> str:
        """The recipe of what runs, for the page's address; made anew only when something was changed."""
        key = (self.recipe, len(self.asks), self._number)
        if key != self._packed[0]:
            asks = () if self.recipe.rate else tuple(self.asks)
            self._packed = key, replace(self.recipe, requests=asks).packed()
        return self._packed[1]

    def compared(self) -> dict[str, Any]:
        """The comparison so far: the rounds that are done, or the one that runs."""
        rounds = self.rounds if all(self.rounds) else [[compare.of_record(side.record)] for side in self.sides]
        done = len(self.rounds[0]) if all(self.rounds) else 0
        found = compare.compare(*rounds, measured=not self.machine.modelled)
        a, b = self.sides[0].setup, self.sides[1].setup
        name = LEVERS[self.recipe.lever].metric
        said = compare.sentence(found, name, described(a, b), described(b, a), done)
        return {"rounds": done, "of": self.recipe.rounds, "rows": [c.told() for c in found], "sentence": said}


def vars_of(setup: Setup) -> dict[str, str]:
    return {name: getattr(setup, name) for name in LEVERS}


def _number(command: Mapping[str, Any], name: str) -> float:
    value = command.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DeskError(f"{name} is {value!r}: give a number")
    return float(value)
