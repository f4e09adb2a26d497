"""The pool of KV blocks: which are free, which are used and by how many tables. It knows no tokens.

Block 0 is the null block: never allocated, never written, never read. The free list is doubly linked
through two arrays, so a block leaves its middle (a cached block is hit again) in constant time. It holds
the blocks without content at its front and is in order of last use behind them; with an evictor, that one
has the blocks whose content is kept, and they are taken when the list is empty.
"""

from __future__ import annotations

from array import array

from minillm.core.kv.eviction import Evictor

NULL_BLOCK = 0


class PoolError(RuntimeError):
    """The pool was used wrongly, or its structure is broken: a fault of the engine, not of a request."""


class BlockPool:
    """Reference-counted blocks ``1 .. num_blocks - 1``. Blocks are handed out from the front of the free list."""

    def __init__(self, num_blocks: int, evictor: Evictor | None = None) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool of {num_blocks} blocks is too small: block 0 is the null block, take 2 or more")
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self._evictor = evictor
        self.ref_counts = [0] * num_blocks  # tables that hold the block
        self.epochs = [0] * num_blocks  # how often the block was handed out: (block, epoch) names one content
        # The null block is never free, so it serves as the list's sentinel: next[0] is the front.
        self._next: array[int] = array("i", [*range(1, num_blocks), NULL_BLOCK])
        self._prev: array[int] = array("i", [num_blocks - 1, *range(num_blocks - 1)])

    @property
    def num_used(self) -> int:
        return self.num_blocks - 1 - self.num_free

    def allocate(self) -> int:
        """Take the block at the front of the free list for new content. Check ``num_free`` before."""
        if not self.num_free:
            raise PoolError(f"all {self.num_blocks - 1:,} blocks are used: check num_free before allocating")
        block = self._next[NULL_BLOCK]
        if block != NULL_BLOCK:
            self._unlink(block)
        elif self._evictor is not None:
            block = self._evictor.pop()
        self.num_free -= 1
        self.ref_counts[block] = 1
        self.epochs[block] += 1
        return block

    def touch(self, block: int) -> None:
        """One more table holds ``block`` with the content it has; if it was free, it is used again."""
        self._check_id(block)
        if self.ref_counts[block] == 0:
            self._take_out(block)
        self.ref_counts[block] += 1

    def release(self, block: int, *, to_front: bool) -> bool:
        """One table fewer holds ``block``; True if it is free now.

        ``to_front`` puts it where the next allocation finds it (nothing in it is worth keeping); at the
        back it keeps its content for as long as possible, so the list is in order of last use.
        """
        self._check_id(block)
        if self.ref_counts[block] == 0:
            raise PoolError(f"block {block} is released, but no table holds it")
        self.ref_counts[block] -= 1
        if self.ref_counts[block]:
            return False
        self.num_free += 1
        if to_front:
            self._link(block, NULL_BLOCK, self._next[NULL_BLOCK])
        elif self._evictor is None:
            self._link(block, self._prev[NULL_BLOCK], NULL_BLOCK)
        else:
            self._evictor.add(block)
        return True

    def free_list(self) -> list[int]:
        """Free blocks, the next to be allocated first."""
        blocks: list[int] = []
        block = self._next[NULL_BLOCK]
        while block != NULL_BLOCK and len(blocks) < self.num_blocks:
            blocks.append(block)
            block = self._next[block]
        return blocks if self._evictor is None else blocks + self._evictor.order()

    def check(self) -> None:
        """Raise ``PoolError`` unless each block is in exactly one of null, free, used."""
        free = self.free_list()
        if len(set(free)) != len(free):
            raise PoolError(f"the free list holds a block twice: {free}")
        if len(free) != self.num_free:
            raise PoolError(f"the free list has {len(free)} blocks, num_free says {self.num_free}")
        linked = free if self._evictor is None else free[: len(free) - len(self._evictor)]
        if any(self._prev[self._next[block]] != block for block in [NULL_BLOCK, *linked]):
            raise PoolError("the free list's two directions disagree")
        unused = {block for block in range(1, self.num_blocks) if self.ref_counts[block] == 0}
        if unused != set(free) or min(self.ref_counts) < 0 or self.ref_counts[NULL_BLOCK]:
            raise PoolError(f"free list {sorted(free)} and blocks without a holder {sorted(unused)} differ")

    def _check_id(self, block: int) -> None:
        if not 0 < block < self.num_blocks:
            raise PoolError(f"block {block} is outside 1 .. {self.num_blocks - 1}")

    def _take_out(self, block: int) -> None:
        if self._evictor is not None and block in self._evictor:
            self._evictor.discard(block)
        else:
            self._unlink(block)
        self.num_free -= 1

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before

    def _link(self, block: int, before: int, after: int) -> None:
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
