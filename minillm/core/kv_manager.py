"""The KV cache of the running requests: cached blocks found, room reserved, full blocks indexed, room given back.

The manager coordinates the cache groups (`minillm.core.kv.cache_group`). A model whose layers all see everything has
one; layers with a window have one of their own, whose blocks go back to the pool while those of the others stay. All
groups' tables cover the same tokens, what is done to a request is done in every group or in none, and a prefix is hit
as far as every group can serve it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minillm.core.blocks import BlockPool, PoolError
from minillm.core.config import IndexName
from minillm.core.hooks import NO_TRACE, Trace
from minillm.core.kv.block_keys import BlockKeys, ExtraKey, Hash, digest128
from minillm.core.kv.cache_group import CacheGroup
from minillm.core.kv.eviction import EvictionName, PriorityEvictor, recompute_cost
from minillm.core.kv.holds import BlockHolds
from minillm.core.kv.index import ROOT, IndexObserver
from minillm.core.kv.prefix import HashIndex
from minillm.core.kv.radix import RadixIndex
from minillm.core.kv.swap import HostBlocks, Swapper
from minillm.core.kv.tables import BlockCopies, GroupHit, Hit
from minillm.core.kv.window import WindowedGroup
from minillm.core.observe.trace import group_trace
from minillm.core.request import Request


class KVManager:
    """Cache groups over one pool. Beside them: ``swap`` (to the host and back), ``holds`` (blocks for transfers)."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_host_blocks: int = 0,
        prefix_caching: bool = True,
        prefix_index: IndexName = "hash",
        eviction: EvictionName = "lru",
        crossover_tokens: float = math.inf,
        window: int | None = None,
        other_windows: Sequence[int | None] = (),
        span_tokens: int | None = None,
        trace: Trace = NO_TRACE,
        hash_function: Hash = digest128,
    ) -> None:
        """``crossover_tokens``: the context over which attention costs what the matrices do (eviction by cost).

        ``window``: tokens that a query of any layer of group 0 sees, its own included; None: all. ``other_windows``:
        the same for groups 1, 2, .... ``span_tokens``: most tokens of one request that are computed at once, over
        all steps in flight; None: as many as it has.
        """
        self.block_size = block_size
        self.groups: list[CacheGroup] = []
        self.observers: list[IndexObserver] = []  # of what is indexed, in whichever group
        evictor = None
        if eviction != "lru":
            cost = recompute_cost(block_size, crossover_tokens) if eviction == "cost" else None
            evictor = PriorityEvictor(num_blocks, cost, self._is_last)
            self.observers.append(evictor)
        self.pool = BlockPool(num_blocks, evictor)
        self.copies = BlockCopies()
        self._hash = hash_function if prefix_caching else None
        self._keys: dict[str, BlockKeys] = {}  # of requests that wait: each is looked up again until it is admitted
        for number, its_window in enumerate((window, *other_windows)):
            index = (RadixIndex if prefix_index == "radix" else HashIndex)(self.pool, block_size)
            its_trace = group_trace(trace, number)
            options = block_size, self.pool, index, self.observers, self.copies, its_trace, self._allocate
            if its_window is None:
                self.groups.append(CacheGroup(*options))
            else:
                self.groups.append(WindowedGroup(its_window, span_tokens, *options))
        self.block_tables = self.groups[0].tables  # for the scheduler's inner loop, to look up and not to change
        self.host = HostBlocks(num_blocks, num_host_blocks)
        self.swap = Swapper(self.host, self.pool, self.copies, self.groups, self._allocate)
        self.holds = BlockHolds(self.pool, self.copies, self.groups, self._allocate, hash_function)

    def table(self, request_id: str) -> list[int]:
        """The live block table of an admitted request in group 0; the null block where a window skips one."""
        return self.block_tables[request_id].blocks

    def lookup(self, request: Request) -> Hit:
        """The cached blocks of a request that waits. Changes nothing.

        At least one token is left to compute, for its logits are what the first output is drawn from. A
        request that wants log-probabilities of its prompt hits nothing: a hit leaves no logits to take them from.
        """
        return self._lookup(request, (request.num_known - 1) // self.block_size)

    def _lookup(self, request: Request, max_blocks: int) -> Hit:
        keys = self._keys_of(request)
        if keys is None or request.wants_prompt_logits:
            return Hit(0, tuple(GroupHit([], ROOT) for _ in self.groups))
        while True:
            hits = [group.match(keys, max_blocks) for group in self.groups]
            shortest = min(len(hit.blocks) for hit in hits)
            if all(len(hit.blocks) == shortest for hit in hits):
                return Hit(shortest * self.block_size, tuple(hits))
            max_blocks = shortest

    def _keys_of(self, request: Request) -> BlockKeys | None:
        if self._hash is None:
            return None
        keys = self._keys.get(request.request_id)
        if keys is None or not keys.are_of(request.token_ids):  # another request may have had the id
            salt = [] if request.salt is None else [ExtraKey("salt", request.salt)]
            keys = BlockKeys(request.token_ids, [*salt, *request.extra_keys], self.block_size, self._hash)
            self._keys[request.request_id] = keys
        return keys

    def needed(self, request: Request, hit: Hit) -> int:
        """Free blocks that the request takes with all tokens known so far, those of the hit included."""
        pairs = zip(self.groups, hit.groups, strict=True)
        return sum(group.needed(hit.num_tokens, request.num_known, its.held) for group, its in pairs)

    def most_blocks(self, num_computed_tokens: int, num_tokens: int) -> int:
        """Most blocks that a request holds at once on its way from ``num_computed_tokens`` tokens to ``num_tokens``."""
        return sum(group.most_blocks(num_computed_tokens, num_tokens) for group in self.groups)

    def num_held(self, request: Request) -> int:
        """Blocks in a running request's tables."""
        tables = (group.tables[request.request_id] for group in self.groups)
        return sum(len(table.blocks) - table.num_skipped for table in tables)

    def admit(self, request: Request, hit: Hit) -> bool:
        """Start the request's tables with the hit, if the pool has room for all tokens known so far.

        Nothing is allocated yet beyond the hit, but a prompt that would be preempted before its first
        output is not begun.
        """
        if self.needed(request, hit) > self.pool.num_free:
            return False
        keys = self._keys.pop(request.request_id, None)
        if keys is not None:
            keys.unpack()
        for group, its in zip(self.groups, hit.groups, strict=True):
            group.start(request, its, keys)
        return True

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Make the tables cover ``num_tokens`` tokens, writable behind those computed or in flight; all or none.

        Blocks missing are allocated, and the block that the next token goes to is replaced by a copy
        if another table holds it. False, and nothing done, where the pool has too few.
        """
        wanted = [group.missing(request, num_tokens) for group in self.groups]
        if sum(missing + is_shared for missing, is_shared in wanted) > self.pool.num_free:
            return False
        for group, (missing, is_shared) in zip(self.groups, wanted, strict=True):
            group.fill(request, missing, is_shared)
        return True

    def commit(self, request: Request) -> None:
        """Index the blocks that are full of computed tokens and were not before; free what no token to come reads."""
        for group in self.groups:
            group.commit(request)

    def fork(self, parent: Request, child: Request) -> None:
        """Start the child's tables with the blocks of all the parent's computed tokens; nothing is copied yet.

        The child's known tokens begin with these, and its ``num_computed_tokens`` is set to the parent's before.
        """
        if child.num_computed_tokens != parent.num_computed_tokens or child.request_id in self.block_tables:
            raise PoolError(
                f"{child.request_id} with {child.num_computed_tokens} computed tokens cannot fork from "
                f"{parent.request_id} with {parent.num_computed_tokens}: they must be equal, and the child without a "
                "table"
            )
        for group in self.groups:
            group.fork(parent, child)

    def rewind(self, request: Request, num_tokens: int) -> None:
        """Shorten the tables to ``num_tokens`` tokens: blocks wholly past them are given back."""
        for group in self.groups:
            group.rewind(request, num_tokens)

    def release(self, request: Request) -> None:
        """Give back all that the request holds, if anything; its indexed blocks stay cached while free."""
        self._keys.pop(request.request_id, None)
        for group in self.groups:
            group.release(request)
        if request.request_id in self.swap.tables:
            self.swap.drop(request)

    def _allocate(self, holder: str, count: int, trace: Trace) -> list[int]:
        new: list[int] = []
        evicted: list[int] = []
        for _ in range(count):
            block = self.pool.allocate()
            new.append(block)
            for group in self.groups:
                if block in group.index:
                    evicted.append(block)
                    group.forget(block)  # before the next is chosen, which may be the block before this one
        if evicted:
            trace.emit("evict", holder, evicted)
        return new

    def _is_last(self, block: int) -> bool:
        return any(block in group.index and group.index.is_last(block) for group in self.groups)
