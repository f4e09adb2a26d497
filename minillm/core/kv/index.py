"""What a prefix index does: it finds blocks whose content is the K/V of a prompt's first tokens.

Two indexes do it, with the same results: `minillm.core.kv.prefix` looks each block up by a digest of its
prefix, `minillm.core.kv.radix` walks a tree. Both keep one position for each distinct prefix of whole blocks,
below the position of the prefix before it. A position is found only through its parent and by comparing
its tokens, so by induction the whole prefix was compared, and no digest decides what a request reads.

A position outlives its block while others hang below it: a hit ends there until the same prefix is
computed again, unless a window reaches no further back (`minillm.core.kv.window`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from minillm.core.blocks import NULL_BLOCK
from minillm.core.kv.block_keys import BlockKeys


class Link(NamedTuple):
    """The end of a verified chain: a block at its last position, and the epoch its content belongs to."""

    block: int
    epoch: int
    length: int  # blocks in the chain


ROOT = Link(NULL_BLOCK, 0, 0)  # the empty chain


def within_reach(blocks: list[int], reach: int) -> list[int]:
    """The longest beginning of ``blocks`` whose last ``reach`` are there, without those before them."""
    end = run = 0
    for i, block in enumerate(blocks):
        run = 0 if block == NULL_BLOCK else run + 1
        if run >= min(reach, i + 1):
            end = i + 1
    num_skipped = max(0, end - reach)
    return [NULL_BLOCK] * num_skipped + blocks[num_skipped:end]


class PrefixIndex(Protocol):
    """Only full and computed blocks may be inserted. ``PoolError`` where the index is used wrongly or broken."""

    def __len__(self) -> int:
        """Indexed blocks."""

    def __contains__(self, block: int) -> bool: ...

    def blocks(self) -> Iterable[int]:
        """The indexed blocks."""

    def match(self, keys: BlockKeys, max_blocks: int, reach: int | None = None) -> tuple[list[int], Link]:
        """The longest indexed chain at the start of a request, and its end.

        With ``reach``, at least 1, only the last so many blocks of the chain must be there; of those before them
        the positions are known, and the null block stands for each.
        """

    def is_valid(self, link: Link) -> bool:
        """Whether the chain's last block still has the content it had when the chain was verified."""

    def insert(self, parent: Link, block: int, keys: BlockKeys) -> tuple[Link, bool] | None:
        """File ``block``, full and computed after the valid chain ``parent``, under the request's next key.

        Returns the longer chain, and whether the block is indexed now: where the same content is already,
        that block stays, and chains of requests that computed a prefix at the same time meet again.
        None if the key cannot be filed.
        """

    def remove(self, block: int) -> int:
        """Forget ``block``, which is about to get other content.

        Returns the block that nothing is indexed behind any more and before was, or the null block.
        """

    def is_last(self, block: int) -> bool:
        """Whether no indexed prefix goes on behind this block's: evicted, it takes nothing along."""

    def check(self) -> None:
        """Raise ``PoolError`` unless blocks and positions agree both ways."""


class IndexObserver(Protocol):
    """Hears what becomes of indexed blocks, at once; it must not raise."""

    def on_index(self, block: int, place: int, keys: BlockKeys) -> None:
        """The block was filed under key ``place`` of ``keys``."""

    def on_hit(self, block: int) -> None:
        """A request found the block."""

    def on_remove(self, block: int, last: int) -> None:
        """The block left the index. Nothing is indexed behind ``last`` any more; the null block if nothing changed."""
