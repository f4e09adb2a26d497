"""Random callers of the block pool, against a dict of counts and a list in the order of release."""

from __future__ import annotations

import pytest
from random_choices import Draw, SeededDraw

from minillm.core.blocks import BlockPool, PoolError


class PoolCallers:
    """Blocks are taken, held once more and given back; what a pool must refuse is tried as well."""

    def __init__(self) -> None:
        self.pool = BlockPool(6)
        self.counts = dict.fromkeys(range(1, 6), 0)
        self.free = [1, 2, 3, 4, 5]
        self.epochs = [0] * 6

    def act(self, draw: Draw) -> None:
        draw.choice([self.allocate, self.allocate, self.touch, self.release, self.release, self.misuse])(draw)
        self.pool.check()
        assert self.pool.free_list() == self.free, "I1, I3: free blocks"
        assert self.pool.ref_counts == [0, *self.counts.values()], "I2: tables that hold each block"
        assert self.pool.num_free == len(self.free), "I4: free blocks are counted"
        assert self.pool.num_used == 5 - len(self.free), "I4: free, used and null are all there is"
        assert self.pool.epochs == self.epochs, "(block, epoch) names one content"

    def allocate(self, draw: Draw) -> None:
        if not self.free:
            with pytest.raises(PoolError, match="all 5 blocks are used"):
                self.pool.allocate()
            return
        expected = self.free.pop(0)
        assert self.pool.allocate() == expected
        self.counts[expected] = 1
        self.epochs[expected] += 1

    def touch(self, draw: Draw) -> None:
        block = draw.integer(1, 5)
        self.pool.touch(block)
        if block in self.free:
            self.free.remove(block)
        self.counts[block] += 1

    def release(self, draw: Draw) -> None:
        block, to_front = draw.integer(1, 5), draw.choice([True, False])
        if not self.counts[block]:
            with pytest.raises(PoolError, match=f"block {block} is released"):
                self.pool.release(block, to_front=to_front)
            return
        self.counts[block] -= 1
        assert self.pool.release(block, to_front=to_front) == (self.counts[block] == 0)
        if not self.counts[block]:
            self.free.insert(0 if to_front else len(self.free), block)

    def misuse(self, draw: Draw) -> None:
        """The null block and those that there are not."""
        block = draw.choice([-1, 0, 6])
        with pytest.raises(PoolError, match=r"outside 1 \.\. 5"):
            self.pool.touch(block)
        with pytest.raises(PoolError, match=r"outside 1 \.\. 5"):
            self.pool.release(block, to_front=True)


def random_pool_calls(seeds: range, acts: int = 40) -> None:
    """The pool under random callers, fast and the same each time."""
    for seed in seeds:
        draw, callers = SeededDraw(seed), PoolCallers()
        for _ in range(acts):
            callers.act(draw)
