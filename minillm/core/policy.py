"""Batching policies: who is next, who is given up, and when the waiting may join.

Continuous batching admits whenever there is room. Static and dynamic batching form a batch, run it to
its end and only then form the next; they differ in how long they wait for a batch to fill.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from minillm.core.config import EngineConfig
from minillm.core.request import Request


@dataclass(frozen=True, slots=True)
class QueueView:
    """What a policy may look at before admissions."""

    now_s: float
    num_waiting: int
    num_running: int
    oldest_arrival_s: float  # of the waiting, by the policy's order
    more_to_come: bool  # arrivals are known that lie in the future


class Policy(Protocol):
    """Consulted by the scheduler."""

    def key(self, request: Request) -> tuple[float, int]:
        """Rank: the smallest is admitted first, the largest is preempted first."""

    def admissible(self, view: QueueView) -> int:
        """How many of the waiting may be admitted now, room permitting."""

    def on_admit(self) -> None:
        """A waiting request was admitted."""

    def on_preempt(self) -> None:
        """A running request went back to the queue."""

    def wake_s(self, view: QueueView) -> float | None:
        """When ``admissible`` may change although nothing arrives; None if it will not."""


class ContinuousPolicy:
    """First come first served, admitted as soon as there is room."""

    def key(self, request: Request) -> tuple[float, int]:
        return (request.arrival_s, request.index)

    def admissible(self, view: QueueView) -> int:
        return view.num_waiting

    def on_admit(self) -> None:
        pass

    def on_preempt(self) -> None:
        pass

    def wake_s(self, view: QueueView) -> float | None:
        return None


class BatchPolicy:
    """First come first served in closed batches.

    Static batching (infinite ``max_wait_s``) waits for a full batch, and takes a partial one only when
    no further arrival is known. Dynamic batching also starts once the oldest has waited ``max_wait_s``.
    """

    def __init__(self, batch_size: int, max_wait_s: float) -> None:
        self._batch_size = batch_size
        self._max_wait_s = max_wait_s
        self._left = 0  # members of the current batch that are not running: not yet admitted, or preempted

    def key(self, request: Request) -> tuple[float, int]:
        return (request.arrival_s, request.index)

    def admissible(self, view: QueueView) -> int:
        if view.num_waiting == 0:
            self._left = 0  # members that were aborted while they waited
        elif self._left == 0 and view.num_running == 0 and self._is_ready(view):
            self._left = min(self._batch_size, view.num_waiting)
        return self._left

    def _is_ready(self, view: QueueView) -> bool:
        if view.num_waiting >= self._batch_size:
            return True
        if math.isinf(self._max_wait_s):
            return not view.more_to_come
        return view.now_s >= view.oldest_arrival_s + self._max_wait_s

    def on_admit(self) -> None:
        self._left -= 1

    def on_preempt(self) -> None:
        self._left += 1

    def wake_s(self, view: QueueView) -> float | None:
        if view.num_waiting == 0 or view.num_running or math.isinf(self._max_wait_s):
            return None
        return view.oldest_arrival_s + self._max_wait_s


def make_policy(config: EngineConfig) -> Policy:
    """The policy that ``config.policy`` names."""
    if config.policy == "continuous":
        return ContinuousPolicy()
    wait_s = math.inf if config.policy == "static" else config.max_wait_s
    return BatchPolicy(config.max_running_requests, wait_s)
