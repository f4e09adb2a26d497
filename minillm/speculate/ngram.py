"""Prompt lookup: what followed the last few tokens when they stood in the sequence before, follows again.

Saxena, "Prompt Lookup Decoding" (2023); vLLM and transformers have it as "ngram". It costs no model and no
memory, and pays where outputs repeat their input: summaries, code edits, retrieved passages.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from minillm.core.backend import Capacity
from minillm.speculate.draft import NO_DRAFT, Ask, Draft

_WIDTH = array("I").itemsize


class NgramDrafter:
    """Looks for the longest end of the sequence, of at most ``longest`` tokens, that stood in it before.

    Of several places the latest counts. It keeps nothing between steps: the search is one of the bytes of
    the sequence, and takes microseconds for thousands of tokens.
    """

    cost_ratio = 0.0
    wants_hidden = False
    uses_slots = False

    def __init__(self, longest: int = 4, shortest: int = 1) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-grams of {shortest} to {longest} tokens: take 1 <= shortest <= longest")
        self._longest = longest
        self._shortest = shortest

    def start(self, capacity: Capacity) -> None:
        pass

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._propose(ask) for ask in asks]

    def forget(self, request_id: str) -> None:
        pass

    def _propose(self, ask: Ask) -> Draft:
        tokens = ask.request.token_ids
        data = array("I", tokens).tobytes()
        for n in range(min(self._longest, len(tokens) - 1), self._shortest - 1, -1):
            begin = _last_before(data, data[-n * _WIDTH :], len(tokens) - n)
            if begin is not None:
                follows = begin + n
                period = len(tokens) - follows  # a copy that reaches the end goes on with what it copied
                return Draft([tokens[follows + i % period] for i in range(min(ask.max_tokens, ask.max_depth))])
        return NO_DRAFT


def _last_before(data: bytes, pattern: bytes, position: int) -> int | None:
    """The last token position under ``position`` where ``pattern`` begins; it may reach beyond ``position``."""
    end = (position - 1) * _WIDTH + len(pattern)
    while (found := data.rfind(pattern, 0, end)) >= 0:
        if found % _WIDTH == 0:
            return found // _WIDTH
        end = found + len(pattern) - 1  # across two tokens: no match of tokens
    return None
