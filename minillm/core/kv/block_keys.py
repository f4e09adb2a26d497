"""What a cached block is known by: its tokens, what else its K/V depends on, and a digest of its whole prefix.

The K/V of a token depends on every token up to it, and on things that token ids do not say: a tenant's
salt, an adapter's weights, the image behind a run of placeholder ids. Each of these is an ``ExtraKey`` of
the token where it enters; all blocks behind that one are told apart by their prefix.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Hash = Callable[[bytes], bytes]
ExtraKind = Literal["salt", "adapter", "image"]
TOKEN_BYTES = array("I").itemsize
MAX_TOKEN_ID = (1 << 8 * TOKEN_BYTES) - 1


def digest128(data: bytes) -> bytes:
    """SHA-256 cut to 16 bytes: no one can craft a prompt whose digest is another's."""
    return hashlib.sha256(data).digest()[:16]


@dataclass(frozen=True, slots=True)
class ExtraKey:
    """From token ``start`` on, K/V depends on ``value`` too. Invalid values raise ``ValueError``.

    The value names a content, not a place where contents change: of an image the digest of its pixels, of
    an adapter the digest of its weights or an id that no other load of it has.
    """

    kind: ExtraKind
    value: str
    start: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(ExtraKind):
            raise ValueError(f"extra key of kind {self.kind!r}: choose from {', '.join(get_args(ExtraKind))}")
        if not isinstance(self.value, str):
            raise ValueError(f"{self.kind} key of value {self.value!r}: give a string, of bytes their digest in hex")
        try:
            self.value.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{self.kind} key of value {self.value!r}: half a surrogate pair is no character"
            ) from None
        if isinstance(self.start, bool) or not isinstance(self.start, int):
            raise ValueError(f"{self.kind} key at token {self.start!r}: give a whole number")
        if self.start < 0 or (self.kind != "image" and self.start):
            raise ValueError(
                f"{self.kind} key at token {self.start}: an image starts at the first of its tokens, anything else at 0"
            )

    def encoded(self, first: int) -> bytes:
        """For a block whose first token is ``first``. Lengths are written, so no two lists of keys read alike."""
        parts = (self.kind.encode(), self.value.encode(), str(self.start - first).encode())
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


class BlockKeys:
    """The keys of one request's blocks. Its token ids may grow, and are read only where asked.

    A block's key is its packed token ids, ``block_size * TOKEN_BYTES`` bytes, and behind them whatever else
    enters with its tokens, mostly nothing.
    """

    __slots__ = ("_digests", "_extras", "_hash", "_packed", "_size", "_token_ids")

    def __init__(
        self, token_ids: Sequence[int], extras: Sequence[ExtraKey], block_size: int, hash_function: Hash
    ) -> None:
        self._token_ids = token_ids
        self._extras = sorted(extras, key=lambda e: (e.start, e.kind, e.value))
        self._size = block_size
        self._hash = hash_function
        self._digests: list[bytes] = []  # of the first blocks, as far as asked
        self._packed = b""

    def are_of(self, token_ids: Sequence[int]) -> bool:
        return token_ids is self._token_ids

    @property
    def has_extras(self) -> bool:
        return bool(self._extras)

    def key(self, block: int, num_blocks: int = 0) -> bytes:
        """The block's key. With ``num_blocks``, the tokens of so many first blocks are packed at once and kept."""
        size = self._size
        width = size * TOKEN_BYTES
        if block < num_blocks and block:  # the first is asked for alone: most prompts miss there
            if block * width >= len(self._packed):
                self._packed = self.run(0, num_blocks)
            tokens = self._packed[block * width : (block + 1) * width]
        else:
            tokens = array("I", self._token_ids[block * size : (block + 1) * size]).tobytes()
        return tokens + self.extras_of(block) if self._extras else tokens

    def run(self, block: int, num_blocks: int) -> bytes:
        """The token ids of several blocks, packed."""
        return array("I", self._token_ids[block * self._size : (block + num_blocks) * self._size]).tobytes()

    def token_ids(self, block: int) -> tuple[int, ...]:
        return tuple(self._token_ids[block * self._size : (block + 1) * self._size])

    def extras_of(self, block: int) -> bytes:
        """What else enters with the block's tokens."""
        first, last = block * self._size, (block + 1) * self._size
        return b"".join(extra.encoded(first) for extra in self._extras if first <= extra.start < last)

    def digest(self, block: int, key: bytes | None = None) -> bytes:
        """Stands for all blocks up to this one: a hash of its key and of the digest before it.

        ``key`` is the block's, if it is at hand.
        """
        digests = self._digests
        if block < len(digests):
            return digests[block]
        before = self.digest(block - 1) if block else b""
        digests.append(self._hash(before + (self.key(block) if key is None else key)))
        return digests[block]

    def forked(self, token_ids: Sequence[int], num_blocks: int) -> BlockKeys:
        """Keys of a request whose first ``num_blocks`` blocks are these."""
        keys = BlockKeys(token_ids, self._extras, self._size, self._hash)
        keys._digests = self._digests[:num_blocks]
        return keys

    def unpack(self) -> None:
        """Forget the packed tokens: the request was admitted, its first blocks are not asked for again."""
        self._packed = b""
