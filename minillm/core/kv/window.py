"""Layers with a sliding window: which blocks of a table no token to come reads, and a cache group that frees them.

Where every layer attends to the last ``W`` tokens only, the token at position ``p`` reads the K/V of positions
``p - W + 1`` to ``p``. A block whose last token lies before that is read by no token to come, for a request never
computes a position again that it committed. Such a block is given back while the request runs, and the null block
stands in its place, so that a table goes on being looked up by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minillm.core.blocks import NULL_BLOCK
from minillm.core.kv.block_keys import BlockKeys
from minillm.core.kv.cache_group import CacheGroup
from minillm.core.kv.tables import GroupHit
from minillm.core.request import Request


@dataclass(frozen=True, slots=True)
class Window:
    """A window of ``tokens`` over blocks of ``block_size``. ``ValueError`` for a window of less than one token.

    ``span``: most tokens that are computed at once, those of steps in flight included; None if there is no limit.
    """

    tokens: int
    block_size: int
    span: int | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"a window of {self.tokens} tokens: it holds at least the token itself")

    def _kept(self) -> int:
        # Tokens before the next one that stay. The last full block is always among them: what is indexed next
        # hangs below it.
        return max(self.tokens - 1, self.block_size)

    def reach(self) -> int:
        """Blocks before a block's first token that a request needs to go on there."""
        return -(-self._kept() // self.block_size)

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """First blocks of a table that nothing reads any more once so many tokens are computed."""
        return max(0, num_computed_tokens - self._kept()) // self.block_size

    def most_blocks(self, num_computed_tokens: int, num_tokens: int) -> int:
        """Most blocks that a table holds at once until it has come from ``num_computed_tokens`` to ``num_tokens``."""
        size = self.block_size
        all_left = -(-num_tokens // size) - self.num_skipped_blocks(num_computed_tokens)
        if self.span is None:
            return all_left
        return min(all_left, -(-(self._kept() + self.span + size - 1) // size))


class WindowedGroup(CacheGroup):
    """A cache group whose layers see a window of ``tokens``, of which at most ``span`` are computed at once."""

    def __init__(self, tokens: int, span: int | None, block_size: int, *parts: Any) -> None:
        super().__init__(block_size, *parts)
        self._window = Window(tokens, block_size, span)

    def match(self, keys: BlockKeys, max_blocks: int) -> GroupHit:
        """The longest cached prefix whose last blocks are there, as far as the window reaches back."""
        reach = self._window.reach()
        blocks, chain = self.index.match(keys, max_blocks, reach)
        return GroupHit(blocks, chain, max(0, len(blocks) - reach))

    def most_blocks(self, num_computed_tokens: int, num_tokens: int) -> int:
        """Most blocks at once, the skipped ones not counted."""
        return self._window.most_blocks(num_computed_tokens, num_tokens)

    def commit(self, request: Request) -> None:
        """Index what is full, then free what no token to come reads."""
        super().commit(request)
        self.free_skipped_blocks(request)

    def free_skipped_blocks(self, request: Request) -> None:
        """Put the null block in the place of each block that the window has passed."""
        # None of the tokens computed is computed again: a rejected draft was never among them, a plan in flight
        # computes later ones, and after a preemption without swapping a new table begins.
        table = self.tables[request.request_id]
        first, end = table.num_skipped, self._window.num_skipped_blocks(request.num_computed_tokens)
        if end <= first:
            return
        skipped = table.blocks[first:end]
        table.blocks[first:end] = [NULL_BLOCK] * (end - first)  # in plans in flight as well: they read behind it
        table.num_skipped = end
        for block in skipped:  # of what stays cached, the beginning is evicted first: hits reach back from the end
            self._pool.release(block, to_front=block not in self.index)
        self.trace.emit("leave", request.request_id, skipped)
