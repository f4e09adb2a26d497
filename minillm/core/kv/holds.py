"""Blocks of the pool that someone besides the requests holds: a lease on cached ones, or room for what is to come.

A held block is not evicted. What is to come is filed in the prefix index all at once, so that nobody finds a
part of it, and stays held until it is let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from minillm.core.blocks import BlockPool, PoolError
from minillm.core.kv.block_keys import BlockKeys
from minillm.core.kv.index import Link, PrefixIndex
from minillm.core.kv.tables import BlockCopies
from minillm.core.observe.trace import Trace

Allocate = Callable[[str, int], list[int]]
File = Callable[[Link, int, int, BlockKeys], "tuple[Link, bool] | None"]


class BlockHolds:
    """Holders by name; a name may be that of no request."""

    def __init__(
        self,
        pool: BlockPool,
        index: PrefixIndex,
        copies: BlockCopies,
        trace: Trace,
        allocate: Allocate,
        file: File,
    ) -> None:
        """``allocate`` and ``file`` are the KV manager's own: they evict, and tell whom evictions concern."""
        self._pool = pool
        self._index = index
        self._copies = copies
        self._trace = trace
        self._allocate = allocate
        self._file = file
        self._blocks: dict[str, list[int]] = {}

    def __contains__(self, holder: object) -> bool:
        return holder in self._blocks

    def held(self) -> Iterator[int]:
        """Every held block, once for each of its holders."""
        return (block for blocks in self._blocks.values() for block in blocks)

    def blocks(self, holder: str) -> list[int]:
        """The holder's blocks; none if it holds none."""
        return self._blocks.get(holder, [])

    def hold(self, holder: str, blocks: Sequence[int]) -> None:
        """Keep cached blocks as they are."""
        if holder in self._blocks:
            raise PoolError(f"{holder} holds {len(self._blocks[holder])} blocks already: let them go first")
        for block in blocks:
            self._pool.touch(block)
        self._blocks[holder] = list(blocks)
        self._trace.emit("hit", holder, blocks)

    def take(self, holder: str, count: int) -> bool:
        """Take ``count`` more blocks, to be written from outside. False, and nothing done, without room."""
        if count > self._pool.num_free:
            return False
        blocks = self._allocate(holder, count)
        self._blocks.setdefault(holder, []).extend(blocks)
        self._trace.emit("allocate", holder, blocks)
        return True

    def await_copies(self, holder: str) -> bool:
        """Whether copies decided before, from or to one of these blocks, are still to be handed to the backend."""
        blocks = self.blocks(holder)
        return self._copies.come_from(blocks) or self._copies.go_to(blocks)

    def file(self, holder: str, keys: BlockKeys) -> None:
        """The holder's blocks hold the first keys now: index those that are not."""
        blocks = self._blocks[holder]
        known, chain = self._index.match(keys, len(blocks))
        added = []
        for place in range(len(known), len(blocks)):
            filed = self._file(chain, blocks[place], place, keys)
            if filed is None:
                break
            chain = filed[0]
            if filed[1]:
                added.append(blocks[place])
        if added:
            self._trace.emit("index", holder, added)

    def let_go(self, holder: str) -> None:
        """Give up all that is held, if anything; what is indexed stays cached."""
        blocks = self._blocks.pop(holder, [])[::-1]
        for block in blocks:
            self._pool.release(block, to_front=block not in self._index)
        if blocks:
            self._trace.emit("free", holder, blocks)
