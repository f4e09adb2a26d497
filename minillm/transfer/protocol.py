"""The protocol by which cached blocks come from another engine or tier: asked for, leased, fetched, acknowledged.

    importer                               source
       | -- Ask(prefix) -------------------> |   finds the blocks that it has of the prefix, and leases them
       | <------------ Offer(lease, count) - |
       | -- Fetch(lease, places) ----------> |   reads under the lease, block by block
       | <---- Block(lease, place, payload) -|
       | -- Done(lease) -------------------> |   all came, or the importer gave up: the lease ends
       | <------------------- Gone(lease) -- |   nothing to lease, or the lease has ended: give up

Either side may hear anything twice, late, out of order or never. The importer repeats what is not answered
until its own time is up, then it does without: its request computes the prefix itself. A lease ends by ``Done``
or by its time, whatever the importer does. What came is taken over when all of it is there, so a prefix is
never half a prefix; a message about a lease or a transfer that has ended is counted and has no effect.
Nothing here waits, sleeps or knows a clock: messages and times come in as arguments, messages go out by ``send``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from minillm.core.kv.block_keys import MAX_TOKEN_ID, BlockKeys, ExtraKey, digest128


class Prefix(NamedTuple):
    """What blocks are asked for by. As much of it counts as fills whole blocks."""

    token_ids: tuple[int, ...]
    extras: tuple[ExtraKey, ...] = ()  # a salt included

    def check(self) -> None:
        """``ValueError`` for what is no token id. Whoever gets a prefix from outside asks before it looks for keys."""
        for token_id in self.token_ids:
            if not isinstance(token_id, int) or not 0 <= token_id <= MAX_TOKEN_ID:
                raise ValueError(f"the prefix has token {token_id!r}: ids are whole numbers from 0 to {MAX_TOKEN_ID:,}")

    def keys(self, block_size: int) -> BlockKeys:
        return BlockKeys(self.token_ids, self.extras, block_size, digest128)


class Ask(NamedTuple):
    sender: str
    transfer: str
    prefix: Prefix
    layout: str  # of the blocks: only equal ones can be exchanged


class Offer(NamedTuple):
    sender: str
    transfer: str
    lease: int
    num_blocks: int  # from the prefix's beginning


class Fetch(NamedTuple):
    sender: str
    transfer: str
    lease: int
    places: tuple[int, ...]


class Block(NamedTuple):
    sender: str
    transfer: str
    lease: int
    place: int
    payload: bytes


class Done(NamedTuple):
    sender: str
    transfer: str
    lease: int


class Gone(NamedTuple):
    sender: str
    transfer: str
    lease: int  # 0: there was none


Message = Ask | Offer | Fetch | Block | Done | Gone
Send = Callable[[str, Message], None]  # to whom, and what


class BlockStore(Protocol):
    """Where blocks are cached: an engine's device memory, or a tier. Slots are the store's own numbers."""

    @property
    def layout(self) -> str:
        """Model, size and type of a block; stores of different layouts exchange nothing."""

    def find(self, prefix: Prefix) -> list[int]:
        """Slots of the prefix's first blocks, as many as there are without a gap."""

    def epoch(self, slot: int) -> int:
        """How often the slot was given other content."""

    def hold(self, holder: str, slots: Sequence[int]) -> bool:
        """Keep the content of these slots for ``holder``. False, and nothing done, if too much is held already."""

    def read(self, slot: int) -> bytes | None:
        """The content of a held slot; None if it is damaged."""

    def reserve(self, holder: str, prefix: Prefix, count: int) -> list[int] | None:
        """Hold what is here of the prefix's first ``count`` blocks, and room for the others.

        Returns the places of the others, or None, and nothing done, without room.
        """

    def is_settled(self, holder: str) -> bool:
        """Whether whatever was to read or write the reserved room before has done so."""

    def fill(self, holder: str, prefix: Prefix, payloads: dict[int, bytes]) -> None:
        """Write the others, by place, and cache them. They stay held.

        ``OSError`` or ``ValueError``, and nothing but whole blocks cached, if they cannot be written.
        """

    def drop(self, holder: str) -> None:
        """Let go of what ``holder`` holds or has reserved, if anything."""
