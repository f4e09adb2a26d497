"""The time of an engine on the desk: its own work, and the waits in which it had none.

It stands still while the page is drawn, while the reader pauses and while the other engine of a comparison
computes, so that none of these looks like latency.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minillm.core.clock import VirtualClock


class WorkClock:
    """Callable like ``time.perf_counter``: seconds of work measured by ``timer``, and of waits that it was told."""

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self._timer, self._before_s = timer, 0.0
        self._since_s: float | None = None

    def __call__(self) -> float:
        return self._before_s + (0.0 if self._since_s is None else self._timer() - self._since_s)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Counts the time that passes inside ``with``."""
        self._since_s = self._timer()
        try:
            yield
        finally:
            self._before_s, self._since_s = self(), None

    def advance_to(self, time_s: float) -> None:
        """A wait ends at ``time_s``."""
        self._before_s = max(self._before_s, time_s)


class ModelledClock(VirtualClock):
    """A clock that the simulated backend moves; the seconds that this machine takes do not count."""

    @contextmanager
    def working(self) -> Iterator[None]:
        yield


DeskClock = WorkClock | ModelledClock
