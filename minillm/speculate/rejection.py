"""The rejection rule of speculative sampling, in plain Python: the reference that backends vectorize.

A token d was drawn from the drafter's q; the target has p. d is kept with probability min(1, p(d) / q(d)),
else a token is drawn from the residual, max(0, p - q) scaled to sum to 1. The result is distributed as p:
d comes out by being kept with q(d) min(1, p(d) / q(d)) = min(p(d), q(d)), and by a residual draw with what
p(d) has above that. Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (ICML
2023), theorem 3.5 and appendix A.1; Chen et al., "Accelerating Large Language Model Decoding with Speculative
Sampling" (2023), theorem 1. p and q are those after temperature, top-k, top-p and min-p: the rule asks
nothing else of q than that d was drawn from it.

Three independent numbers belong to output i of a request: the drafter's draw, the coin that keeps or
rejects, and the residual's (or, without a draft, the target's own) draw. Each is a function of the
request's seed and of i. A number of an output that has not come out yet influenced no token that has: so
to draft the same place again with the same number, after a rejection before it, biases nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from minillm.core.sampling import uniform

# Streams of random numbers besides the target's own: the seed of each is the request's, with these bits flipped.
_DRAFT_STREAM = 0x6472616674  # "draft"
_COIN_STREAM = 0x636F696E  # "coin"


class Row(Protocol):
    """Probabilities ``[V]`` of one draw: a list, or an array of one dimension."""

    def __len__(self) -> int: ...

    def __getitem__(self, token_id: int, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """A drafted token in whose place a draw is made."""

    token_id: int
    probabilities: Row | None  # what it was drawn from; None: it was certain
    coin: float  # in [0, 1)


def draft_seed(seed: int) -> int:
    """Of the numbers that a drafter draws with, independent of the target's."""
    return seed ^ _DRAFT_STREAM


def coin(seed: int, index: int) -> float:
    """The number in [0, 1) that decides whether the token drafted for output ``index`` is kept."""
    return uniform(seed ^ _COIN_STREAM, index)


def draw_against(target: Sequence[tuple[int, float]], proposal: Proposal, draw: float) -> int:
    """The token in a drafted one's place. ``target`` is what ``sampling.distribution`` returns.

    It equals ``proposal.token_id`` exactly if that was kept: the residual gives it nothing. ``draw`` in
    [0, 1) picks from the residual, whose tokens are taken in the order of their ids.
    """
    drafted, q = proposal.token_id, proposal.probabilities
    p = dict(target)
    certainty = 1.0 if q is None else q[drafted]
    if proposal.coin * certainty < p.get(drafted, 0.0):
        return drafted
    residual = [
        (token_id, max(0.0, probability - (0.0 if q is None else q[token_id])))
        for token_id, probability in sorted(p.items())
        if token_id != drafted
    ]
    mass = math.fsum(weight for _, weight in residual)
    if mass <= 0:  # p and q are equal but for rounding, so d is kept but for rounding, too
        residual, mass = sorted(p.items()), 1.0
    reached, last = 0.0, residual[0][0]
    for token_id, weight in residual:
        if weight > 0:
            reached, last = reached + weight, token_id
            if draw * mass < reached:
                break
    return last  # rounding may keep the sum under the draw
