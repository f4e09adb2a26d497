"""The hash-chained prefix index: a digest of the whole prefix leads to each position in one look-up.

The digest only finds a candidate, which counts if its parent is the position found before it and its key
is the request's. Two prefixes with one digest cost a hit and never change an output: the first keeps the
digest, and the other is not indexed while it does.

Positions are numbers, and what is known of them lies in arrays: in Python that is a fraction of an object each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from minillm.core.blocks import NULL_BLOCK, BlockPool, PoolError
from minillm.core.kv.block_keys import TOKEN_BYTES, BlockKeys
from minillm.core.kv.index import ROOT, Link, within_reach

_ROOT = 0  # the position of the empty prefix
_NONE = -1  # parent of an unused position


class HashIndex:
    """Implements ``PrefixIndex``."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._epochs = pool.epochs
        self._width = block_size * TOKEN_BYTES
        self._position_of: dict[bytes, int] = {}  # by digest
        self._position_at = array("i", [_ROOT]) * pool.num_blocks  # by block; the root where it is not indexed
        self._count = 0
        # Of each position. The root is never removed.
        self._parents = array("i", [_NONE])
        self._children = array("i", [0])  # positions right below
        self._blocks = array("i", [NULL_BLOCK])
        self._digests: list[bytes] = [b""]
        self._tokens = bytearray(self._width)
        self._extras: dict[int, bytes] = {}  # for the few that have any
        self._unused: list[int] = []

    def __len__(self) -> int:
        return self._count

    def __contains__(self, block: int) -> bool:
        return self._position_at[block] != _ROOT

    def blocks(self) -> Iterable[int]:
        """The indexed blocks."""
        return (block for block, position in enumerate(self._position_at) if position != _ROOT)

    def match(self, keys: BlockKeys, max_blocks: int, reach: int | None = None) -> tuple[list[int], Link]:
        """See ``PrefixIndex``."""
        blocks: list[int] = []
        above = _ROOT
        for i in range(max_blocks):
            key = keys.key(i, max_blocks)
            position = self._position_of.get(keys.digest(i, key))
            if position is None or self._parents[position] != above or not self._has_key(position, key):
                break
            block = self._blocks[position]
            if block == NULL_BLOCK and reach is None:
                break
            blocks.append(block)
            above = position
        if reach is not None:
            blocks = within_reach(blocks, reach)
        return blocks, Link(blocks[-1], self._epochs[blocks[-1]], len(blocks)) if blocks else ROOT

    def is_valid(self, link: Link) -> bool:
        """Whether the chain's last block still has the content it had when the chain was verified."""
        return link.length == 0 or (link.block in self and self._epochs[link.block] == link.epoch)

    def insert(self, parent: Link, block: int, keys: BlockKeys) -> tuple[Link, bool] | None:
        """See ``PrefixIndex``; None if another prefix has the digest."""
        i = parent.length
        above = self._position_at[parent.block]
        key = keys.key(i)
        digest = keys.digest(i, key)
        position = self._position_of.get(digest)
        if position is None:
            position = self._new_position(above, digest, key)
        elif self._parents[position] != above or not self._has_key(position, key):
            return None
        held = self._blocks[position]
        if held != NULL_BLOCK:
            return Link(held, self._epochs[held], i + 1), False
        self._blocks[position] = block
        self._position_at[block] = position
        self._count += 1
        return Link(block, self._epochs[block], i + 1), True

    def remove(self, block: int) -> int:
        """See ``PrefixIndex``."""
        position = self._position_at[block]
        if position == _ROOT:
            raise PoolError(f"block {block} is removed from the index, but it is not in it")
        self._position_at[block] = _ROOT
        self._blocks[position] = NULL_BLOCK
        self._count -= 1
        # Positions that no block and no other position needs go, from here upwards.
        while position != _ROOT and self._blocks[position] == NULL_BLOCK and not self._children[position]:
            above = self._parents[position]
            self._drop_position(position)
            self._children[above] -= 1
            if not self._children[above] and self._blocks[above] != NULL_BLOCK:
                return self._blocks[above]
            position = above
        return NULL_BLOCK

    def is_last(self, block: int) -> bool:
        """Whether no indexed prefix goes on behind this block's."""
        return not self._children[self._position_at[block]]

    def check(self) -> None:
        """Raise ``PoolError`` unless blocks and positions agree both ways."""
        for block, position in enumerate(self._position_at):
            if position != _ROOT and self._blocks[position] != block:
                raise PoolError(f"block {block} is filed at a position that names block {self._blocks[position]}")
        used = [p for p, parent in enumerate(self._parents) if parent != _NONE]
        children = [0] * len(self._parents)
        for position in used:
            children[self._parents[position]] += 1
        if children != list(self._children):
            raise PoolError("positions and the numbers of those below them disagree")
        if any(self._blocks[p] == NULL_BLOCK and not children[p] for p in used):
            raise PoolError("a position has no block and none below it")
        if self._count != sum(self._blocks[p] != NULL_BLOCK for p in used):
            raise PoolError(f"{self._count} blocks are counted as indexed, others are")
        if {self._digests[p]: p for p in used} != self._position_of or len(used) != len(self._position_of):
            raise PoolError(f"{len(self._position_of)} digests do not lead to the {len(used)} positions one by one")

    def _has_key(self, position: int, key: bytes) -> bool:
        width = self._width
        if len(key) == width:
            return self._tokens[position * width : (position + 1) * width] == key and position not in self._extras
        return (
            self._tokens[position * width : (position + 1) * width] == key[:width]
            and self._extras.get(position) == key[width:]
        )

    def _new_position(self, above: int, digest: bytes, key: bytes) -> int:
        width = self._width
        if self._unused:
            position = self._unused.pop()
            self._parents[position] = above
            self._digests[position] = digest
            self._tokens[position * width : (position + 1) * width] = key[:width]
        else:
            position = len(self._parents)
            self._parents.append(above)
            self._children.append(0)
            self._blocks.append(NULL_BLOCK)
            self._digests.append(digest)
            self._tokens += key[:width]
        if len(key) > width:
            self._extras[position] = key[width:]
        self._position_of[digest] = position
        self._children[above] += 1
        return position

    def _drop_position(self, position: int) -> None:
        del self._position_of[self._digests[position]]
        self._parents[position] = _NONE
        self._digests[position] = b""
        self._extras.pop(position, None)
        self._unused.append(position)
