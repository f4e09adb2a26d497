"""Batching policies: when the waiting may join. Who of them is next, the order says (`minillm.core.policies.order`).

Continuous batching admits whenever there is room. Static and dynamic batching form a batch, run it to
its end and only then form the next; they differ in how long they wait for a batch to fill.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from minillm.core.config import EngineConfig
from minillm.core.request import Request, Status


@dataclass(frozen=True, slots=True)
class QueueView:
    """What a policy may look at before admissions."""

    now_s: float
    num_waiting: int
    num_running: int
    more_to_come: bool  # arrivals are known that lie in the future


class ContinuousPolicy:
    """Whoever waits is admitted as soon as there is room."""

    def admissible(self, view: QueueView) -> int:
        """How many of the waiting may be admitted now, room permitting."""
        return view.num_waiting

    def on_wait(self, request: Request) -> None:
        """A request was queued."""

    def on_admit(self) -> None:
        """A waiting request was admitted."""

    def on_preempt(self) -> None:
        """A running request went back to the queue."""

    def wake_s(self, view: QueueView) -> float | None:
        """When ``admissible`` may change although nothing arrives; None if it will not."""
        return None


class BatchPolicy(ContinuousPolicy):
    """Closed batches.

    Static batching (infinite ``max_wait_s``) waits for a full batch, and takes a partial one only when
    no further arrival is known. Dynamic batching also starts once the oldest has waited ``max_wait_s``.
    """

    def __init__(self, batch_size: int, max_wait_s: float) -> None:
        self._batch_size = batch_size
        self._max_wait_s = max_wait_s
        self._left = 0  # members of the current batch that are not running: not yet admitted, or preempted
        self._num_kept = 0  # of the heap, when those who left were dropped last
        self._arrivals: list[tuple[float, int, int, Request]] = []  # a heap; who left is dropped when it surfaces

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
        return view.now_s >= self._full_wait_s()

    def on_wait(self, request: Request) -> None:
        if not math.isinf(self._max_wait_s):
            if len(self._arrivals) > 2 * self._num_kept + 16:
                self._arrivals = [entry for entry in self._arrivals if entry[-1].status is Status.WAITING]
                heapq.heapify(self._arrivals)
                self._num_kept = len(self._arrivals)
            heapq.heappush(self._arrivals, (request.arrival_s, request.index, request.epoch, request))

    def on_admit(self) -> None:
        self._left = max(0, self._left - 1)  # beams are admitted together, also when fewer are left

    def on_preempt(self) -> None:
        self._left += 1

    def wake_s(self, view: QueueView) -> float | None:
        if view.num_waiting == 0 or view.num_running or math.isinf(self._max_wait_s):
            return None
        return self._full_wait_s()

    def _full_wait_s(self) -> float:
        """When the oldest of the waiting has waited its time."""
        while self._arrivals[0][-1].status is not Status.WAITING:
            heapq.heappop(self._arrivals)
        return self._arrivals[0][0] + self._max_wait_s


def make_policy(config: EngineConfig) -> ContinuousPolicy:
    """The policy that ``config.policy`` names."""
    if config.policy == "continuous":
        return ContinuousPolicy()
    wait_s = math.inf if config.policy == "static" else config.max_wait_s
    return BatchPolicy(config.max_running_requests, wait_s)
