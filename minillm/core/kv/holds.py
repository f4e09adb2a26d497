"""Blocks of the pool that someone besides the requests holds: a lease on cached ones, or room for what is to come.

A held block is not evicted. What is to come is filed in the prefix index all at once, so that nobody finds a
part of it, and stays held until it is let go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minillm.core.blocks import BlockPool, PoolError
from minillm.core.kv.block_keys import BlockKeys, ExtraKey, Hash
from minillm.core.kv.cache_group import Allocate, CacheGroup
from minillm.core.kv.tables import BlockCopies


def only_group(groups: Sequence[CacheGroup], what: str) -> CacheGroup:
    """The cache group of a model that has one; ``PoolError`` for others, whose blocks are nobody's whole K/V."""
    if len(groups) > 1:
        raise PoolError(
            f"{what} with {len(groups)} cache groups, one is supported: "
            "set free_behind_window=False, then all layers share their blocks"
        )
    return groups[0]


class BlockHolds:
    """Holders by name; a name may be that of no request."""

    def __init__(
        self,
        pool: BlockPool,
        copies: BlockCopies,
        groups: Sequence[CacheGroup],
        allocate: Allocate,
        hash_function: Hash,
    ) -> None:
        """``allocate`` is the KV manager's own: it evicts, and tells whom evictions concern."""
        self._pool = pool
        self._copies = copies
        self._groups = groups
        self._allocate = allocate
        self._hash = hash_function
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
        self._groups[0].trace.emit("hit", holder, blocks)

    def take(self, holder: str, count: int) -> bool:
        """Take ``count`` more blocks, to be written from outside. False, and nothing done, without room."""
        if count > self._pool.num_free:
            return False
        blocks = self._allocate(holder, count, self._groups[0].trace)
        self._blocks.setdefault(holder, []).extend(blocks)
        self._groups[0].trace.emit("allocate", holder, blocks)
        return True

    def await_copies(self, holder: str) -> bool:
        """Whether copies decided before, from or to one of these blocks, are still to be handed to the backend."""
        blocks = self.blocks(holder)
        return self._copies.come_from(blocks) or self._copies.go_to(blocks)

    def find(self, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey]) -> list[int]:
        """The cached blocks of a prefix, as many as there are from its beginning. Changes nothing."""
        group = only_group(self._groups, "a transfer of blocks")
        keys = BlockKeys(token_ids, extra_keys, group.block_size, self._hash)
        return group.index.match(keys, len(token_ids) // group.block_size)[0]

    def file(self, holder: str, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey]) -> None:
        """The holder's blocks are the first blocks of this prefix, whole by now: index those that are not."""
        group, blocks = only_group(self._groups, "a transfer of blocks"), self._blocks[holder]
        keys = BlockKeys(token_ids, extra_keys, group.block_size, self._hash)
        known, chain = group.index.match(keys, len(blocks))
        added = []
        for block in blocks[len(known) :]:
            filed = group.file(chain, block, keys)
            if filed is None:
                break
            chain = filed[0]
            if filed[1]:
                added.append(block)
        if added:
            group.trace.emit("index", holder, added)

    def let_go(self, holder: str) -> None:
        """Give up all that is held, if anything; what is indexed stays cached."""
        blocks = self._blocks.pop(holder, [])[::-1]
        for block in blocks:
            self._pool.release(block, to_front=block not in self._groups[0].index)
        if blocks:
            self._groups[0].trace.emit("free", holder, blocks)
