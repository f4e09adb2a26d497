"""What speculation yields and costs: tokens of a step that verifies a draft, and its time over a plain step's."""

from __future__ import annotations

from typing import Any

from minillm.costs.arithmetic import is_expression, where
from minillm.costs.check import CostError, not_negative, positive


def speculated_tokens(acceptance: Any, draft_tokens: Any) -> Any:
    """Tokens of a step that verifies a draft, the draw after the last accepted token included.

    Each drafted token is accepted with the same chance if the one before it was: 1 + a + ... + a^k =
    (1 - a^(k+1)) / (1 - a). Leviathan et al. (ICML 2023), equation 1.
    """
    not_negative(acceptance=acceptance, draft_tokens=draft_tokens)
    if not is_expression(acceptance) and acceptance > 1:
        raise CostError(f"acceptance is {acceptance}: it is a chance, give 0 to 1")
    certain = acceptance == 1
    below = where(certain, 0.5, acceptance)  # both sides of a choice are computed, so neither may divide by 0
    return where(certain, draft_tokens + 1, (1 - below ** (draft_tokens + 1)) / (1 - below))


def speculative_speedup(acceptance: Any, draft_tokens: Any, draft_cost: Any = 0, verify_cost: Any = 1) -> Any:
    """Tokens/s over those of plain decoding.

    ``draft_cost``: time to draft a token, over that of a plain step; ``verify_cost``: time of the step that
    verifies, over the same. It is 1 where a step waits for memory, which is Leviathan et al., theorem 3.8.
    """
    not_negative(draft_cost=draft_cost)
    positive(verify_cost=verify_cost)
    return speculated_tokens(acceptance, draft_tokens) / (verify_cost + draft_tokens * draft_cost)
