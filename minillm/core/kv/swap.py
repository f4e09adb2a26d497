"""Host memory for the K/V of preempted requests: which host block holds what, and where the same is on the device.

Host block ids follow the device's, so one list of (source, target) pairs copies either way. A full block
never changes, so its content is named by (device block, epoch): content that is on the host already is
copied once however many tables share it, and content that is still on the device is not copied back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minillm.core.blocks import PoolError


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
