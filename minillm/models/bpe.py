"""Byte-level byte-pair encoding in the standard library alone, so that it also runs in a browser.

Text becomes UTF-8 bytes, bytes become single-byte tokens, and neighbours are merged by rank, lowest
first (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909; on bytes: GPT-2). Ids equal those of
Hugging Face's `tokenizers` for the formats that `tokenizer_formats` accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

from minillm.models.pretokenize import Split

# Words are cached; text of a hostile user must not fill the memory. About 20 MB when full.
_CACHED_WORDS = 50_000
_CACHED_WORD_CHARACTERS = 64


class ByteLevelBPE:
    """Text to ids and back. Built by `from_tokenizer_json` or `from_gguf_metadata`.

    Args:
        tokens: id -> raw bytes; added tokens have their UTF-8 text.
        merges: pairs of ids in order of rank.
        split: cuts text into words.
        special: id -> text of tokens that only the template or the engine may write.
        added: id -> text of tokens that are always recognised in text, without being special.
        bos_id: the token at the start of a sequence, if there is one.
        eos_ids: the tokens that end an answer.
        adds_bos: whether the model expects `bos_id` before the first token.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        merges: Iterable[tuple[int, int]],
        split: Split,
        *,
        special: Mapping[int, str],
        added: Mapping[int, str],
        bos_id: int | None,
        eos_ids: frozenset[int],
        adds_bos: bool = False,
    ) -> None:
        self.vocab_size = len(tokens)
        self.bos_id = bos_id
        self.eos_ids = eos_ids
        self.adds_bos = adds_bos
        self._tokens = list(tokens)
        self._split = split
        self._special = dict(special)
        self._added_ids = {text: id for id, text in [*added.items(), *special.items()]}
        ids = {token: id for id, token in enumerate(tokens) if id not in special and id not in added}
        self._byte_ids = [ids.get(bytes([byte])) for byte in range(256)]
        # (left, right) -> (rank, merged id)
        self._merges: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, (left, right) in enumerate(merges):
            merged = ids.get(tokens[left] + tokens[right])
            if merged is None:
                raise ValueError(
                    f"merge {rank} makes {tokens[left] + tokens[right]!r}, which is not in the vocabulary "
                    f"of {len(tokens)} tokens: the tokenizer file is damaged"
                )
            self._merges.setdefault((left, right), (rank, merged))
        self._words: dict[str, list[int]] = {}
        self._added_pattern = _any_of(added.values())
        self._special_pattern = _any_of([*added.values(), *special.values()])

    @classmethod
    def from_tokenizer_json(cls, source: str | Path | Mapping[str, Any]) -> ByteLevelBPE:
        """From a `tokenizer.json`; with a path, its neighbours name BOS and EOS."""
        from minillm.models.tokenizer_formats import parse_tokenizer_json

        return cls(**parse_tokenizer_json(source))

    @classmethod
    def from_gguf_metadata(cls, metadata: Mapping[str, Any]) -> ByteLevelBPE:
        """From the `tokenizer.ggml.*` keys of a GGUF file."""
        from minillm.models.tokenizer_formats import parse_gguf_metadata

        return cls(**parse_gguf_metadata(metadata))

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of `text`, without BOS. `allow_special` is for templates, never for a user's own text.

        Raises:
            ValueError: half a surrogate pair in the text, which UTF-8 cannot hold.
        """
        pattern = self._special_pattern if allow_special else self._added_pattern
        ids: list[int] = []
        at = 0
        for match in pattern.finditer(text) if pattern else ():
            self._encode_plain(text[at : match.start()], ids)
            ids.append(self._added_ids[match.group()])
            at = match.end()
        self._encode_plain(text[at:], ids)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        parts = [self.token_bytes(id) for id in ids if not (skip_special and id in self._special)]
        return b"".join(parts).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        """Raw bytes of one token, possibly part of a character; for special tokens their text.

        Raises:
            ValueError: no such token.
        """
        if not 0 <= id < self.vocab_size:
            raise ValueError(f"token id {id} is outside the vocabulary of {self.vocab_size} tokens")
        return self._tokens[id]

    def is_special(self, id: int) -> bool:
        """Whether `id` is a control token, which no text of a user turns into."""
        return id in self._special

    def _encode_plain(self, text: str, ids: list[int]) -> None:
        for word in self._split(text):
            known = self._words.get(word)
            if known is None:
                known = self._encode_word(word)
                if len(word) <= _CACHED_WORD_CHARACTERS:
                    if len(self._words) >= _CACHED_WORDS:
                        self._words.clear()
                    self._words[word] = known
            ids.extend(known)

    def _encode_word(self, word: str) -> list[int]:
        try:
            data = word.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text has half a surrogate pair (U+{ord(word[error.start]):04X}), which is no character: "
                "replace it, for example with text.encode('utf-8', 'replace').decode()"
            ) from error
        # A byte without a token is left out, as the reference does: some vocabularies lack bytes
        # that no UTF-8 text contains, or that their training text never had.
        ids = [id for id in map(self._byte_ids.__getitem__, data) if id is not None]
        return self._merge(ids)

    def _merge(self, ids: list[int]) -> list[int]:
        """Merge neighbours, lowest rank first and leftmost among equals: O(n log n) by a heap.

        The ids form a linked list. A heap entry whose pair has changed since is skipped.
        """
        end = len(ids)
        if end < 2:
            return ids
        merges = self._merges
        before = list(range(-1, end - 1))
        after = list(range(1, end + 1))
        heap = [
            (found[0], at, ids[at], ids[at + 1], found[1])
            for at in range(end - 1)
            if (found := merges.get((ids[at], ids[at + 1]))) is not None
        ]
        heapify(heap)
        while heap:
            _, at, left, right, merged = heappop(heap)
            following = after[at]
            if ids[at] != left or following >= end or ids[following] != right:
                continue
            ids[at], ids[following] = merged, -1
            after[at] = after[following]
            if after[at] < end:
                before[after[at]] = at
                found = merges.get((merged, ids[after[at]]))
                if found is not None:
                    heappush(heap, (found[0], at, merged, ids[after[at]], found[1]))
            if before[at] >= 0:
                previous = before[at]
                found = merges.get((ids[previous], merged))
                if found is not None:
                    heappush(heap, (found[0], previous, ids[previous], merged, found[1]))
        return [id for id in ids if id >= 0]


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of `texts`, the longest where several begin at one place; None for no texts."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
