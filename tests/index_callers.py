"""Random callers of a prefix index, against a dictionary from whole prefixes to blocks."""

from __future__ import annotations

import random

from random_choices import Draw, SeededDraw

from minillm.core.blocks import NULL_BLOCK, BlockPool
from minillm.core.kv.block_keys import BlockKeys, ExtraKey, digest128
from minillm.core.kv.index import ROOT, Link, PrefixIndex
from minillm.core.kv.prefix import HashIndex
from minillm.core.kv.radix import RadixIndex

INDEXES = {"hash": HashIndex, "radix": RadixIndex}
Prefix = tuple[bytes, ...]  # the keys of its blocks


class IndexCallers:
    """Chains are inserted from any indexed block on, blocks removed in any order, prompts looked up."""

    def __init__(self, draw: Draw, kind: str) -> None:
        self.size = draw.integer(1, 3)
        self.pool = BlockPool(40)
        self.index: PrefixIndex = INDEXES[kind](self.pool, self.size)
        self.present: dict[Prefix, int] = {}
        self.links: list[tuple[Link, Prefix]] = []  # ends of chains that someone still holds

    def keys(self, draw: Draw, num_blocks: int) -> tuple[BlockKeys, Prefix]:
        tokens = [draw.integer(0, 1) for _ in range(num_blocks * self.size + draw.integer(0, self.size - 1))]
        extras = []
        if draw.integer(0, 2) == 0:
            extras.append(ExtraKey("salt", draw.choice(["a", "b"])))
        if draw.integer(0, 2) == 0 and tokens:
            extras.append(ExtraKey("image", "a", draw.integer(0, len(tokens) - 1)))
        keys = BlockKeys(tokens, extras, self.size, digest128)
        return keys, tuple(keys.key(i) for i in range(num_blocks))

    def act(self, draw: Draw) -> None:
        draw.choice([self.insert, self.insert, self.remove, self.match])(draw)
        self.audit()

    def insert(self, draw: Draw) -> None:
        """As a manager does: from the longest hit, or from a shorter one or the root, as if its end had been lost."""
        keys, prefix = self.keys(draw, draw.integer(1, 5))
        start = draw.integer(0, self.longest(prefix))
        blocks, link = self.index.match(keys, start)
        assert len(blocks) == start
        for i in range(start, len(prefix)):
            if not self.pool.num_free:
                return
            block = self.pool.allocate()
            filed = self.index.insert(link, block, keys)
            assert filed is not None
            known = self.present.get(prefix[: i + 1])
            assert filed[1] == (known is None)
            link = filed[0]
            assert link == Link(known or block, self.pool.epochs[known or block], i + 1)
            assert self.index.is_valid(link)
            if known is None:
                self.present[prefix[: i + 1]] = block
            else:
                self.pool.release(block, to_front=True)

    def remove(self, draw: Draw) -> None:
        if not self.present:
            return
        prefix = draw.choice(sorted(self.present))
        block = self.present.pop(prefix)
        link = Link(block, self.pool.epochs[block], len(prefix))
        assert self.index.is_valid(link)
        last = self.index.remove(block)
        assert not self.index.is_valid(link)
        assert block not in self.index
        self.pool.release(block, to_front=True)
        freed = NULL_BLOCK
        if not self.goes_on(prefix):
            above = next(
                p
                for n in range(len(prefix) - 1, -1, -1)
                if (p := prefix[:n]) in self.present or self.goes_on(p) or not n
            )
            freed = NULL_BLOCK if self.goes_on(above) else self.present.get(above, NULL_BLOCK)
        assert last == freed, "the block that nothing is indexed behind any more"

    def match(self, draw: Draw) -> None:
        keys, prefix = self.keys(draw, draw.integer(0, 6))
        limit = draw.integer(0, len(prefix))
        length = min(limit, self.longest(prefix))
        blocks, link = self.index.match(keys, limit)
        assert blocks == [self.present[prefix[: i + 1]] for i in range(length)]
        self.match_within(keys, prefix, limit, draw.integer(1, 4))
        assert link == (Link(blocks[-1], self.pool.epochs[blocks[-1]], length) if length else ROOT)
        self.links = [*self.links[-9:], (link, prefix[:length])]

    def match_within(self, keys: BlockKeys, prefix: Prefix, limit: int, reach: int) -> None:
        """Of all lengths the longest at whose end so many blocks are there."""

        def last(length: int) -> list[int | None]:
            return [self.present.get(prefix[: i + 1]) for i in range(max(0, length - reach), length)]

        length = max(n for n in range(limit + 1) if None not in last(n))
        blocks, link = self.index.match(keys, limit, reach)
        assert blocks == [NULL_BLOCK] * (length - len(last(length))) + last(length)
        assert link == (Link(blocks[-1], self.pool.epochs[blocks[-1]], length) if length else ROOT)

    def longest(self, prefix: Prefix) -> int:
        length = 0
        while length < len(prefix) and prefix[: length + 1] in self.present:
            length += 1
        return length

    def goes_on(self, prefix: Prefix) -> bool:
        return any(len(p) > len(prefix) and p[: len(prefix)] == prefix for p in self.present)

    def audit(self) -> None:
        self.index.check()
        assert set(self.index.blocks()) == set(self.present.values())
        assert len(self.index) == len(self.present)
        for link, prefix in self.links:
            now = self.present.get(prefix)
            is_same = now == link.block and self.pool.epochs[now] == link.epoch
            assert self.index.is_valid(link) == (is_same or not prefix)
        for prefix, block in self.present.items():
            assert block in self.index
            assert self.index.is_last(block) == (not self.goes_on(prefix))


def random_index_calls(seeds: range, acts: int = 60) -> None:
    """Both indexes under random callers, fast and the same each time."""
    for seed in seeds:
        draw = SeededDraw(seed)
        callers = IndexCallers(draw, random.Random(seed).choice(sorted(INDEXES)))
        for _ in range(acts):
            callers.act(draw)
