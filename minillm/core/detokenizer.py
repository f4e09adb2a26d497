"""Token ids to text, piece by piece: the pieces joined are the text of all ids, cut at a stop string.

Held back are the bytes of a character that is not whole yet, and the end of the text while it may be
the beginning of a stop string. A stop string is found the moment its last character is known; of several
found at once the one that ends first counts, the longer one if they end together.

What text a token has is decided here and nowhere else (``text_bytes``), so the output's text, its events and its
stop strings agree: a control token has none, as where Hugging Face transformers skips special tokens, and neither
has an id that the model knows and the tokenizer does not.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol


class TokenBytes(Protocol):
    """The part of a tokenizer that the detokenizer needs."""

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes of one token, possibly part of a character; for a control token its name.

        ``ValueError`` or ``LookupError`` for an id without a token: models have more ids than their tokenizers
        where the vocabulary is padded. A tokenizer with control tokens has ``is_special(token_id)``, too.
        """


def name_bytes(tokenizer: TokenBytes, token_id: int) -> bytes | None:
    """What to show of one token; None for an id that the tokenizer has no token for."""
    try:
        return tokenizer.token_bytes(token_id)
    except (ValueError, LookupError):
        return None


def known_ids(tokenizer: TokenBytes, token_ids: Sequence[int]) -> list[int]:
    """Those that the tokenizer has a token for: the others have no text, and its ``decode`` may refuse them."""
    return [token_id for token_id in token_ids if name_bytes(tokenizer, token_id) is not None]


def text_bytes(tokenizer: TokenBytes, token_id: int) -> bytes:
    """What one token adds to a text: nothing where it is a control token, or none at all."""
    is_special = getattr(tokenizer, "is_special", None)
    if is_special is not None and is_special(token_id):
        return b""
    return name_bytes(tokenizer, token_id) or b""


class Detokenizer:
    """The text of one request. Bytes that are no UTF-8 become U+FFFD, as in ``bytes.decode``."""

    def __init__(self, tokenizer: TokenBytes, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # decoded, but perhaps the beginning of a stop string

    def push(self, token_id: int, *, may_stop: bool = True) -> tuple[str, bool]:
        """Text released by one more token, and whether a stop string is complete: then nothing may follow.

        A stop string whose last character comes while ``may_stop`` is False is ordinary text.
        """
        return self._release(self._decoder.decode(text_bytes(self._tokenizer, token_id)), may_stop)

    def flush(self) -> str:
        """All that is held back: the request ended, so no stop string will complete it."""
        rest = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        return rest

    def _release(self, new: str, may_stop: bool) -> tuple[str, bool]:
        if not self._stop:
            return new, False
        text = self._held + new
        if may_stop:
            cut = self._find_stop(text, len(self._held))
            if cut is not None:
                self._held = ""
                self._decoder.reset()
                return text[:cut], True
        keep = self._stop_prefix_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def _find_stop(self, text: str, seen: int) -> int | None:
        """Where the first stop string begins of those that end after ``seen`` characters."""
        found = []
        for stop in self._stop:
            start = text.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start))
        return min(found)[1] if found else None

    def _stop_prefix_length(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string without completing it."""
        longest = min(len(text), max(map(len, self._stop)) - 1)
        for length in range(longest, 0, -1):
            end = text[len(text) - length :]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stop):
                return length
        return 0
