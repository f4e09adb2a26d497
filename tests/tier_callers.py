"""Random callers of a tier, against a dict of what is whole and lists of who holds what."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from random_choices import Draw, SeededDraw

from minillm.transfer import Prefix
from minillm.transfer.tiers import HostMedium, SlotStore

SIZE = 2
Key = tuple[int, ...]  # the tokens of a whole prefix


class Fading(HostMedium):
    """Host memory in which content may be damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[bytes] = set()

    def read(self, slot: int) -> bytes | None:
        payload = super().read(slot)
        return None if payload in self.damaged else payload


class TierCallers:
    """Prefixes are looked up, held and read; room is reserved, filled or given up."""

    def __init__(self, draw: Draw) -> None:
        self.num_slots = draw.integer(1, 8)
        self.max_held = draw.integer(1, self.num_slots)
        self.medium = Fading()
        self.tier = SlotStore(self.medium, self.num_slots, SIZE, "any", max_held=self.max_held)
        self.whole: OrderedDict[Key, int] = OrderedDict()  # prefix -> slot, the one used longest ago first
        self.holds: dict[str, list[tuple[int, int, Key]]] = {}  # holder -> slots, epochs and what they must hold
        self.rooms: dict[str, tuple[Prefix, list[int], int]] = {}  # holder -> prefix, places to come, slots here
        self.count = 0

    def act(self, draw: Draw) -> None:
        acts = [self.look, self.reserve, self.reserve]
        if self.rooms:
            acts += [self.fill] * 3
        if self.holds:
            acts += [self.read, self.drop]
        draw.choice(acts)(draw)
        self.audit()

    def prefix(self, draw: Draw) -> Prefix:
        return Prefix(tuple(draw.integer(0, 1) for _ in range(draw.integer(0, 9))))

    def keys(self, prefix: Prefix) -> list[Key]:
        return [prefix.token_ids[:end] for end in range(SIZE, len(prefix.token_ids) + 1, SIZE)]

    def content(self, key: Key) -> bytes:
        return hashlib.sha256(repr(key).encode()).digest()

    def found(self, prefix: Prefix) -> list[int]:
        slots = []
        for key in self.keys(prefix):
            if key not in self.whole:
                break
            slots.append(self.whole[key])
        for key in self.keys(prefix)[: len(slots)][::-1]:
            self.whole.move_to_end(key)
        return slots

    def held(self) -> set[int]:
        return {slot for held in self.holds.values() for slot, _, _ in held}

    def look(self, draw: Draw) -> None:
        prefix = self.prefix(draw)
        slots = self.found(prefix)
        assert self.tier.find(prefix) == slots
        if draw.choice([True, False]):
            self.count += 1
            fits = len(self.held().union(slots)) <= self.max_held
            assert self.tier.hold(f"h{self.count}", slots) == fits
            if fits:
                keys = self.keys(prefix)
                self.holds[f"h{self.count}"] = [(s, self.tier.epoch(s), keys[i]) for i, s in enumerate(slots)]

    def reserve(self, draw: Draw) -> None:
        prefix = self.prefix(draw)
        keys = self.keys(prefix)
        count = draw.integer(0, len(keys))
        here = [key for key in keys[:count] if key in self.whole]
        places = [place for place, key in enumerate(keys[:count]) if key not in self.whole]
        held = self.held().union(self.whole[key] for key in here)
        free = self.num_slots - len({*self.whole.values(), *self.held()})
        unheld = [key for key, slot in self.whole.items() if slot not in held]
        fits = len(held) + len(places) <= self.max_held and len(places) <= free + len(unheld)
        self.count += 1
        holder = f"h{self.count}"
        before = {slot: self.tier.epoch(slot) for slot in range(self.num_slots)}
        assert self.tier.reserve(holder, prefix, count) == (places if fits else None)
        if not fits:
            return
        for key in unheld[: max(0, len(places) - free)]:
            del self.whole[key]
        own = self.tier._held[holder]
        fresh = own[len(here) :]
        assert own[: len(here)] == [self.whole[key] for key in here]
        assert not set(fresh) & {*self.whole.values(), *self.held()}, "I34: a slot in use is given away"
        assert all(self.tier.epoch(slot) == before[slot] + (slot in fresh) for slot in before), "I34: epochs"
        keys_of = [*here, *(keys[place] for place in places)]
        self.holds[holder] = [(s, self.tier.epoch(s), key) for s, key in zip(own, keys_of, strict=True)]
        self.rooms[holder] = (prefix, places, len(here))

    def fill(self, draw: Draw) -> None:
        holder = draw.choice(sorted(self.rooms))
        prefix, places, num_here = self.rooms.pop(holder)
        keys = self.keys(prefix)
        self.tier.fill(holder, prefix, {place: self.content(keys[place]) for place in places})
        for i, place in reversed(list(enumerate(places))):
            self.whole.setdefault(keys[place], self.holds[holder][num_here + i][0])

    def read(self, draw: Draw) -> None:
        holder = draw.choice(sorted(self.holds))
        if not self.holds[holder] or holder in self.rooms:
            return
        slot, epoch, key = draw.choice(self.holds[holder])
        assert self.tier.epoch(slot) == epoch, "I34: held, and given other content"
        is_damaged = draw.integer(0, 3) == 0
        if is_damaged:
            self.medium.damaged.add(self.content(key))
        assert self.tier.read(slot) == (None if is_damaged else self.content(key)), "I34: other content is read"
        self.medium.damaged.clear()
        if is_damaged and self.whole.get(key) == slot:
            del self.whole[key]

    def drop(self, draw: Draw) -> None:
        holder = draw.choice([*sorted(self.holds), "nobody"])
        self.tier.drop(holder)
        self.holds.pop(holder, None)
        self.rooms.pop(holder, None)

    def audit(self) -> None:
        self.tier.check()
        assert self.tier.num_ready == len(self.whole)
        assert self.tier._ready == {self.digest(key): slot for key, slot in self.whole.items()}
        assert list(self.tier._ready.values()) == list(self.whole.values()), "in order of last use"
        used = {*self.whole.values(), *self.held()}
        states = [slot.state.value for slot in self.tier._slots]
        assert states.count("free") == self.num_slots - len(used)

    def digest(self, key: Key) -> bytes:
        return Prefix(key).keys(SIZE).digest(len(key) // SIZE - 1)


def random_tier_calls(seeds: range, acts: int = 60) -> None:
    """A tier under random callers, fast and the same each time."""
    for seed in seeds:
        draw = SeededDraw(seed)
        callers = TierCallers(draw)
        for _ in range(acts):
            callers.act(draw)
