"""How many tokens to draft: as many as the measured acceptance makes worth their time.

With acceptance a for each token, a draft of k yields 1 + a + ... + a^k tokens (the draw after the last
accepted one included) in the time of 1 + k c decode steps, where c is what drafting and verifying one more
token costs. The length with the highest ratio wins; it may be 0. Leviathan et al. (2023), section 3.5, with c
measured for verification as well: theirs takes verifying for free, which holds only while a step is bound by
memory.
"""

from __future__ import annotations

from typing import Protocol

# What is believed before anything was measured: so many tokens decided on, this share of them accepted.
_PRIOR_TOKENS = 1.0
_PRIOR_ACCEPTANCE = 0.5
# Of the weight of what was measured, with each new measurement, so that a change shows within a few steps; and
# with each step that drafts nothing and so measures nothing: after some tens of them it is tried again.
_FADE = 0.8
_IDLE_FADE = 0.95


class LengthPolicy(Protocol):
    """Consulted for each running request in each step."""

    def length(self, request_id: str) -> int:
        """Most tokens to draft now."""

    def observe(self, request_id: str, depth: int, accepted: int) -> None:
        """Of a draft with paths of ``depth`` tokens so many were accepted."""

    def forget(self, request_id: str) -> None:
        """The request ended."""


class FixedLength:
    """Always the same."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def length(self, request_id: str) -> int:
        return self._num_tokens

    def observe(self, request_id: str, depth: int, accepted: int) -> None:
        pass

    def forget(self, request_id: str) -> None:
        pass


class AdaptiveLength:
    """At most ``longest`` tokens, by the acceptance that each request has shown in its last few steps."""

    def __init__(self, longest: int, token_cost: float) -> None:
        """``token_cost``: time to draft and verify one more token, over the time of a decode step."""
        self._longest = longest
        self._token_cost = token_cost
        self._measured: dict[str, tuple[float, float]] = {}  # (tokens decided on, accepted)

    def acceptance(self, request_id: str) -> float:
        """The chance that a token is accepted where the one before it was."""
        decided, accepted = self._measured.get(request_id, (0.0, 0.0))
        return (accepted + _PRIOR_TOKENS * _PRIOR_ACCEPTANCE) / (decided + _PRIOR_TOKENS)

    def length(self, request_id: str) -> int:
        length = best_length(self.acceptance(request_id), self._token_cost, self._longest)
        if length == 0 and request_id in self._measured:
            decided, accepted = self._measured[request_id]
            self._measured[request_id] = (decided * _IDLE_FADE, accepted * _IDLE_FADE)
        return length

    def observe(self, request_id: str, depth: int, accepted: int) -> None:
        decided, total = self._measured.get(request_id, (0.0, 0.0))
        # Tokens behind the first one that was not accepted were not decided on.
        self._measured[request_id] = (decided * _FADE + min(accepted + 1, depth), total * _FADE + accepted)

    def forget(self, request_id: str) -> None:
        self._measured.pop(request_id, None)


def expected_tokens(acceptance: float, num_tokens: int) -> float:
    """Tokens that a step with a draft of ``num_tokens`` yields, each accepted with the same chance."""
    return sum(acceptance**i for i in range(num_tokens + 1))


def expected_speedup(acceptance: float, num_tokens: int, token_cost: float) -> float:
    """Tokens a unit of time, over those of plain decoding."""
    return expected_tokens(acceptance, num_tokens) / (1 + num_tokens * token_cost)


def best_length(acceptance: float, token_cost: float, longest: int) -> int:
    """The length with the highest expected speedup, the shortest of equals; 0 is no draft."""
    return max(range(longest + 1), key=lambda k: (expected_speedup(acceptance, k, token_cost), -k))
