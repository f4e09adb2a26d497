"""Random callers of an evictor, against a list that is sorted anew each time."""

from __future__ import annotations

from random_choices import Draw, SeededDraw

from minillm.core.kv.eviction import PriorityEvictor


class EvictorCallers:
    """Blocks are indexed, hit, released, held again and given up; links between them come and go."""

    def __init__(self, draw: Draw) -> None:
        self.by_cost = draw.choice([True, False])
        self.behind: dict[int, int] = {}  # block: blocks indexed behind it
        cost = (lambda place: 1.0 + place / 2) if self.by_cost else None
        self.evictor = PriorityEvictor(8, cost, lambda block: not self.behind.get(block))
        self.uses: dict[int, int] = {}
        self.places: dict[int, int] = {}
        self.free: list[tuple[float, int, int]] = []  # priority, order of release, block
        self.waits: list[int] = []  # found to have blocks behind, in that order
        self.clock, self.count = 0.0, 0

    def act(self, draw: Draw) -> None:
        acts = [self.index, self.link, self.add, self.add]
        if self.free:
            acts += [self.discard, self.pop, self.pop]
        draw.choice(acts)(draw)
        assert len(self.evictor) == len(self.free)
        assert self.evictor.order() == [block for *_, block in sorted(self.free)]
        for block in range(8):
            assert (block in self.evictor) == any(b == block for *_, b in self.free)

    def index(self, draw: Draw) -> None:
        held = [b for b in range(1, 8) if all(b != f for *_, f in self.free)]
        if held:
            block = draw.choice(held)
            if block in self.uses and draw.choice([True, False]):
                self.uses[block] += 1
                self.evictor.on_hit(block)
            else:
                self.uses[block], self.places[block] = 1, draw.integer(0, 5)
                self.evictor.on_index(block, self.places[block])

    def link(self, draw: Draw) -> None:
        block = draw.integer(1, 7)
        if self.behind.get(block):
            self.behind[block] -= 1
            if not self.behind[block]:
                self.evictor.on_remove(0, block)
                if block in self.waits:
                    self.waits.remove(block)
        else:
            self.behind[block] = draw.integer(1, 2)

    def add(self, draw: Draw) -> None:
        ready = [b for b in self.uses if all(b != f for *_, f in self.free)]
        if not ready:
            return
        block = draw.choice(sorted(ready))
        self.count += 1
        cost = 1.0 + self.places[block] / 2 if self.by_cost else 1.0
        self.free.append((self.clock + self.uses[block] * cost, self.count, block))
        self.evictor.add(block)

    def discard(self, draw: Draw) -> None:
        entry = draw.choice(sorted(self.free))
        self.free.remove(entry)
        if entry[2] in self.waits:
            self.waits.remove(entry[2])
        self.evictor.discard(entry[2])

    def pop(self, draw: Draw) -> None:
        for entry in sorted(self.free):
            block = entry[2]
            if block in self.waits:
                continue
            if self.behind.get(block):
                self.waits.append(block)
                continue
            self.clock = entry[0] if self.by_cost else 0.0
            break
        else:
            block = self.waits[0]
        assert self.evictor.pop() == block
        self.free = [entry for entry in self.free if entry[2] != block]
        if block in self.waits:
            self.waits.remove(block)


def random_evictions(seeds: range, acts: int = 80) -> None:
    """An evictor under random callers, fast and the same each time."""
    for seed in seeds:
        draw = SeededDraw(seed)
        callers = EvictorCallers(draw)
        for _ in range(acts):
            callers.act(draw)
