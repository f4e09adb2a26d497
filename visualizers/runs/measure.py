"""How a figure measures time: on one thread of the arithmetic library, in processor time, more than once.

Two threads of a BLAS wait for each other at the end of every multiplication. Where another program
holds one of the cores, a step of the small model takes ten times as long, and a line of such steps
shows the other program. One thread in its own processor time is the same on an idle machine and true
on a busy one. What is left of the noise is shown: the median of the repeats, between the quartiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import quantiles
from typing import Any


def one_thread() -> AbstractContextManager[Any]:
    """Limits NumPy's BLAS to one thread inside ``with``; nothing to do where threadpoolctl is not installed.

    The browser's Python is such a place: it has no threads.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpool_limits(limits=1)
    return limits


def thread_clock() -> Callable[[], float]:
    """Seconds that this thread has had the processor; the wall clock where the system does not count them."""
    try:
        time.thread_time()
    except (AttributeError, OSError):
        return time.perf_counter
    return time.thread_time


def process_bytes() -> int | None:
    """The memory that this process holds; None where that is not to be had, as in a browser."""
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)


@dataclass(frozen=True)
class Times:
    """What repeats of the same work took: the median, and the quartiles as its spread. Seconds."""

    median_s: float
    low_s: float
    high_s: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Of two or more repeats."""
        low, median, high = quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high)

    def differs_from(self, other: Times) -> bool:
        """Whether the two spreads lie apart. Where they touch, the difference may be chance."""
        return self.high_s < other.low_s or other.high_s < self.low_s
