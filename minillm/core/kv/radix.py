"""The radix tree as prefix index: an edge holds the tokens of a run of blocks, and a walk from the root compares them.

As in SGLang's RadixAttention (Zheng et al., 2024), with edges cut at whole blocks. No digest is computed: a
request that hits a long run compares it in one go, and one that hits nothing looks up its first block.
A run splits where a second prefix leaves it. A block with extra keys begins a run of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from minillm.core.blocks import NULL_BLOCK, BlockPool, PoolError
from minillm.core.kv.block_keys import TOKEN_BYTES, BlockKeys
from minillm.core.kv.index import ROOT, Link, within_reach


class _Node:
    """An edge and what hangs below it: positions ``start .. start + len(blocks) - 1`` of some prefixes."""

    __slots__ = ("blocks", "children", "extra", "parent", "start", "tokens")

    def __init__(self, parent: _Node | None, start: int, tokens: bytes, extra: bytes) -> None:
        self.parent = parent
        self.start = start
        self.tokens = bytearray(tokens)  # of all its blocks
        self.extra = extra  # of its first block
        self.blocks = array("i")  # the null block where a position has lost its block
        self.children: dict[bytes, _Node] | None = None  # by the key of their first block


class RadixIndex:
    """Implements ``PrefixIndex``."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._epochs = pool.epochs
        self._width = block_size * TOKEN_BYTES
        self._root = _Node(None, 0, b"", b"")
        self._node_at: list[_Node | None] = [None] * pool.num_blocks
        self._depth_at = array("i", [0]) * pool.num_blocks  # blocks before an indexed block in its prefix
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, block: int) -> bool:
        return self._node_at[block] is not None

    def blocks(self) -> Iterable[int]:
        """The indexed blocks."""
        return (block for block, node in enumerate(self._node_at) if node is not None)

    def match(self, keys: BlockKeys, max_blocks: int, reach: int | None = None) -> tuple[list[int], Link]:
        """See ``PrefixIndex``."""
        blocks: list[int] = []
        node = self._root
        while len(blocks) < max_blocks and node.children:
            i = len(blocks)
            child = node.children.get(keys.key(i))
            if child is None:
                break
            run = child.blocks[: self._common(child, keys, max_blocks - i)]
            if reach is None and NULL_BLOCK in run:
                blocks += run[: run.index(NULL_BLOCK)]
                break
            blocks += run
            if len(run) < len(child.blocks):
                break
            node = child
        if reach is not None:
            blocks = within_reach(blocks, reach)
        return blocks, Link(blocks[-1], self._epochs[blocks[-1]], len(blocks)) if blocks else ROOT

    def is_valid(self, link: Link) -> bool:
        """Whether the chain's last block still has the content it had when the chain was verified."""
        return link.length == 0 or (link.block in self and self._epochs[link.block] == link.epoch)

    def insert(self, parent: Link, block: int, keys: BlockKeys) -> tuple[Link, bool] | None:
        """See ``PrefixIndex``; never None."""
        i = parent.length
        node, offset = self._place(keys, self._node_at[parent.block] or self._root, i)
        held = node.blocks[offset]
        if held != NULL_BLOCK:
            return Link(held, self._epochs[held], i + 1), False
        node.blocks[offset] = block
        self._node_at[block] = node
        self._depth_at[block] = i
        self._count += 1
        return Link(block, self._epochs[block], i + 1), True

    def remove(self, block: int) -> int:
        """See ``PrefixIndex``."""
        node = self._node_at[block]
        if node is None:
            raise PoolError(f"block {block} is removed from the index, but it is not in it")
        node.blocks[self._depth_at[block] - node.start] = NULL_BLOCK
        self._node_at[block] = None
        self._count -= 1
        # Ends of runs that no block and no other run needs go, from here upwards.
        trimmed = False
        while node is not self._root and not node.children and node.blocks[-1] == NULL_BLOCK:
            trimmed = True
            node = self._trim(node)
        if not trimmed or node is self._root or node.children:
            return NULL_BLOCK
        return node.blocks[-1]

    def is_last(self, block: int) -> bool:
        """Whether no indexed prefix goes on behind this block's."""
        node = self._node_at[block]
        return node is not None and not node.children and node.blocks[-1] == block

    def check(self) -> None:
        """Raise ``PoolError`` unless blocks and positions agree both ways."""
        found = 0
        stack = [self._root]
        while stack:
            node = stack.pop()
            for key, child in (node.children or {}).items():
                if child.parent is not node or child.start != node.start + len(node.blocks):
                    raise PoolError(f"a run at {child.start} hangs below one that ends elsewhere")
                if key != bytes(child.tokens[: self._width]) + child.extra:
                    raise PoolError(f"a run at {child.start} is filed under the key of another")
                stack.append(child)
            if len(node.tokens) != len(node.blocks) * self._width:
                raise PoolError(f"a run of {len(node.blocks)} blocks at {node.start} has other tokens than theirs")
            if node is not self._root and not node.children and node.blocks[-1] == NULL_BLOCK:
                raise PoolError(f"a run at {node.start} ends with a position that has no block")
            for offset, block in enumerate(node.blocks):
                if block != NULL_BLOCK:
                    found += 1
                    if self._node_at[block] is not node or self._depth_at[block] != node.start + offset:
                        raise PoolError(f"block {block} is filed at a position that names another")
        if not found == self._count == sum(node is not None for node in self._node_at):
            raise PoolError(f"{found} blocks are in the tree, {self._count} are counted as indexed")

    def _common(self, node: _Node, keys: BlockKeys, limit: int) -> int:
        """Blocks at the start of a node's run that are the request's too; its first one is."""
        first, most = node.start, min(len(node.blocks), limit)
        if most > 1 and not keys.has_extras and keys.run(first, most) == node.tokens[: most * self._width]:
            return most
        same = 1
        while same < most and self._is(node, same, keys.key(first + same)):
            same += 1
        return same

    def _is(self, node: _Node, offset: int, key: bytes) -> bool:
        """Whether a block of a run other than its first, which none has extra keys, has this key."""
        return node.tokens[offset * self._width : (offset + 1) * self._width] == key

    def _place(self, keys: BlockKeys, node: _Node, depth: int) -> tuple[_Node, int]:
        """Node and offset of a request's block ``depth``, behind its chain, which ends in ``node``; made if needed."""
        key, offset = keys.key(depth), depth - node.start
        if offset < len(node.blocks):  # the chain ends within a run
            if self._is(node, offset, key):
                return node, offset
            self._split(node, offset)
        child = node.children.get(key) if node.children else None
        if child is not None:
            return child, 0
        if node is self._root or node.children or len(key) > self._width:
            child = _Node(node, depth, b"", key[self._width :])
            if node.children is None:
                node.children = {}
            node.children[key] = child
            node, offset = child, 0
        node.tokens += key[: self._width]
        node.blocks.append(NULL_BLOCK)
        return node, offset

    def _split(self, node: _Node, offset: int) -> None:
        """What lies behind ``offset`` blocks of a run becomes a run of its own, below the rest."""
        cut = offset * self._width
        lower = _Node(node, node.start + offset, bytes(node.tokens[cut:]), b"")
        lower.blocks, lower.children = node.blocks[offset:], node.children
        for child in (lower.children or {}).values():
            child.parent = lower
        for block in lower.blocks:
            if block != NULL_BLOCK:
                self._node_at[block] = lower
        del node.tokens[cut:], node.blocks[offset:]
        node.children = {bytes(lower.tokens[: self._width]): lower}

    def _trim(self, node: _Node) -> _Node:
        """Drop the last position of a run without children; the node that ends its prefix now."""
        node.blocks.pop()
        if node.blocks:
            del node.tokens[len(node.blocks) * self._width :]
            return node
        above = node.parent
        if above is None or above.children is None:
            raise PoolError(f"a run at {node.start} hangs below nothing")
        del above.children[bytes(node.tokens) + node.extra]
        return above
