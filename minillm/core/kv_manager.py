"""A request's block table: cached blocks hit, room reserved, full blocks indexed, room given back.

A table covers ceil(tokens / block_size) blocks. It is only appended to, except by ``rewind`` and
``release``, which drop blocks from its end. Blocks that another table holds, or that are indexed, are
full and never written again: a hit ends before the last token, so its writer always owns a fresh block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minillm.core.blocks import BlockPool, PoolError
from minillm.core.prefix import Extras, Hash, Link, PrefixIndex, digest128
from minillm.core.request import Request
from minillm.core.trace import Trace


@dataclass(slots=True)
class _Table:
    blocks: list[int] = field(default_factory=list)
    chain: Link | None = None  # how far the table's blocks are indexed; None without prefix caching


@dataclass(frozen=True, slots=True)
class Hit:
    """Cached blocks that hold a request's first tokens. Valid until the next allocation."""

    blocks: list[int]
    num_tokens: int
    chain: Link | None


class KVManager:
    """Block tables of the running requests, over one pool and one prefix index."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        trace: Trace | None = None,
        hash_function: Hash = digest128,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(self.pool, block_size, hash_function)
        self._prefix_caching = prefix_caching
        self._trace = trace if trace is not None else Trace(enabled=False)
        self._tables: dict[str, _Table] = {}

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def table(self, request_id: str) -> list[int]:
        """The live block table of an admitted request."""
        return self._tables[request_id].blocks

    @property
    def tables(self) -> dict[str, list[int]]:
        return {request_id: table.blocks for request_id, table in self._tables.items()}

    def lookup(self, request: Request) -> Hit:
        """The cached blocks of a request that waits. Changes nothing.

        At least one token is left to compute, for its logits are what the first output is drawn from.
        """
        if not self._prefix_caching:
            return Hit([], 0, None)
        max_blocks = (request.num_known - 1) // self.block_size
        blocks, chain = self.index.match(request.token_ids, _extras(request), max_blocks)
        return Hit(blocks, len(blocks) * self.block_size, chain)

    def admit(self, request: Request, hit: Hit) -> bool:
        """Start the request's table with the hit, if the pool has room for all tokens known so far.

        Nothing is allocated yet beyond the hit, but a prompt that would be preempted before its first
        output is not begun.
        """
        pool = self.pool
        revived = sum(pool.ref_counts[block] == 0 for block in hit.blocks)  # free blocks that the hit takes
        if self.blocks_for(request.num_known) - len(hit.blocks) > pool.num_free - revived:
            return False
        # Held from here on, so that the request's own allocations cannot evict what it hit.
        for block in hit.blocks:
            pool.touch(block)
        self._tables[request.request_id] = _Table(list(hit.blocks), hit.chain)
        if hit.blocks:
            self._trace.emit("hit", request.request_id, hit.blocks, tokens=hit.num_tokens)
        return True

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Make the table cover ``num_tokens`` tokens; all the blocks missing, or none and False."""
        table = self._tables[request.request_id].blocks
        missing = -(-num_tokens // self.block_size) - len(table)
        if missing <= 0:
            return True
        if missing > self.pool.num_free:
            return False
        new = [self.pool.allocate() for _ in range(missing)]
        evicted = [block for block in new if block in self.index]
        for block in evicted:
            self.index.remove(block)
        if evicted:
            self._trace.emit("evict", request.request_id, evicted)
        table.extend(new)
        self._trace.emit("allocate", request.request_id, new)
        return True

    def commit(self, request: Request) -> None:
        """Index the blocks that are full of computed tokens and were not before."""
        table = self._tables[request.request_id]
        num_full = request.num_computed // self.block_size
        if table.chain is None or table.chain.length >= num_full:
            return
        extras = _extras(request)
        chain = table.chain
        if not self.index.is_valid(chain):
            # The chain went through another request's equal block, which was evicted since. The
            # table's own blocks hold the same content: they are filed in their place.
            chain = self.index.root(extras)
        added: list[int] = []
        while chain.length < num_full:
            block = table.blocks[chain.length]
            start = chain.length * self.block_size
            was_indexed = block in self.index
            tokens = request.token_ids[start : start + self.block_size]
            chain, displaced = self.index.insert(chain, block, tokens, extras)
            if displaced in added:  # two blocks of this table have one digest
                added.remove(displaced)
            elif displaced is not None and displaced != block:
                self._trace.emit("evict", request.request_id, [displaced])
            if not was_indexed and chain.block == block:
                added.append(block)
        table.chain = chain
        if added:
            self._trace.emit("index", request.request_id, added)

    def rewind(self, request: Request, num_tokens: int) -> None:
        """Shorten the table to ``num_tokens`` tokens: blocks wholly past them are given back."""
        table = self._tables[request.request_id]
        keep = self.blocks_for(num_tokens)
        if table.chain is not None and table.chain.length > num_tokens // self.block_size:
            raise PoolError(
                f"{request.request_id} rewinds to {num_tokens} tokens, but {table.chain.length} of its blocks of "
                f"{self.block_size} are indexed: only tokens never committed can be taken back"
            )
        self._drop(request.request_id, table, keep)

    def release(self, request: Request) -> None:
        """Give back the whole table, if the request has one; its indexed blocks stay cached while free."""
        table = self._tables.pop(request.request_id, None)
        if table is not None:
            self._drop(request.request_id, table, 0)

    def _drop(self, request_id: str, table: _Table, keep: int) -> None:
        # The end of the table first: of a cached prefix, the end is evicted before its beginning.
        dropped = table.blocks[keep:][::-1]
        if not dropped:
            return
        for block in dropped:
            self.pool.release(block, to_front=block not in self.index)
        del table.blocks[keep:]
        self._trace.emit("free", request_id, dropped)

    def check(self) -> None:
        """Raise ``PoolError`` unless pool, index and tables agree."""
        self.pool.check()
        self.index.check()
        held = [0] * self.pool.num_blocks
        for table in self._tables.values():
            for block in table.blocks:
                held[block] += 1
        if held != self.pool.ref_counts:
            raise PoolError(f"blocks are held {held} times by tables, the pool counts {self.pool.ref_counts}")


def _extras(request: Request) -> Extras:
    return () if request.salt is None else (("salt", request.salt),)
