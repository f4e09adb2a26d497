"""A network that loses, doubles, delays and so reorders messages: each by its own chance, all from one seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

Deliver = Callable[[Any, float], None]


class LossyNetwork:
    """Messages between addresses. One to an address that nobody has is lost."""

    def __init__(self, seed: int, *, loss: float = 0.0, doubling: float = 0.0, max_delay_s: float = 0.0) -> None:
        self._rng = random.Random(seed)
        self.loss, self.doubling, self.max_delay_s = loss, doubling, max_delay_s
        self._under_way: list[tuple[float, int, str, Any]] = []  # due, number, to whom, what
        self._count = 0
        self._now_s = 0.0
        self.nodes: dict[str, Deliver] = {}
        self.log: list[tuple[str, Any]] = []  # all that was sent

    def send(self, to: str, message: Any) -> None:
        self.log.append((to, message))
        if self._rng.random() < self.loss:
            return
        for _ in range(1 + (self._rng.random() < self.doubling)):
            self._count += 1
            due_s = self._now_s + self._rng.uniform(0, self.max_delay_s)
            heapq.heappush(self._under_way, (due_s, self._count, to, message))

    def deliver(self, now_s: float) -> None:
        """All that is due, and what is sent in answer, as far as it is due at once."""
        self._now_s = now_s
        while self._under_way and self._under_way[0][0] <= now_s:
            _, _, to, message = heapq.heappop(self._under_way)
            if to in self.nodes:
                self.nodes[to](message, now_s)

    @property
    def is_quiet(self) -> bool:
        return not self._under_way
