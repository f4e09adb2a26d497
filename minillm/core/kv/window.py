"""Which blocks of a table a sliding window leaves behind, and how many it holds at most: arithmetic on sizes alone.

Where every layer attends to the last ``W`` tokens only, the token at position ``p`` reads the K/V of positions
``p - W + 1`` to ``p``. A block whose last token lies before that is read by no token to come, for a request never
computes a position again that it committed. Such a block is given back while the request runs, and the null block
stands in its place, so that a table goes on being looked up by position.
"""

from __future__ import annotations

from dataclasses import dataclass


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

    def num_gone(self, num_computed_tokens: int) -> int:
        """First blocks of a table that nothing reads any more once so many tokens are computed."""
        return max(0, num_computed_tokens - self._kept()) // self.block_size

    def most_blocks(self, num_computed_tokens: int, num_tokens: int) -> int:
        """Most blocks that a table holds at once until it has come from ``num_computed_tokens`` to ``num_tokens``."""
        size = self.block_size
        all_left = -(-num_tokens // size) - self.num_gone(num_computed_tokens)
        if self.span is None:
            return all_left
        return min(all_left, -(-(self._kept() + self.span + size - 1) // size))
