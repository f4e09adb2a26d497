"""What a router is told of a worker's cached prefixes: one event for each block stored and removed.

Blocks are named by the digest of their whole prefix, so whoever hears the events of many workers compares a
prompt's digests with theirs, and needs no tokens for it. Events are numbered without gaps: who finds one
missing asks for ``BlockEvents.snapshot`` and starts from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from minillm.core.blocks import PoolError
from minillm.core.kv.block_keys import BlockKeys, ExtraKey, Hash, digest128
from minillm.core.kv.holds import only_group
from minillm.core.kv_manager import KVManager


class BlockStored(NamedTuple):
    """A block can be hit from now on, by whoever hits all before it."""

    number: int
    digest: bytes
    parent: bytes  # digest of the prefix before it; empty at the start
    token_ids: tuple[int, ...]


class BlockRemoved(NamedTuple):
    """A block can not be hit any more, and nothing behind it until it is stored again."""

    number: int
    digest: bytes


BlockEvent = BlockStored | BlockRemoved


class BlockEvents:
    """Names indexed blocks by their digests and tells subscribers; they are called at once and must not raise."""

    def __init__(self) -> None:
        self.number = 0  # of the last event
        self._listeners: list[Callable[[BlockEvent], None]] = []
        self._stored: dict[int, BlockStored] = {}  # by block

    def subscribe(self, listener: Callable[[BlockEvent], None]) -> None:
        self._listeners.append(listener)

    def snapshot(self) -> list[BlockStored]:
        """What is stored now, under the numbers it came with; events from ``number`` + 1 on change it."""
        return list(self._stored.values())

    def on_index(self, block: int, place: int, keys: BlockKeys) -> None:
        """``block`` was filed under the request's key ``place``."""
        parent = keys.digest(place - 1) if place else b""
        self.number += 1
        event = BlockStored(self.number, keys.digest(place), parent, keys.token_ids(place))
        self._stored[block] = event
        self._tell(event)

    def on_hit(self, block: int) -> None:
        """A hit changes nothing for a router."""

    def on_remove(self, block: int, last: int) -> None:
        """``block`` left the index."""
        self.number += 1
        self._tell(BlockRemoved(self.number, self._stored.pop(block).digest))

    def _tell(self, event: BlockEvent) -> None:
        for listener in self._listeners:
            listener(event)


def block_events(kv: KVManager) -> BlockEvents:
    """The events of a manager's index; asked for the first time while nothing is indexed, for none may be missed.

    ``PoolError`` if that is too late, and with several cache groups: a block of one says nothing of what is hit.
    """
    index = only_group(kv.groups, "events of cached blocks").index
    for observer in kv.observers:
        if isinstance(observer, BlockEvents):
            return observer
    if len(index):
        raise PoolError(f"{len(index)} blocks are indexed already: ask for events before the first request")
    kv.observers.append(events := BlockEvents())
    return events


class PrefixReplica:
    """One worker's cached prefixes, as far as its events came: what an exact router asks."""

    def __init__(self, block_size: int, hash_function: Hash = digest128) -> None:
        """Both are the worker's."""
        self._size = block_size
        self._hash = hash_function
        self._digests: set[bytes] = set()
        self._number = 0

    def __len__(self) -> int:
        return len(self._digests)

    def __contains__(self, digest: object) -> bool:
        """Whether the block of this digest is stored."""
        return digest in self._digests

    def apply(self, event: BlockEvent) -> bool:
        """False, and nothing done, if events before this one are missing. One that was applied already is skipped."""
        if event.number > self._number + 1:
            return False
        if event.number == self._number + 1:
            self._number += 1
            if isinstance(event, BlockStored):
                self._digests.add(event.digest)
            else:
                self._digests.discard(event.digest)  # it may be gone where two prefixes have one digest
        return True

    def restart(self, stored: Iterable[BlockStored], number: int) -> None:
        """Begin anew from a snapshot, taken after event ``number``."""
        self._digests = {event.digest for event in stored}
        self._number = number

    def cached_tokens(self, token_ids: Sequence[int], extras: Sequence[ExtraKey] = ()) -> int:
        """How many first tokens of a prompt the worker holds, in whole blocks."""
        keys = BlockKeys(token_ids, extras, self._size, self._hash)
        num_blocks = len(token_ids) // self._size
        cached = 0
        while cached < num_blocks and keys.digest(cached) in self._digests:
            cached += 1
        return cached * self._size
