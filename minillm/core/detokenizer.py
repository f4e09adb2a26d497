"""Token ids to text, piece by piece: the pieces joined are the text of all ids, cut at a stop string.

Held back are the bytes of a character that is not whole yet, and the end of the text while it may be
the beginning of a stop string. A stop string is found the moment its last character is known; of several
found at once the one that ends first counts, the longer one if they end together.
"""

from __future__ import annotations

import codecs
from typing import Protocol


class TokenBytes(Protocol):
    """The part of a tokenizer that the detokenizer needs."""

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes of one token, possibly part of a character; empty for a control token."""


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
        return self._release(self._decoder.decode(self._tokenizer.token_bytes(token_id)), may_stop)

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
