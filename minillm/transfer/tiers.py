"""Cached blocks outside the device: tiers of host memory and of disk.

A tier is a ``BlockStore``: a fixed number of slots, each in one of three states.

    FREE -> FILLING (reserved for one transfer, content not whole) -> READY (found by its prefix) -> FREE

A slot that is held by anyone is not given other content; whenever it is, its epoch rises, so (slot, epoch)
names one content. Of READY slots without a holder the one used longest ago goes first. Blocks are known by the
SHA-256 digest of their whole prefix, so equal names mean equal content on all tiers and machines.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from minillm.core.blocks import PoolError
from minillm.transfer.protocol import Prefix


class Medium(Protocol):
    """What keeps the bytes of a tier's slots."""

    def write(self, slot: int, payload: bytes) -> None:
        """Replace the slot's content."""

    def read(self, slot: int) -> bytes | None:
        """What was written last; None if it is damaged or gone."""


class HostMedium:
    """Host memory."""

    def __init__(self) -> None:
        self._payloads: dict[int, bytes] = {}

    def write(self, slot: int, payload: bytes) -> None:
        self._payloads[slot] = payload

    def read(self, slot: int) -> bytes | None:
        return self._payloads.get(slot)


class DiskMedium:
    """One file for each slot of a folder: a SHA-256 of the content, then the content. Replaced whole, never in part."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def write(self, slot: int, payload: bytes) -> None:
        new = self._path(slot).with_suffix(".new")
        new.write_bytes(hashlib.sha256(payload).digest() + payload)
        os.replace(new, self._path(slot))

    def read(self, slot: int) -> bytes | None:
        try:
            content = self._path(slot).read_bytes()
        except OSError:
            return None
        digest, payload = content[:32], content[32:]
        return payload if hashlib.sha256(payload).digest() == digest else None

    def _path(self, slot: int) -> Path:
        return self._folder / f"{slot}.kv"


class SlotState(Enum):
    FREE = "free"
    FILLING = "filling"
    READY = "ready"


@dataclass(slots=True)
class _Slot:
    state: SlotState = SlotState.FREE
    epoch: int = 0
    digest: bytes = b""
    holders: list[str] = field(default_factory=list)


class SlotStore:
    """A tier of ``num_slots`` blocks on a medium. At most ``max_held`` of them are held at a time."""

    def __init__(
        self, medium: Medium, num_slots: int, block_size: int, layout: str, *, max_held: int | None = None
    ) -> None:
        """``layout`` is that of the device whose blocks come here. ``ValueError`` for a tier without slots."""
        if num_slots < 1:
            raise ValueError(f"a tier of {num_slots} slots keeps nothing: take 1 or more, or leave the tier out")
        self._medium = medium
        self._block_size = block_size
        self._layout = layout
        self._max_held = num_slots if max_held is None else max_held
        self._slots = [_Slot() for _ in range(num_slots)]
        self._ready: OrderedDict[bytes, int] = OrderedDict()  # digest -> slot, the one used longest ago first
        self._held: dict[str, list[int]] = {}
        self._rooms: dict[str, dict[int, int]] = {}  # transfer -> place -> slot that is being filled

    @property
    def layout(self) -> str:
        return self._layout

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    def find(self, prefix: Prefix) -> list[int]:
        slots = []
        for digest in self._digests(prefix):
            if digest not in self._ready:
                break
            slots.append(self._ready[digest])
        # The end first: of a prefix, the end goes before its beginning.
        for slot in reversed(slots):
            self._ready.move_to_end(self._slots[slot].digest)
        return slots

    def epoch(self, slot: int) -> int:
        return self._slots[slot].epoch

    def hold(self, holder: str, slots: Sequence[int]) -> bool:
        if holder in self._held:
            raise PoolError(f"{holder} holds {len(self._held[holder])} slots already: drop them first")
        if len(self._all_held().union(slots)) > self._max_held:
            return False
        self._held[holder] = list(slots)
        for slot in slots:
            self._slots[slot].holders.append(holder)
        return True

    def read(self, slot: int) -> bytes | None:
        payload = self._medium.read(slot)
        digest = self._slots[slot].digest
        if payload is None and self._ready.get(digest) == slot:  # another slot may have the same by now
            del self._ready[digest]  # found no more; free once nobody holds it
        return payload

    def reserve(self, holder: str, prefix: Prefix, count: int) -> list[int] | None:
        digests = self._digests(prefix)[:count]
        here = [self._ready[digest] for digest in digests if digest in self._ready]
        missing = [place for place, digest in enumerate(digests) if digest not in self._ready]
        if not self.hold(holder, here):
            return None
        room = self._room(len(missing))
        if room is None:
            self.drop(holder)
            return None
        self._rooms[holder] = dict(zip(missing, room, strict=True))
        for slot in room:
            self._slots[slot].state = SlotState.FILLING
            self._slots[slot].holders.append(holder)
        self._held[holder] += room
        return missing

    def is_settled(self, holder: str) -> bool:
        """Always: what is written here is written when it comes, in the order in which it comes."""
        return True

    def fill(self, holder: str, prefix: Prefix, payloads: dict[int, bytes]) -> None:
        digests, room = self._digests(prefix), self._rooms.pop(holder)
        if room.keys() != payloads.keys():
            raise PoolError(f"{holder} reserved room for blocks {sorted(room)}, {sorted(payloads)} came")
        for place in sorted(room, reverse=True):
            slot = room[place]
            self._medium.write(slot, payloads[place])
            if digests[place] not in self._ready:  # else the same came by another way meanwhile
                self._slots[slot].state, self._slots[slot].digest = SlotState.READY, digests[place]
                self._ready[digests[place]] = slot

    def drop(self, holder: str) -> None:
        self._rooms.pop(holder, None)
        for slot in self._held.pop(holder, []):
            one = self._slots[slot]
            one.holders.remove(holder)
            if not one.holders and self._ready.get(one.digest) != slot:  # filled never, or found no more
                self._free(slot)

    def check(self) -> None:
        """Raise ``PoolError`` unless slots, prefixes and holders agree."""
        for number, slot in enumerate(self._slots):
            holders = sorted(holder for holder, slots in self._held.items() for s in slots if s == number)
            if sorted(slot.holders) != holders:
                raise PoolError(f"slot {number} counts holders {slot.holders}, held it is by {holders}")
            is_found = self._ready.get(slot.digest) == number
            if is_found != (slot.state is SlotState.READY) and not (slot.state is SlotState.READY and slot.holders):
                raise PoolError(f"slot {number} is {slot.state.value}, found by its prefix: {is_found}")
            if slot.state is SlotState.FILLING and len(slot.holders) != 1:
                raise PoolError(f"slot {number} is filled by {slot.holders}")
        if any(self._slots[slot].digest != digest for digest, slot in self._ready.items()):
            raise PoolError("a digest leads to a slot of another one")
        if len(self._all_held()) > self._max_held:
            raise PoolError(f"{len(self._all_held())} slots are held, the limit is {self._max_held}")

    def _room(self, count: int) -> list[int] | None:
        """Slots for new content, out of use from now on; None, and nothing done, if too few can be had."""
        free = [number for number, slot in enumerate(self._slots) if slot.state is SlotState.FREE]
        unheld = (slot for slot in self._ready.values() if not self._slots[slot].holders)
        evicted = [slot for _, slot in zip(range(count - len(free)), unheld, strict=False)]
        if len(free) + len(evicted) < count or len(self._all_held()) + count > self._max_held:
            return None
        for slot in evicted:
            self._free(slot)
        room = (free + evicted)[:count]
        for slot in room:
            self._slots[slot].epoch += 1
        return room

    def _free(self, slot: int) -> None:
        one = self._slots[slot]
        if self._ready.get(one.digest) == slot:
            del self._ready[one.digest]
        one.state, one.digest = SlotState.FREE, b""

    def _all_held(self) -> set[int]:
        return {slot for slots in self._held.values() for slot in slots}

    def _digests(self, prefix: Prefix) -> list[bytes]:
        keys = prefix.keys(self._block_size)
        return [keys.digest(place) for place in range(len(prefix.token_ids) // self._block_size)]
