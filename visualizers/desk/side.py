"""One engine of the desk with its clock and its record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from minillm.core.engine import Engine
from minillm.core.request import Request, RequestError
from visualizers.desk.asks import Ask
from visualizers.desk.machines import Machine, memory_bytes
from visualizers.desk.record import Record
from visualizers.desk.setup import DeskError, Setup

Replacements = Mapping[str, Callable[..., Any]]


class Side:
    """An engine that goes on. ``replace`` puts a reader's function in the place of an engine's method.

    Its keys are paths from the engine, as in ``{"scheduler.schedule": schedule}``; the function takes ``self`` first.
    """

    def __init__(self, machine: Machine, setup: Setup, name: str, replace: Replacements | None = None) -> None:
        self.machine, self.setup, self.name = machine, setup, name
        self.engine, self.clock = machine.build(setup, name)
        block_bytes = machine.kv_token_bytes(self.engine) * self.engine.config.block_size
        self.record = Record(self.engine, block_bytes)
        self.failed = ""  # why it can't go on
        self.requests: dict[int, Request] = {}
        for path, function in (replace or {}).items():
            _replace(self.engine, path, function)

    @property
    def time_s(self) -> float:
        return self.clock()

    def submit(self, number: int, ask: Ask) -> str:
        """Takes a request, or says why it can never be served."""
        shown = ask.prompt if isinstance(ask.prompt, str) else f"({ask.prompt:,} tokens)"
        try:
            ids = self.machine.encode(ask.prompt, number)
            params = self.machine.params(self.setup, ask.max_tokens, number)
            request = self.engine.add_request(ids, params, arrival_s=max(ask.at_s, self.time_s))
        except (RequestError, ValueError) as error:
            self.record.refuse(number, ask.at_s, shown, str(error))
            return str(error)
        self.requests[number] = request
        self.record.add(number, request, shown)
        return ""

    def abort(self, number: int) -> bool:
        request = self.requests.get(number)
        return request is not None and self.engine.abort(request.request_id)

    def has_work(self) -> bool:
        return not self.failed and self.engine.has_work()

    def next_s(self) -> float:
        """When this engine can go on: now, at an arrival to come, or never."""
        if not self.has_work():
            return math.inf
        if self.engine.scheduler.running or self.engine.scheduler.swapped.num_requests:
            return self.time_s
        wake_s = self.engine.next_wake_s()
        if self.engine.scheduler.waiting.num_requests and wake_s is None:
            return self.time_s
        return self.time_s if wake_s is None else max(wake_s, self.time_s)

    def step(self) -> bool:
        """One step of the engine, after the wait for it; returns whether it did anything."""
        due_s = self.next_s()
        if math.isinf(due_s):
            return False
        if due_s > self.time_s:
            self.clock.advance_to(due_s)
        start_s, steps = self.time_s, self.engine.num_steps
        try:
            with self.clock.working():
                events = self.engine.step()
        except Exception as error:  # an engine with a reader's code in it may raise anything
            self.failed = f"{type(error).__name__}: {error}"
            return False
        self.record.step(start_s, self.time_s, events, memory_bytes()[1] if steps % 8 == 0 else self._memory_before())
        self._forget_ended()
        return self.engine.num_steps > steps or bool(events)

    def _memory_before(self) -> int:
        return int(self.record.rows[-1][-1]) if self.record.rows else memory_bytes()[1]

    def _forget_ended(self) -> None:
        if len(self.requests) > 2 * len(self.record.lanes) + 64:
            self.requests = {n: r for n, r in self.requests.items() if not r.is_finished}


def _replace(engine: Engine, path: str, function: Callable[..., Any]) -> None:
    *parts, method = path.split(".")
    owner: Any = engine
    for part in parts:
        owner = getattr(owner, part, None)
    if not callable(getattr(owner, method, None)):
        raise DeskError(f"the engine has no method {path!r} that could be replaced")
    setattr(owner, method, function.__get__(owner))
