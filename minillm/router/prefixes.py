"""What a router knows of the prefixes that workers have cached: guessed from what it sent, or heard from their indexes.

Both name a block by the digest of its whole prefix, as the workers' own index does, so a prompt is hashed once
for all workers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from typing import Protocol

from minillm.core.kv.block_keys import BlockKeys, ExtraKey, Hash, digest128
from minillm.core.kv.events import BlockEvent, BlockEvents, BlockStored, PrefixReplica


class Prefixes(Protocol):
    """Cached prefixes of workers, by their names; of an unknown worker, nothing is cached."""

    def cached_tokens(self, token_ids: Sequence[int], extras: Sequence[ExtraKey], workers: Sequence[str]) -> list[int]:
        """For each worker, how many first tokens of the prompt it has, in whole blocks."""

    def on_sent(self, token_ids: Sequence[int], extras: Sequence[ExtraKey], worker: str) -> None:
        """The prompt goes to ``worker``."""

    def on_lost(self, worker: str) -> None:
        """``worker`` has lost its cache."""


class SentPrefixes:
    """Approximate: a worker has what it was sent, until it was sent too much since.

    No word from the workers is needed. It does not see what they evict early, nor the outputs that they cache.
    """

    def __init__(self, block_size: int, max_blocks: int, hash_function: Hash = digest128) -> None:
        """``max_blocks`` are remembered of each worker, those used last: take the size of its pool."""
        _check_size(block_size)
        if max_blocks < 1:
            raise ValueError(f"max_blocks is {max_blocks}: take the number of blocks of a worker's pool")
        self._size = block_size
        self._max_blocks = max_blocks
        self._hash = hash_function
        self._sent: dict[str, OrderedDict[bytes, None]] = {}

    def cached_tokens(self, token_ids: Sequence[int], extras: Sequence[ExtraKey], workers: Sequence[str]) -> list[int]:
        keys = BlockKeys(token_ids, extras, self._size, self._hash)
        nothing: OrderedDict[bytes, None] = OrderedDict()
        return [
            _known_blocks(keys, len(token_ids) // self._size, self._sent.get(w, nothing)) * self._size for w in workers
        ]

    def on_sent(self, token_ids: Sequence[int], extras: Sequence[ExtraKey], worker: str) -> None:
        keys, sent = BlockKeys(token_ids, extras, self._size, self._hash), self._sent.setdefault(worker, OrderedDict())
        # The end first: like the workers, forget the end of a prefix before its beginning.
        for block in reversed(range(len(token_ids) // self._size)):
            sent[keys.digest(block)] = None
            sent.move_to_end(keys.digest(block))
        while len(sent) > self._max_blocks:
            sent.popitem(last=False)

    def on_lost(self, worker: str) -> None:
        self._sent.pop(worker, None)


class HeardPrefixes:
    """Exact, as far as events have come: a replica of each worker's index.

    A replica that misses an event counts for nothing until it is restarted from a snapshot.
    """

    def __init__(self, block_size: int, hash_function: Hash = digest128) -> None:
        """Both are the workers'."""
        _check_size(block_size)
        self._size = block_size
        self._hash = hash_function
        self._replicas: dict[str, PrefixReplica] = {}
        self._behind: dict[str, None] = {}  # in order, where a set has none

    def follow(self, worker: str, events: BlockEvents) -> None:
        """Hear a worker of the same process: from now on, and what it has stored so far."""
        self.restart(worker, events.snapshot(), events.number)
        events.subscribe(lambda event: self.hear(worker, event))

    def hear(self, worker: str, event: BlockEvent) -> None:
        """An event came: one that came before is skipped, one that shows a gap puts the worker in ``behind``."""
        replica = self._replicas.setdefault(worker, PrefixReplica(self._size, self._hash))
        if not replica.apply(event):
            self._behind[worker] = None

    @property
    def behind(self) -> list[str]:
        """Workers whose snapshot is needed."""
        return list(self._behind)

    def restart(self, worker: str, stored: Iterable[BlockStored], number: int) -> None:
        """A snapshot came, taken after event ``number``."""
        replica = self._replicas[worker] = PrefixReplica(self._size, self._hash)
        replica.restart(stored, number)
        self._behind.pop(worker, None)

    def cached_tokens(self, token_ids: Sequence[int], extras: Sequence[ExtraKey], workers: Sequence[str]) -> list[int]:
        keys = BlockKeys(token_ids, extras, self._size, self._hash)
        num_blocks = len(token_ids) // self._size
        return [
            0
            if worker in self._behind or worker not in self._replicas
            else _known_blocks(keys, num_blocks, self._replicas[worker]) * self._size
            for worker in workers
        ]

    def on_sent(self, token_ids: Sequence[int], extras: Sequence[ExtraKey], worker: str) -> None:
        """The worker's own events say what it stores."""

    def on_lost(self, worker: str) -> None:
        self._replicas.pop(worker, None)
        self._behind.pop(worker, None)


def _known_blocks(keys: BlockKeys, num_blocks: int, known: Container[bytes]) -> int:
    """How many first blocks are known: one behind a gap cannot be hit."""
    count = 0
    while count < num_blocks and keys.digest(count) in known:
        count += 1
    return count


def _check_size(block_size: int) -> None:
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}: take that of the workers, 1 or more")
