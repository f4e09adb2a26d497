"""One cache group: the block tables of the layers whose cache of a token lies in the same blocks.

A table covers ceil(tokens / block_size) blocks. It is only appended to, except by ``rewind`` and ``release``, which
drop blocks from its end, by a copy on write of its last block, and where a window skips blocks: the null block takes
their place (`minillm.core.kv.window`).

A block that another table holds is never written. Hits are full blocks and end before the last token, so their tables
go on in a fresh block. A fork shares the last, partly filled block too: the request that writes to it while others
hold it takes a copy first, and the last holder keeps the block itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minillm.core.blocks import NULL_BLOCK, BlockPool, PoolError
from minillm.core.hooks import Trace
from minillm.core.kv.block_keys import BlockKeys
from minillm.core.kv.index import ROOT, IndexObserver, Link, PrefixIndex
from minillm.core.kv.tables import BlockCopies, GroupHit, Table
from minillm.core.request import Request

Allocate = Callable[[str, int, Trace], list[int]]


class CacheGroup:
    """Tables by request id, over the pool that all cache groups share; of group 0, those of a model without others."""

    def __init__(
        self,
        block_size: int,
        pool: BlockPool,
        index: PrefixIndex,
        observers: Sequence[IndexObserver],
        copies: BlockCopies,
        trace: Trace,
        allocate: Allocate,
    ) -> None:
        """``allocate`` takes blocks from the pool and whatever they held out of the indexes of all groups."""
        self.block_size = block_size
        self.index = index
        self.tables: dict[str, Table] = {}
        self.trace = trace
        self._pool = pool
        self._observers = observers
        self._copies = copies
        self._allocate = allocate

    def match(self, keys: BlockKeys, max_blocks: int) -> GroupHit:
        """The cached blocks of a prefix, at most ``max_blocks``. Changes nothing."""
        return GroupHit(*self.index.match(keys, max_blocks))

    def needed(self, num_computed_tokens: int, num_tokens: int, found: Sequence[int]) -> int:
        """Free blocks that a request takes up to ``num_tokens``: those of ``found`` that are free, and the rest."""
        ref_counts = self._pool.ref_counts
        revived = sum(ref_counts[block] == 0 for block in found)
        return self.most_blocks(num_computed_tokens, num_tokens) - len(found) + revived

    def most_blocks(self, num_computed_tokens: int, num_tokens: int) -> int:
        """Most blocks that a table holds at once on its way from ``num_computed_tokens`` tokens to ``num_tokens``."""
        return -(-num_tokens // self.block_size)

    def start(self, request: Request, hit: GroupHit, keys: BlockKeys | None) -> None:
        """Begin the request's table with a hit."""
        # Held from here on, so that the request's own allocations cannot evict what it hit.
        for block in hit.held:
            self._pool.touch(block)
            for observer in self._observers:
                observer.on_hit(block)
        self.tables[request.request_id] = Table(list(hit.blocks), hit.chain, keys, hit.num_skipped)
        if hit.blocks:
            self.trace.emit("hit", request.request_id, hit.blocks, tokens=len(hit.blocks) * self.block_size)

    def missing(self, request: Request, num_tokens: int) -> tuple[int, bool]:
        """Blocks that the table lacks behind its end, and whether a copy is due of the one that is written next."""
        table = self.tables[request.request_id].blocks
        missing = max(0, -(-num_tokens // self.block_size) - len(table))
        written = (request.num_computed_tokens + request.num_in_flight) // self.block_size
        return missing, written < len(table) and self._pool.ref_counts[table[written]] > 1

    def fill(self, request: Request, missing: int, is_shared: bool) -> None:
        """Allocate what ``missing`` said; the pool has room for it."""
        owner = self.tables[request.request_id]
        table = owner.blocks
        if is_shared:
            written = (request.num_computed_tokens + request.num_in_flight) // self.block_size
            source, [target] = table[written], self._allocate(request.request_id, 1, self.trace)
            # A new list: plans in flight go on reading the old one.
            owner.blocks = table = [*table[:written], target, *table[written + 1 :]]
            self._copies.add(source, target)
            self._pool.release(source, to_front=False)  # held by others, so it is not free now
            self.trace.emit("copy", request.request_id, (source, target))
        if missing:
            new = self._allocate(request.request_id, missing, self.trace)
            table.extend(new)
            self.trace.emit("allocate", request.request_id, new)

    def commit(self, request: Request) -> None:
        """Index the blocks that are full of computed tokens and were not before."""
        table = self.tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        chain, keys = table.chain, table.keys
        if chain is None or keys is None or chain.length >= num_full:
            return
        if not self.index.is_valid(chain):
            # The chain went through another request's equal block, which was evicted since. The table's own blocks
            # hold the same content: they are filed in their place, unless a window has given some of them up.
            if table.num_skipped:
                table.chain = None
                return
            chain = ROOT
        added: list[int] = []
        while chain.length < num_full:
            block = table.blocks[chain.length]
            filed = self.file(chain, block, keys)
            if filed is None:  # nothing behind this block can be found either
                table.chain = None
                break
            chain, is_new = filed
            if is_new:
                added.append(block)
        else:
            table.chain = chain
        if added:
            self.trace.emit("index", request.request_id, added)

    def file(self, chain: Link, block: int, keys: BlockKeys) -> tuple[Link, bool] | None:
        """Index a block behind ``chain``: see ``PrefixIndex.insert``. If that is new, the observers are told."""
        filed = self.index.insert(chain, block, keys)
        if filed is not None and filed[1]:
            for observer in self._observers:
                observer.on_index(block, chain.length, keys)
        return filed

    def forget(self, block: int) -> None:
        """Take a block out of the index: it gets other content."""
        last = self.index.remove(block)
        for observer in self._observers:
            observer.on_remove(block, last)

    def free_skipped_blocks(self, request: Request) -> None:
        """Give up the blocks that no token to come reads: none, where layers see everything."""

    def fork(self, parent: Request, child: Request) -> None:
        """Start the child's table with the blocks of all the parent's computed tokens; nothing is copied yet."""
        table = self.tables[parent.request_id]
        num_blocks = -(-parent.num_computed_tokens // self.block_size)  # what lies behind is for tokens in flight
        shared = table.blocks[:num_blocks]
        for block in shared[table.num_skipped :]:
            self._pool.touch(block)
        keys = table.keys and table.keys.forked(child.token_ids, table.chain.length if table.chain else 0)
        self.tables[child.request_id] = Table(shared, table.chain, keys, table.num_skipped)
        self.trace.emit(
            "fork", child.request_id, shared, child.num_known, child.num_computed_tokens, note=parent.request_id
        )

    def rewind(self, request: Request, num_tokens: int) -> None:
        """Shorten the table to ``num_tokens`` tokens: blocks wholly past them are given back."""
        table = self.tables[request.request_id]
        if table.chain is not None and table.chain.length > num_tokens // self.block_size:
            raise PoolError(
                f"{request.request_id} rewinds to {num_tokens} tokens, but {table.chain.length} of its blocks of "
                f"{self.block_size} are indexed: only tokens never committed can be taken back"
            )
        self._drop(request.request_id, table, -(-num_tokens // self.block_size))

    def release(self, request: Request) -> None:
        """Give the table back, if there is one; its indexed blocks stay cached while free."""
        table = self.tables.pop(request.request_id, None)
        if table is not None:
            self._drop(request.request_id, table, 0)

    def _drop(self, request_id: str, table: Table, keep: int) -> None:
        # The end of the table first: of a cached prefix, the end is evicted before its beginning.
        dropped = table.blocks[keep:][::-1]
        if not dropped:
            return
        for block in dropped:
            if block != NULL_BLOCK:
                self._pool.release(block, to_front=block not in self.index)
        table.blocks = table.blocks[:keep]  # a new list: plans in flight go on reading the old one
        self.trace.emit("free", request_id, dropped)
