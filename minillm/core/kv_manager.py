"""A request's block table: cached blocks hit, room reserved, full blocks indexed, room given back.

A table covers ceil(tokens / block_size) blocks. It is only appended to, except by ``rewind`` and
``release``, which drop blocks from its end, by a copy on write of its last block, and where a window leaves
blocks behind: the null block takes their place (`minillm.core.kv.window`).

A block that another table holds is never written. Hits are full blocks and end before the last token, so
their tables go on in a fresh block. A fork shares the last, partly filled block too: whoever writes to it
while others hold it takes a copy first, and the last holder keeps the block itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minillm.core.blocks import NULL_BLOCK, BlockPool, PoolError
from minillm.core.config import IndexName
from minillm.core.kv.block_keys import BlockKeys, ExtraKey, Hash, digest128
from minillm.core.kv.events import BlockEvents
from minillm.core.kv.eviction import EvictionName, PriorityEvictor, recompute_cost
from minillm.core.kv.holds import BlockHolds
from minillm.core.kv.index import ROOT, Link, PrefixIndex
from minillm.core.kv.prefix import HashIndex
from minillm.core.kv.radix import RadixIndex
from minillm.core.kv.swap import Content, HostBlocks
from minillm.core.kv.tables import BlockCopies, Hit, SwappedTable, Table
from minillm.core.kv.window import Window
from minillm.core.observe.trace import GroupTrace, Trace
from minillm.core.request import Request


class KVManager:
    """Block tables of the running requests, over one pool and one prefix index."""

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
        span_tokens: int | None = None,
        trace: Trace | None = None,
        hash_function: Hash = digest128,
        beside: KVManager | None = None,
    ) -> None:
        """``crossover_tokens``: the context over which attention costs what the matrices do (eviction by cost).

        ``window``: tokens that a query of any layer sees, its own included; None: all. ``span_tokens``: most tokens
        of one request that are computed at once, over all steps in flight; None: as many as it has. ``beside``: a
        manager of other layers, whose pool, host blocks, copies and trace this one shares.
        """
        self.block_size = block_size
        self._evictor: PriorityEvictor | None = None
        if eviction != "lru":
            cost = recompute_cost(block_size, crossover_tokens) if eviction == "cost" else None
            self._evictor = PriorityEvictor(num_blocks, cost, self._is_last)
        self.pool = BlockPool(num_blocks, self._evictor)
        self.host = HostBlocks(num_blocks, num_host_blocks)
        self._copies = BlockCopies()
        self._trace = trace if trace is not None else Trace(enabled=False)
        self._sharing = [self]  # the managers over one pool, one for each layer group
        self.others: Sequence[KVManager] = ()  # see `minillm.core.kv.layer_groups`
        if beside is not None:
            self._evictor, self.pool, self.host = beside._evictor, beside.pool, beside.host
            self._copies, self._sharing = beside._copies, beside._sharing
            self._trace = GroupTrace(beside._trace, len(self._sharing))
            self._sharing.append(self)
        self.index: PrefixIndex = (RadixIndex if prefix_index == "radix" else HashIndex)(self.pool, block_size)
        self.window = None if window is None else Window(window, block_size, span_tokens)
        self._hash = hash_function
        self._prefix_caching = prefix_caching
        self._tables: dict[str, Table] = {}
        self.block_tables = self._tables  # for the scheduler's inner loop, to look up and not to change
        self._swapped: dict[str, SwappedTable] = {}
        self._keys: dict[str, BlockKeys] = {}  # of requests that wait: each is looked up again until it is admitted
        self._events: BlockEvents | None = None
        self.holds = BlockHolds(self.pool, self.index, self._copies, self._trace, self._allocate, self._file)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def table(self, request_id: str) -> list[int]:
        """The live block table of an admitted request; the null block where a window has left one behind."""
        return self._tables[request_id].blocks

    @property
    def tables(self) -> dict[str, list[int]]:
        return {request_id: table.blocks for request_id, table in self._tables.items()}

    def lookup(self, request: Request) -> Hit:
        """The cached blocks of a request that waits. Changes nothing.

        At least one token is left to compute, for its logits are what the first output is drawn from. A
        request that wants log-probabilities of its prompt hits nothing: a hit leaves no logits to take them from.
        """
        return self._lookup(request, (request.num_known - 1) // self.block_size)

    def _lookup(self, request: Request, max_blocks: int) -> Hit:
        if not self._prefix_caching:
            return Hit([], 0, None)
        keys = self._keys.get(request.request_id)
        if keys is None or not keys.are_of(request.token_ids):  # another request may have had the id
            keys = self._keys[request.request_id] = self._new_keys(request)
        if request.wants_prompt_logits:
            return Hit([], 0, ROOT)
        reach = None if self.window is None else self.window.reach()
        blocks, chain = self.index.match(keys, max_blocks, reach)
        num_gone = 0 if reach is None else max(0, len(blocks) - reach)
        return Hit(blocks, len(blocks) * self.block_size, chain, num_gone)

    def shortage(self, request: Request, hit: Hit) -> int:
        """Blocks that the pool lacks for all tokens known so far; 0 or less where there is room."""
        return self._needed(request, hit) - self.pool.num_free

    def _needed(self, request: Request, hit: Hit) -> int:
        """Free blocks that the request takes, those of the hit included."""
        held = hit.blocks[hit.num_gone :] if hit.num_gone else hit.blocks
        return self._free_for(request, hit.num_tokens, held)

    def _free_for(self, request: Request, num_computed_tokens: int, found: Sequence[int]) -> int:
        """Free blocks that a table takes which begins with ``num_computed_tokens`` tokens and the blocks ``found``."""
        ref_counts = self.pool.ref_counts
        revived = sum(ref_counts[block] == 0 for block in found)
        return KVManager.most_blocks(self, num_computed_tokens, request.num_known) - len(found) + revived

    def most_blocks(self, num_computed_tokens: int, num_tokens: int) -> int:
        """Most blocks that a request holds at once on its way from ``num_computed_tokens`` tokens to ``num_tokens``."""
        if self.window is None:
            return self.blocks_for(num_tokens)
        return self.window.most_blocks(num_computed_tokens, num_tokens)

    def num_held(self, request: Request) -> int:
        """Blocks in a running request's table."""
        table = self._tables[request.request_id]
        return len(table.blocks) - table.num_gone

    def admit(self, request: Request, hit: Hit) -> bool:
        """Start the request's table with the hit, if the pool has room for all tokens known so far.

        Nothing is allocated yet beyond the hit, but a prompt that would be preempted before its first
        output is not begun.
        """
        if self.shortage(request, hit) > 0:
            return False
        self._start(request, hit)
        return True

    def _start(self, request: Request, hit: Hit) -> None:
        # Held from here on, so that the request's own allocations cannot evict what it hit.
        for block in hit.blocks[hit.num_gone :]:
            self.pool.touch(block)
            if self._evictor is not None:
                self._evictor.on_hit(block)
        keys = self._keys.pop(request.request_id, None)
        if keys is not None:
            keys.unpack()
        self._tables[request.request_id] = Table(list(hit.blocks), hit.chain, keys, hit.num_gone)
        if hit.blocks:
            self._trace.emit("hit", request.request_id, hit.blocks, tokens=hit.num_tokens)

    def fork(self, parent: Request, child: Request) -> None:
        """Start the child's table with the blocks of all the parent's computed tokens; nothing is copied yet.

        The child's known tokens begin with these, and its ``num_computed_tokens`` is set to the parent's before.
        """
        if child.num_computed_tokens != parent.num_computed_tokens or child.request_id in self._tables:
            raise PoolError(
                f"{child.request_id} with {child.num_computed_tokens} computed tokens cannot fork from "
                f"{parent.request_id} with {parent.num_computed_tokens}: they must be equal, and the child without a "
                "table"
            )
        table = self._tables[parent.request_id]
        shared = table.blocks[: self.blocks_for(parent.num_computed_tokens)]  # what lies behind is for tokens in flight
        for block in shared[table.num_gone :]:
            self.pool.touch(block)
        keys = table.keys and table.keys.forked(child.token_ids, table.chain.length if table.chain else 0)
        self._tables[child.request_id] = Table(shared, table.chain, keys, table.num_gone)
        self._trace.emit(
            "fork", child.request_id, shared, child.num_known, child.num_computed_tokens, note=parent.request_id
        )

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Make the table cover ``num_tokens`` tokens, writable behind those computed or in flight; all or none.

        Blocks missing are allocated, and the block that the next token goes to is replaced by a copy
        if another table holds it. False, and nothing done, where the pool has too few.
        """
        missing, is_shared = self._missing(request, num_tokens)
        if missing + is_shared > self.pool.num_free:
            return False
        self._fill(request, missing, is_shared)
        return True

    def _missing(self, request: Request, num_tokens: int) -> tuple[int, bool]:
        """Blocks that a table lacks behind its end, and whether a copy is due of the one that is written next."""
        table = self._tables[request.request_id].blocks
        missing = max(0, -(-num_tokens // self.block_size) - len(table))
        written = (request.num_computed_tokens + request.num_in_flight) // self.block_size
        return missing, written < len(table) and self.pool.ref_counts[table[written]] > 1

    def _fill(self, request: Request, missing: int, is_shared: bool) -> None:
        owner = self._tables[request.request_id]
        table = owner.blocks
        if is_shared:
            written = (request.num_computed_tokens + request.num_in_flight) // self.block_size
            source, [target] = table[written], self._allocate(request.request_id, 1)
            # A new list: plans in flight go on reading the old one.
            owner.blocks = table = [*table[:written], target, *table[written + 1 :]]
            self._copies.add(source, target)
            self.pool.release(source, to_front=False)  # held by others, so it is not free now
            self._trace.emit("copy", request.request_id, (source, target))
        if missing:
            new = self._allocate(request.request_id, missing)
            table.extend(new)
            self._trace.emit("allocate", request.request_id, new)

    def _allocate(self, holder: str, count: int) -> list[int]:
        new: list[int] = []
        evicted: list[int] = []
        for _ in range(count):
            block = self.pool.allocate()
            new.append(block)
            for owner in self._sharing:
                if block not in owner.index:
                    continue
                evicted.append(block)  # out of the index before the next is chosen, which may be the one before it
                last = owner.index.remove(block)
                if owner._events is not None:
                    owner._events.on_remove(block)
                if self._evictor is not None:
                    self._evictor.on_last(last)
        if evicted:
            self._trace.emit("evict", holder, evicted)
        return new

    def is_indexed(self, block: int) -> bool:
        """Whether a request may hit the block."""
        return any(block in one.index for one in self._sharing)

    def _is_last(self, block: int) -> bool:
        return any(block in one.index and one.index.is_last(block) for one in self._sharing)

    def take_copies(self) -> list[tuple[int, int]]:
        """Copies (source, target) that are due before the next step runs, for ``Backend.copy_blocks``."""
        return self._copies.take()

    def return_copies(self, copies: Sequence[tuple[int, int]]) -> None:
        """What ``take_copies`` returned last is not carried out yet: it is due before the next step."""
        self._copies.put_back(copies)

    def awaits_copy(self, request: Request) -> bool:
        """Whether blocks of the table get their content only when what ``take_copies`` returns is carried out."""
        return self._copies.go_to(self._tables[request.request_id].blocks)

    def commit(self, request: Request) -> None:
        """Index the blocks that are full of computed tokens and were not before; leave behind what none will read."""
        table = self._tables[request.request_id]
        self._index(request, table)
        if self.window is not None:
            self._leave_behind(request, table, self.window)

    def _leave_behind(self, request: Request, table: Table, window: Window) -> None:
        # None of the tokens computed is computed again: a rejected draft was never among them, a plan in flight
        # computes later ones, and after a preemption without swapping a new table begins.
        first, end = table.num_gone, window.num_gone(request.num_computed_tokens)
        if end <= first:
            return
        left = table.blocks[first:end]
        table.blocks[first:end] = [NULL_BLOCK] * (end - first)  # in plans in flight as well: they read behind it
        table.num_gone = end
        for block in left:  # of what stays cached, the beginning is evicted first: hits reach back from the end
            self.pool.release(block, to_front=block not in self.index)
        self._trace.emit("leave", request.request_id, left)

    def _index(self, request: Request, table: Table) -> None:
        num_full = request.num_computed_tokens // self.block_size
        chain, keys = table.chain, table.keys
        if chain is None or keys is None or chain.length >= num_full:
            return
        if not self.index.is_valid(chain):
            # The chain went through another request's equal block, which was evicted since. The
            # table's own blocks hold the same content: they are filed in their place.
            if table.num_gone:  # not all of them are here any more
                table.chain = None
                return
            chain = ROOT
        added: list[int] = []
        while chain.length < num_full:
            block, place = table.blocks[chain.length], chain.length
            filed = self._file(chain, block, place, keys)
            if filed is None:  # nothing after it can be found either
                table.chain = None
                break
            chain, is_new = filed
            if is_new:
                added.append(block)
        else:
            table.chain = chain
        if added:
            self._trace.emit("index", request.request_id, added)

    def _file(self, chain: Link, block: int, place: int, keys: BlockKeys) -> tuple[Link, bool] | None:
        """Index a block behind ``chain``, and tell who has to know if that is new."""
        filed = self.index.insert(chain, block, keys)
        if filed is not None and filed[1]:
            if self._evictor is not None:
                self._evictor.on_index(block, place)
            if self._events is not None:
                self._events.on_index(block, place, keys)
        return filed

    def events(self) -> BlockEvents:
        """Events of the index, for routers; asked for the first time while nothing is indexed: none may be missed."""
        if self._events is None:
            if len(self.index):
                raise PoolError(
                    f"{len(self.index)} blocks are indexed already: ask for events before the first request"
                )
            self._events = BlockEvents()
        return self._events

    def find(self, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey]) -> list[int]:
        """The cached blocks of a prefix, as many as there are from its beginning. Changes nothing."""
        keys = BlockKeys(token_ids, extra_keys, self.block_size, self._hash)
        return self.index.match(keys, len(token_ids) // self.block_size)[0]

    def file_held(self, holder: str, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey]) -> None:
        """What ``holder`` holds are the first blocks of this prefix, whole by now: cache them."""
        self.holds.file(holder, BlockKeys(token_ids, extra_keys, self.block_size, self._hash))

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
        """Give back all that the request holds, if anything; its indexed blocks stay cached while free."""
        self._keys.pop(request.request_id, None)
        table = self._tables.pop(request.request_id, None)
        if table is not None:
            self._drop(request.request_id, table, 0)
        swapped = self._swapped.pop(request.request_id, None)
        if swapped is not None:
            self.host.release(swapped.hosts)
            self._trace.emit("host_free", request.request_id, swapped.hosts)

    def is_swapped(self, request: Request) -> bool:
        """Whether the request's computed tokens are on the host: it comes back by ``swap_in``, not ``admit``."""
        return request.request_id in self._swapped

    def swap_out(self, request: Request) -> bool:
        """Move the K/V of the computed tokens to the host and give the table back.

        False, and nothing done, where the host has no room. ``num_computed_tokens`` stays as it is. The copies are
        due before the next step, like all of ``take_copies``.
        """
        stored = self._store(request)
        if stored is not None:
            self._leave(request, *stored)
        return stored is not None

    def _store(self, request: Request) -> tuple[list[int], list[tuple[int, int]]] | None:
        """Host blocks for what the request computed, and the copies to make; None without room."""
        table = self._tables[request.request_id]
        if self.window is not None:
            self._leave_behind(request, table, self.window)
        epochs, gone = self.pool.epochs, table.num_gone
        contents = [Content(b, epochs[b]) for b in table.blocks[gone : self.blocks_for(request.num_computed_tokens)]]
        return self.host.store(contents, request.num_computed_tokens // self.block_size - gone)

    def _leave(self, request: Request, hosts: list[int], copies: list[tuple[int, int]]) -> None:
        """Give the table up for the stored blocks."""
        table = self._tables[request.request_id]
        for source, target in copies:
            self._copies.add(source, target)
        kept = Table([], table.chain, table.keys, table.num_gone)
        self._swapped[request.request_id] = SwappedTable(hosts, kept, request.num_computed_tokens)
        self._trace.emit(
            "swap_out", request.request_id, hosts, len(copies) * self.block_size, request.num_computed_tokens
        )
        self._drop(request.request_id, self._tables.pop(request.request_id), 0)

    def swap_in(self, request: Request) -> bool:
        """Bring a swapped table back, if the pool has room for all tokens known so far; else False, and nothing done.

        A full block that is still on the device, held or cached, joins the table as it is.
        """
        stays, needed = self._returning(request)
        if needed > self.pool.num_free:
            return False
        self._hold(stays)
        self._return(request, stays)
        return True

    def _returning(self, request: Request) -> tuple[list[int | None], int]:
        """What is still on the device of a swapped table, and the free blocks that this and the rest take."""
        swapped = self._swapped[request.request_id]
        stays = [self._still_there(host) for host in swapped.hosts]
        found = [block for block in stays if block is not None]
        return stays, self._free_for(request, swapped.num_tokens, found)

    def _hold(self, stays: list[int | None]) -> None:
        """Before anything is allocated, which could evict them."""
        for block in stays:
            if block is not None:
                self.pool.touch(block)

    def _return(self, request: Request, stays: list[int | None]) -> None:
        swapped, pool = self._swapped[request.request_id], self.pool
        fresh = self._allocate(request.request_id, stays.count(None))
        copied = iter(fresh)
        blocks = [next(copied) if block is None else block for block in stays]
        gone = swapped.table.num_gone
        num_full = swapped.num_tokens // self.block_size - gone
        for i, (host, block) in enumerate(zip(swapped.hosts, blocks, strict=True)):
            if stays[i] is None:
                self._copies.add(host, block)
                if i < num_full:
                    self.host.set_twin(host, Content(block, pool.epochs[block]))
        del self._swapped[request.request_id]
        self.host.release(swapped.hosts)
        swapped.table.blocks = blocks = [*[NULL_BLOCK] * gone, *blocks]
        self._tables[request.request_id] = swapped.table
        self._trace.emit("swap_in", request.request_id, blocks, len(fresh) * self.block_size, swapped.num_tokens)

    def _still_there(self, host: int) -> int | None:
        """The device block with the content of a host block. Free and not cached, it may be overwritten any time."""
        twin = self.host.twin(host)
        if twin is None or self.pool.epochs[twin.block] != twin.epoch:
            return None
        return twin.block if self.pool.ref_counts[twin.block] or twin.block in self.index else None

    def swapped_by(self, copies: Sequence[tuple[int, int]]) -> list[str]:
        """Ids of swapped requests that need one of these copies: lost, if the backend could not make it."""
        targets = {target for _, target in copies}
        return [request_id for request_id, swapped in self._swapped.items() if targets.intersection(swapped.hosts)]

    def _drop(self, request_id: str, table: Table, keep: int) -> None:
        # The end of the table first: of a cached prefix, the end is evicted before its beginning.
        dropped = table.blocks[keep:][::-1]
        if not dropped:
            return
        for block in dropped:
            if block != NULL_BLOCK:
                self.pool.release(block, to_front=block not in self.index)
        table.blocks = table.blocks[:keep]  # a new list: plans in flight go on reading the old one
        self._trace.emit("free", request_id, dropped)

    def check(self) -> None:
        """Raise ``PoolError`` unless pool, index and tables agree."""
        self.pool.check()
        held = [0] * self.pool.num_blocks
        for one in self._sharing:
            one._count(held)
        for block in self.holds.held():
            held[block] += 1
        if held != self.pool.ref_counts:
            raise PoolError(
                f"blocks are held {held} times by tables and others, the pool counts {self.pool.ref_counts}"
            )
        self.host.check([swapped.hosts for one in self._sharing for swapped in one._swapped.values()])

    def _count(self, held: list[int]) -> None:
        """Add what the tables hold."""
        self.index.check()
        for request_id, table in self._tables.items():
            if any(table.blocks[: table.num_gone]) or not all(table.blocks[table.num_gone :]):
                raise PoolError(f"{request_id} has left {table.num_gone} blocks behind, its table is {table.blocks}")
            for block in table.blocks[table.num_gone :]:
                held[block] += 1
        if both := self._tables.keys() & self._swapped.keys():
            raise PoolError(f"{sorted(both)} have a table on the device and one on the host")

    def _new_keys(self, request: Request) -> BlockKeys:
        salt = [] if request.salt is None else [ExtraKey("salt", request.salt)]
        return BlockKeys(request.token_ids, [*salt, *request.extra_keys], self.block_size, self._hash)
