"""Which cached block is given up first when the pool needs one.

Least recently used is the pool's own free list (`minillm.core.blocks`). The other two orders rank blocks by
how often they were used: ``lfu`` by that alone, ``cost`` by uses times the work that a later hit would save.

``cost`` is GreedyDual-Size-Frequency (Cherkasova, HP Labs report HPL-98-69, 1998) for blocks of equal size:
a block's priority is clock + uses * cost, set when it becomes free; the clock is the priority of the last
block evicted, so what is not used any more is overtaken in time. The cost of a block is the arithmetic
that computing it again takes: the matrices' for its tokens, and attention's over all tokens before it,
which is as much at the model's crossover length.

A block is reachable through those before it only, so whoever has indexed blocks behind it waits until
they are gone. Where every free block waits (those behind are held), the one that became free first goes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from minillm.core.kv.block_keys import BlockKeys

EvictionName = Literal["lru", "lfu", "cost"]
_Entry = tuple[float, int, int]  # priority, number in the order of release, block


class Evictor(Protocol):
    """The free cached blocks, in the order in which they are given up."""

    def __len__(self) -> int: ...

    def __contains__(self, block: int) -> bool: ...

    def add(self, block: int) -> None:
        """The block became free, with content worth keeping."""

    def discard(self, block: int) -> None:
        """The block is held again."""

    def pop(self) -> int:
        """Take out the block to give up. There must be one."""

    def order(self) -> list[int]:
        """The blocks, the next to go first, if nothing happens in between."""


class PriorityEvictor:
    """Blocks by priority, lowest first, in O(log n) each; ties by release, so the end of a table before its start."""

    def __init__(
        self,
        num_blocks: int,
        cost: Callable[[int], float] | None,
        is_last: Callable[[int], bool],
    ) -> None:
        """``cost`` of the block at a place in its prefix; None ranks by uses alone. ``is_last`` asks the index."""
        self._cost = cost
        self._is_last = is_last
        self._uses = [0] * num_blocks
        self._costs = [1.0] * num_blocks
        self._clock = 0.0
        self._count = 0
        self._live: dict[int, _Entry] = {}
        self._heap: list[_Entry] = []  # an entry counts if it is the live one of its block
        self._waiting: dict[int, None] = {}  # live, but not in the heap: blocks are indexed behind them

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, block: int) -> bool:
        return block in self._live

    def on_index(self, block: int, place: int, keys: BlockKeys | None = None) -> None:
        """The block is indexed, with ``place`` blocks before it: a first use."""
        self._uses[block] = 1
        if self._cost is not None:
            self._costs[block] = self._cost(place)

    def on_hit(self, block: int) -> None:
        """A request found the block in the index."""
        self._uses[block] += 1

    def on_remove(self, block: int, last: int) -> None:
        """Nothing is indexed behind ``last`` any more."""
        if last in self._waiting:
            del self._waiting[last]
            heapq.heappush(self._heap, self._live[last])

    def add(self, block: int) -> None:
        self._count += 1
        priority = self._clock + self._uses[block] * self._costs[block]
        entry = self._live[block] = (priority, self._count, block)
        heapq.heappush(self._heap, entry)

    def discard(self, block: int) -> None:
        del self._live[block]
        self._waiting.pop(block, None)
        if len(self._heap) > 2 * len(self._live) + 64:  # mostly entries that count no more
            self._heap = [entry for b, entry in self._live.items() if b not in self._waiting]
            heapq.heapify(self._heap)

    def pop(self) -> int:
        while self._heap:
            entry = heapq.heappop(self._heap)
            block = entry[2]
            if self._live.get(block) is not entry:
                continue
            if not self._is_last(block):
                self._waiting[block] = None
                continue
            if self._cost is not None:
                self._clock = entry[0]
            del self._live[block]
            return block
        block = next(iter(self._waiting))
        self.discard(block)
        return block

    def order(self) -> list[int]:
        return [block for _, _, block in sorted(self._live.values())]


def recompute_cost(block_size: int, crossover_tokens: float) -> Callable[[int], float]:
    """Cost of a block by its place, in units of the first one's matrices: 1 + tokens before it / crossover."""
    return lambda place: 1.0 + place * block_size / crossover_tokens
