"""Log-probabilities as a user sees them: of the raw distribution, before penalties, bias, masks and temperature.

That is what the OpenAI API returns and vLLM by default (``logprobs_mode="raw_logprobs"``): they say what
the model believes, not what the sampler was told. ``token_logprobs`` is the reference in plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class TokenLogprobs(NamedTuple):
    """One token, and the tokens that were the most likely in its place."""

    token_id: int
    logprob: float  # natural logarithm
    rank: int  # 1 is the most likely; of equals, the lower id comes first
    top: tuple[tuple[int, float], ...]  # (id, logprob) of tokens that are not impossible, most likely first


def token_logprobs(logits: Sequence[float], token_id: int, num_top: int) -> TokenLogprobs:
    """Of ``logits [V]``: the log-probability of ``token_id`` and the ``num_top`` highest."""
    highest = max(logits)
    log_total = highest + math.log(math.fsum(math.exp(x - highest) for x in logits))
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    possible = [i for i in ranked[:num_top] if logits[i] > -math.inf]
    return TokenLogprobs(
        token_id,
        logits[token_id] - log_total,
        ranked.index(token_id) + 1,
        tuple((i, logits[i] - log_total) for i in possible),
    )
