"""A request's blocks in one cache group, what a request hits in each of them, and copies that are due."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from minillm.core.kv.block_keys import BlockKeys
from minillm.core.kv.index import Link


@dataclass(slots=True)
class Table:
    """A request's blocks, and how far they are indexed."""

    blocks: list[int] = field(default_factory=list)
    chain: Link | None = None  # None if they cannot be
    keys: BlockKeys | None = None  # None without prefix caching
    num_skipped: int = 0  # first blocks that no token to come reads: the null block is in their place


@dataclass(frozen=True, slots=True)
class GroupHit:
    """Cached blocks of one cache group."""

    blocks: list[int]  # the null block where a window has no need of one
    chain: Link
    num_skipped: int = 0  # null blocks, at the beginning

    @property
    def held(self) -> list[int]:
        """The blocks that a request takes hold of."""
        return self.blocks[self.num_skipped :] if self.num_skipped else self.blocks


@dataclass(frozen=True, slots=True)
class Hit:
    """Cached blocks that hold a request's first ``num_tokens`` tokens. Valid until the next allocation."""

    num_tokens: int
    groups: tuple[GroupHit, ...]


class BlockCopies:
    """Copies (source, target) of whole blocks, in the order in which they were decided."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}  # target -> source: put back, to be made at once and before the others
        self._pairs: list[tuple[int, int]] = []

    def add(self, source: int, target: int) -> None:
        self._pairs.append((source, target))

    def go_to(self, blocks: list[int]) -> bool:
        """Whether one of these blocks gets its content only by a copy that is not taken yet."""
        due = [*self._first, *(target for _, target in self._pairs)]
        return bool(due) and not set(due).isdisjoint(blocks)

    def come_from(self, blocks: Iterable[int]) -> bool:
        """Whether one of these blocks is still to be copied as it is now."""
        due = [*self._first.values(), *(source for source, _ in self._pairs)]
        return bool(due) and not set(due).isdisjoint(blocks)

    def put_back(self, pairs: Sequence[tuple[int, int]]) -> None:
        """What the last ``take`` returned was not made; of several, the later one is put back first."""
        sources = {target: source for source, target in pairs}
        self._first = sources | {target: sources.get(source, source) for target, source in self._first.items()}

    def take(self) -> list[tuple[int, int]]:
        """All since the last call, in a form that no order of execution changes.

        Targets are distinct, and every source is a block as it is before any of the copies.
        """
        sources, self._first = self._first, {}
        for source, target in self._pairs:
            sources[target] = sources.get(source, source)  # the copy of a copy is one of the original
        self._pairs.clear()
        return [(source, target) for target, source in sources.items() if source != target]
