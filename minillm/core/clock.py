"""A clock that only moves when told to: the time of simulated runs."""

from __future__ import annotations


class VirtualClock:
    """Callable like ``time.perf_counter``: returns seconds, moved by ``advance`` and ``advance_to``."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        if not seconds >= 0:  # also refuses NaN
            raise ValueError(f"the clock cannot advance by {seconds} s: time only moves forward")
        self._now_s += seconds

    def advance_to(self, time_s: float) -> None:
        """Jump to exactly ``time_s``: adding a difference could miss it by a rounding error."""
        if not time_s >= self._now_s:
            raise ValueError(f"the clock cannot go from {self._now_s} s back to {time_s} s")
        self._now_s = time_s
