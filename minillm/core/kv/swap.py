"""Swapping: the K/V of preempted requests in host memory, which host block holds what, and the way out and back.

Host block ids follow the device's, so one list of (source, target) pairs copies either way. A full block
never changes, so its content is named by (device block, epoch): content that is on the host already is
copied once however many tables share it, and content that is still on the device is not copied back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minillm.core.blocks import NULL_BLOCK, BlockPool, PoolError
from minillm.core.kv.cache_group import Allocate, CacheGroup
from minillm.core.kv.tables import BlockCopies, Table
from minillm.core.request import Request


class Content(NamedTuple):
    """What a device block holds, as long as it is not handed out anew."""

    block: int
    epoch: int


class HostBlocks:
    """Reference-counted host blocks ``first .. first + count - 1``; tables of swapped requests hold them."""

    def __init__(self, first: int, count: int) -> None:
        self._first = first
        self._free = list(range(first + count - 1, first - 1, -1))
        self._ref_counts = [0] * count
        self._twins: list[Content | None] = [None] * count  # the device block last known with the same content
        self._host_of: dict[Content, int] = {}  # the way back

    @property
    def num_blocks(self) -> int:
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def store(self, contents: Sequence[Content], num_full: int) -> tuple[list[int], list[tuple[int, int]]] | None:
        """One more table holds these contents, the first ``num_full`` of them full blocks.

        Returns its host blocks and the (source, target) copies that takes; None, and nothing done, without room.
        """
        known = [self._host_of.get(content) for content in contents[:num_full]]
        if len(contents) - sum(host is not None for host in known) > len(self._free):
            return None
        hosts, copies = [], []
        for i, content in enumerate(contents):
            host = known[i] if i < num_full else None
            if host is None:
                host = self._free.pop()
                copies.append((content.block, host))
                if i < num_full:  # a block that still fills up is another content by the time anyone asks
                    self.set_twin(host, content)
            self._ref_counts[host - self._first] += 1
            hosts.append(host)
        return hosts, copies

    def twin(self, host: int) -> Content | None:
        """The device block last known to hold the same; the caller checks that it still does."""
        return self._twins[host - self._first]

    def set_twin(self, host: int, content: Content) -> None:
        """``content`` on the device is a copy of full block ``host``."""
        self._forget_twin(host)
        self._twins[host - self._first] = content
        self._host_of[content] = host

    def release(self, hosts: Sequence[int]) -> None:
        """One table fewer holds these blocks."""
        for host in hosts:
            i = host - self._first
            if self._ref_counts[i] == 0:
                raise PoolError(f"host block {host} is released, but no table holds it")
            self._ref_counts[i] -= 1
            if self._ref_counts[i] == 0:
                self._forget_twin(host)
                self._free.append(host)

    def check(self, tables: Sequence[Sequence[int]]) -> None:
        """Raise ``PoolError`` unless counts, free list and twins agree with the tables of swapped requests."""
        held = [0] * self.num_blocks
        for table in tables:
            for host in table:
                held[host - self._first] += 1
        if held != self._ref_counts:
            raise PoolError(f"host blocks are held {held} times by tables, counted {self._ref_counts}")
        unused = {self._first + i for i, count in enumerate(held) if count == 0}
        if sorted(self._free) != sorted(unused):
            raise PoolError(f"free host blocks {sorted(self._free)}, without a holder {sorted(unused)}")
        twins = {twin: self._first + i for i, twin in enumerate(self._twins) if twin is not None}
        if twins != self._host_of or any(held[host - self._first] == 0 for host in twins.values()):
            raise PoolError(f"twins {twins} of host blocks and the way back {self._host_of} differ")

    def _forget_twin(self, host: int) -> None:
        twin = self._twins[host - self._first]
        if twin is not None:
            self._twins[host - self._first] = None
            del self._host_of[twin]


class SwappedTable(NamedTuple):
    """The K/V of a preempted request in one cache group is in these host blocks."""

    hosts: list[int]  # without those that a window skips
    table: Table  # without its blocks


class Swapper:
    """Tables on the host. What is done to a request is done in every cache group or in none."""

    def __init__(
        self,
        host: HostBlocks,
        pool: BlockPool,
        copies: BlockCopies,
        groups: Sequence[CacheGroup],
        allocate: Allocate,
    ) -> None:
        self.tables: dict[str, list[SwappedTable]] = {}  # by request id, one a group
        self._host = host
        self._pool = pool
        self._copies = copies
        self._groups = groups
        self._allocate = allocate

    def swap_out(self, request: Request) -> bool:
        """Move the K/V of the computed tokens to the host and give the tables back.

        False, and nothing done, where the host has no room. ``num_computed_tokens`` stays as it is. The copies are
        due before the next step, like all of ``KVManager.copies``.
        """
        stored: list[tuple[list[int], list[tuple[int, int]]]] = []
        for group in self._groups:
            group.free_skipped_blocks(request)
            found = self._store(group, request)
            if found is None:
                for hosts, _ in stored:
                    self._host.release(hosts)
                return False
            stored.append(found)
        pairs = zip(self._groups, stored, strict=True)
        self.tables[request.request_id] = [self._leave(group, request, *found) for group, found in pairs]
        return True

    def _store(self, group: CacheGroup, request: Request) -> tuple[list[int], list[tuple[int, int]]] | None:
        """Host blocks for what the request computed, and the copies to make; None without room."""
        table, epochs = group.tables[request.request_id], self._pool.epochs
        num_blocks = -(-request.num_computed_tokens // group.block_size)
        contents = [Content(block, epochs[block]) for block in table.blocks[table.num_skipped : num_blocks]]
        return self._host.store(contents, request.num_computed_tokens // group.block_size - table.num_skipped)

    def _leave(
        self, group: CacheGroup, request: Request, hosts: list[int], copies: list[tuple[int, int]]
    ) -> SwappedTable:
        """Give the table up for the stored blocks."""
        for source, target in copies:
            self._copies.add(source, target)
        table, copied = group.tables[request.request_id], len(copies) * group.block_size
        group.trace.emit("swap_out", request.request_id, hosts, copied, request.num_computed_tokens)
        kept = Table([], table.chain, table.keys, table.num_skipped)
        group.release(request)
        return SwappedTable(hosts, kept)

    def swap_in(self, request: Request) -> bool:
        """Bring swapped tables back, if the pool has room for all tokens known so far; else False, and nothing done.

        A full block that is still on the device, held or cached, joins the table as it is.
        """
        needed, returning = 0, []
        for group, swapped in zip(self._groups, self.tables[request.request_id], strict=True):
            blocks = [self._still_there(group, host) for host in swapped.hosts]
            found = [block for block in blocks if block is not None]
            needed += group.needed(request.num_computed_tokens, request.num_known, found)
            returning.append((group, swapped, blocks, found))
        if needed > self._pool.num_free:
            return False
        for *_, found in returning:  # before anything is allocated, which could evict them
            for block in found:
                self._pool.touch(block)
        for group, swapped, blocks, _ in returning:
            self._return(group, request, swapped, blocks)
        del self.tables[request.request_id]
        return True

    def _return(self, group: CacheGroup, request: Request, swapped: SwappedTable, stays: Sequence[int | None]) -> None:
        """Put a table together from the blocks that stayed and fresh ones, to be copied to."""
        fresh = self._allocate(request.request_id, stays.count(None), group.trace)
        copied, num_skipped = iter(fresh), swapped.table.num_skipped
        blocks = [next(copied) if block is None else block for block in stays]
        num_full = request.num_computed_tokens // group.block_size - num_skipped
        for i, (host, block) in enumerate(zip(swapped.hosts, blocks, strict=True)):
            if stays[i] is None:
                self._copies.add(host, block)
                if i < num_full:
                    self._host.set_twin(host, Content(block, self._pool.epochs[block]))
        self._host.release(swapped.hosts)
        swapped.table.blocks = blocks = [*[NULL_BLOCK] * num_skipped, *blocks]
        group.tables[request.request_id] = swapped.table
        tokens = len(fresh) * group.block_size
        group.trace.emit("swap_in", request.request_id, blocks, tokens, request.num_computed_tokens)

    def _still_there(self, group: CacheGroup, host: int) -> int | None:
        """The device block with the content of a host block. Free and not cached, it may be overwritten any time."""
        twin = self._host.twin(host)
        if twin is None or self._pool.epochs[twin.block] != twin.epoch:
            return None
        return twin.block if self._pool.ref_counts[twin.block] or twin.block in group.index else None

    def drop(self, request: Request) -> None:
        """Give up the host blocks of a swapped request that does not come back."""
        for group, swapped in zip(self._groups, self.tables.pop(request.request_id), strict=True):
            self._host.release(swapped.hosts)
            group.trace.emit("host_free", request.request_id, swapped.hosts)

    def swapped_by(self, copies: Sequence[tuple[int, int]]) -> list[str]:
        """Ids of swapped requests that need one of these copies: lost, if the backend could not make it."""
        targets = {target for _, target in copies}
        return [
            request_id
            for request_id, tables in self.tables.items()
            if any(targets.intersection(swapped.hosts) for swapped in tables)
        ]
