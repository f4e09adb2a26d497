"""A tokenizer's vocabulary as a trie over bytes, laid out flat for walks that prune.

Nodes are numbered in preorder, so the nodes under one are the numbers that follow it, and so are the
tokens under it: to take or to leave a whole subtree is one slice or one jump.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from minillm.grammar.expressions import GrammarError

ROOT = 0


class Vocabulary:
    """The tokens that a grammar chooses from.

    Args:
        tokens: id -> bytes; None for tokens that no text turns into (control tokens, padding).
        eos_ids: tokens that end an output; never part of a text.

    Raises:
        GrammarError: no ``eos_ids``, so that no output could say that it is complete.
    """

    def __init__(self, tokens: Sequence[bytes | None], eos_ids: Set[int]) -> None:
        if not eos_ids:
            raise GrammarError("the vocabulary has no end-of-sequence token: a grammar needs one to end on")
        self.tokens = [None if id in eos_ids else token for id, token in enumerate(tokens)]
        self.eos_ids = frozenset(eos_ids)
        self.size = len(tokens)
        self.eos_mask = sum(1 << id for id in self.eos_ids)
        # A byte without a token of its own cannot be relied on: what begins with it might have no rest.
        self.alphabet = sum(1 << token[0] for token in {t for t in self.tokens if t and len(t) == 1})
        self._by_bytes = {token for token in self.tokens if token}
        self.longest = max(map(len, self._by_bytes), default=0)
        self._build()

    def _build(self) -> None:
        order = sorted((token, id) for id, token in enumerate(self.tokens) if token)
        self.ids = [id for _, id in order]  # in the order of the trie
        # [N] each. The root is node 0.
        self.byte = byte = [0]  # the last byte of the path to a node
        self.depth = depths = [0]  # length of the path
        self.end = end = [0]  # the first node that is not under the node
        self.first = first = [0]  # [N + 1] tokens from here on lie under the node; those of the node itself come first
        open_nodes = [ROOT]
        self.parent = parents = [ROOT]
        path = b""
        for at, (token, _) in enumerate(order):
            shared = _common(path, token)
            for node in open_nodes[shared + 1 :]:
                end[node] = len(byte)
            del open_nodes[shared + 1 :]
            for depth in range(shared, len(token)):
                parents.append(open_nodes[-1])
                open_nodes.append(len(byte))
                byte.append(token[depth])
                depths.append(depth + 1)
                first.append(at)
                end.append(0)
            path = token
        for node in open_nodes:
            end[node] = len(byte)
        first.append(len(order))
        self.nodes_of: list[list[int]] = [[] for _ in range(256)]  # by their byte
        for node in range(1, len(byte)):
            self.nodes_of[byte[node]].append(node)
        self.below = below = [0] * len(byte)  # bytes on the paths under a node, a bit each
        self.height = height = [0] * len(byte)  # length of the longest path under a node
        for node in range(len(byte) - 1, 0, -1):
            parent = parents[node]
            below[parent] |= below[node] | 1 << byte[node]
            if height[parent] <= height[node]:
                height[parent] = height[node] + 1

    def check_spelling(self, data: bytes) -> None:
        """``GrammarError`` for a byte that no token spells by itself."""
        for byte in data:
            if not self.alphabet >> byte & 1:
                raise GrammarError(
                    f"{data.decode(errors='replace')!r} has the byte 0x{byte:02x}, for which the vocabulary of "
                    f"{self.size:,} tokens has no token: leave it out, or use a model that knows it"
                )

    def tokens_to_spell(self, data: bytes) -> list[int]:
        """For each place in ``data``, the fewest tokens that spell the rest, and 0 at the end."""
        fewest = [0] * (len(data) + 1)
        for start in range(len(data) - 1, -1, -1):
            ends = range(start + 1, min(len(data), start + self.longest) + 1)
            fewest[start] = 1 + min(fewest[end] for end in ends if data[start:end] in self._by_bytes)
        return fewest

    def mask(self, ids: Iterable[int]) -> int:
        """The ids as a set of bits: bit ``i`` is token ``i``."""
        flags = bytearray(self.size // 8 + 1)
        for id in ids:
            flags[id >> 3] |= 1 << (id & 7)
        return int.from_bytes(flags, "little")


def _common(one: bytes, other: bytes) -> int:
    """Length of the common beginning."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
