"""The prefix index: finds blocks whose content is the K/V of a prompt's first tokens.

A full block is filed under a digest of its tokens and of its parent's digest, so the digest stands for
the whole prefix. The digest only finds a candidate: a hit counts if the candidate's own tokens are the
prompt's, and if its parent is the very block that was hit before it, with the same epoch. By induction
the whole prefix was compared, so two prefixes with one digest cost a hit and never change an output.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from minillm.core.blocks import NULL_BLOCK, BlockPool, PoolError

Hash = Callable[[bytes], bytes]
Extras = tuple[tuple[str, str], ...]  # what else the K/V depends on, each tagged: ("salt", "x"), ("adapter", "x")


def digest128(data: bytes) -> bytes:
    """SHA-256 cut to 16 bytes: no one can craft a prompt whose digest is another's."""
    return hashlib.sha256(data).digest()[:16]


class Link(NamedTuple):
    """The end of a verified chain: a block, the epoch its content belongs to, and the chain's digest."""

    block: int
    epoch: int
    digest: bytes
    length: int  # blocks in the chain


class _Entry(NamedTuple):
    """What is known of an indexed block: all that a hit is verified by."""

    digest: bytes
    parent: int
    parent_epoch: int
    tokens: bytes
    extras: Extras


class PrefixIndex:
    """Digest -> block and block -> entry, always both ways. Only full and computed blocks may be inserted."""

    def __init__(self, pool: BlockPool, block_size: int, hash_function: Hash = digest128) -> None:
        self._pool = pool
        self._block_size = block_size
        self._hash = hash_function
        self._block_of: dict[bytes, int] = {}
        self._entry_of: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entry_of)

    def __contains__(self, block: int) -> bool:
        return block in self._entry_of

    def blocks(self) -> Iterable[int]:
        """The indexed blocks."""
        return self._entry_of.keys()

    def root(self, extras: Extras) -> Link:
        """The empty chain of requests with these extra keys. Lengths are written, so no two keys read alike."""
        data = b"".join(
            len(part).to_bytes(4, "little") + part for pair in extras for part in (s.encode() for s in pair)
        )
        return Link(NULL_BLOCK, self._pool.epochs[NULL_BLOCK], self._hash(data), 0)

    def match(self, token_ids: Sequence[int], extras: Extras, max_blocks: int) -> tuple[list[int], Link]:
        """The longest indexed chain of whole blocks at the start of ``token_ids``, and its end."""
        size = self._block_size
        blocks: list[int] = []
        link = self.root(extras)
        while link.length < max_blocks:
            start = link.length * size
            tokens = _pack(token_ids[start : start + size])
            digest = self._hash(link.digest + tokens)
            block = self._block_of.get(digest)
            if block is None or not self._holds(block, link, tokens, extras):
                break
            blocks.append(block)
            link = Link(block, self._pool.epochs[block], digest, link.length + 1)
        return blocks, link

    def is_valid(self, link: Link) -> bool:
        """Whether the chain's last block still has the content it had when the chain was verified."""
        if link.block == NULL_BLOCK:
            return True
        entry = self._entry_of.get(link.block)
        return entry is not None and entry.digest == link.digest and self._pool.epochs[link.block] == link.epoch

    def insert(self, parent: Link, block: int, token_ids: Sequence[int], extras: Extras) -> tuple[Link, int | None]:
        """File ``block``, full of ``token_ids`` computed after the valid chain ``parent``.

        Returns the longer chain and a block whose entry had to go, if any. When the same content is
        indexed already, that block stays the indexed one and the chain goes through it, so chains of
        requests that computed a prefix at the same time meet again.
        """
        tokens = _pack(token_ids)
        digest = self._hash(parent.digest + tokens)
        known = self._block_of.get(digest)
        if known is not None and self._holds(known, parent, tokens, extras):
            return Link(known, self._pool.epochs[known], digest, parent.length + 1), None
        if known is not None:  # another prefix with this digest, or one whose parent is gone: the newer is kept
            self.remove(known)
        self._block_of[digest] = block
        self._entry_of[block] = _Entry(digest, parent.block, parent.epoch, tokens, extras)
        return Link(block, self._pool.epochs[block], digest, parent.length + 1), known

    def remove(self, block: int) -> None:
        """Forget ``block``, which is about to get other content. Its children become unreachable."""
        del self._block_of[self._entry_of.pop(block).digest]

    def check(self) -> None:
        """Raise ``PoolError`` unless digests and blocks agree both ways and entries are whole blocks."""
        if len(self._block_of) != len(self._entry_of):
            raise PoolError(f"{len(self._block_of)} digests for {len(self._entry_of)} indexed blocks")
        for block, entry in self._entry_of.items():
            if self._block_of.get(entry.digest) != block:
                raise PoolError(f"block {block} is filed under a digest that names another block")
            if len(entry.tokens) != self._block_size * _TOKEN_BYTES:
                raise PoolError(f"block {block} is indexed with a part of its {self._block_size} tokens")

    def _holds(self, block: int, parent: Link, tokens: bytes, extras: Extras) -> bool:
        entry = self._entry_of[block]
        return (
            entry.parent == parent.block
            and entry.parent_epoch == parent.epoch
            and entry.tokens == tokens
            and entry.extras == extras
        )


_TOKEN_BYTES = array("I").itemsize


def _pack(token_ids: Sequence[int]) -> bytes:
    return array("I", token_ids).tobytes()
