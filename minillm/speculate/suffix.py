"""Suffix decoding: the longest end of the sequence that was seen before, and what followed it most often.

Oliaro et al., "SuffixDecoding" (2024). Unlike an n-gram the match has no fixed length, and it is looked for
in the request's own tokens as well as in the outputs of requests that ended: agents and edit loops write
much the same again and again. Requests of different salts share no text: how fast an output comes would tell
one tenant what another one's was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minillm.core.backend import Capacity
from minillm.speculate.automaton import SuffixAutomaton
from minillm.speculate.draft import NO_DRAFT, Ask, Draft

_SEPARATOR = -1  # no token id, so no match goes across two outputs
_CONTEXT = 64  # tokens that are looked up again when the first outputs come while a request runs


@dataclass(slots=True)
class _Followed:
    """One running request: its own text, and where its end is found among the outputs."""

    tokens: list[int]  # the request's own list, which grows
    num_prompt: int
    salt: str | None
    own: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    outputs: SuffixAutomaton | None = None
    state: int = 0
    length: int = 0


class SuffixDrafter:
    """Drafts by frequency. A text of n tokens takes some 300 n bytes."""

    cost_ratio = 0.0
    wants_hidden = False
    uses_slots = False

    def __init__(self, *, tokens_per_match: float = 2.0, least_chance: float = 0.1, most_outputs: int = 100_000):
        """A match of m tokens is good for ``tokens_per_match`` m drafted ones, as long as the chance that all
        of them come again, by the frequencies seen, is at least ``least_chance``. Outputs are kept up to
        ``most_outputs`` tokens a salt, then forgotten all at once."""
        self._tokens_per_match = tokens_per_match
        self._least_chance = least_chance
        self._most_outputs = most_outputs
        self._outputs: dict[str | None, SuffixAutomaton] = {}
        self._followed: dict[str, _Followed] = {}

    def start(self, capacity: Capacity) -> None:
        pass

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._propose(ask) for ask in asks]

    def forget(self, request_id: str) -> None:
        """The request's output is from now on one to be matched."""
        followed = self._followed.pop(request_id, None)
        if followed is None:
            return
        outputs = self._outputs.get(followed.salt)
        if outputs is None or outputs.num_tokens > self._most_outputs:
            outputs = self._outputs[followed.salt] = SuffixAutomaton()
        for token in followed.tokens[followed.num_prompt :]:
            outputs.append(token)
        outputs.append(_SEPARATOR)

    def _propose(self, ask: Ask) -> Draft:
        request = ask.request
        followed = self._followed.get(request.request_id)
        if followed is None:
            followed = _Followed(request.token_ids, request.num_prompt, request.salt)
            self._followed[request.request_id] = followed
        self._catch_up(followed)
        candidates = [(followed.own, *followed.own.earlier())]
        if followed.outputs is not None:
            candidates.append((followed.outputs, followed.state, followed.length))
        best: tuple[list[int], float] = ([], 0.0)
        for automaton, state, length in candidates:
            most = min(ask.max_tokens, ask.max_depth, int(length * self._tokens_per_match))
            found = automaton.follow(state, length, most, self._least_chance)
            if found[1] > best[1]:
                best = found
        return Draft(best[0]) if best[0] else NO_DRAFT

    def _catch_up(self, followed: _Followed) -> None:
        """Take in the tokens that came since the last time."""
        seen = followed.own.num_tokens
        for token in followed.tokens[seen:]:
            followed.own.append(token)
        outputs = self._outputs.get(followed.salt)
        if outputs is not followed.outputs:  # the first ones, or new ones after all were forgotten
            followed.outputs, followed.state, followed.length = outputs, 0, 0
            seen = max(0, seen - _CONTEXT)
        if outputs is not None:
            for token in followed.tokens[seen:]:
                followed.state, followed.length = outputs.advance(followed.state, followed.length, token)
