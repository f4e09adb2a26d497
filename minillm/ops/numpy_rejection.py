"""The rejection rule of `minillm.speculate.rejection` for all rows at once, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minillm.speculate.rejection import Proposal

Floats = NDArray[np.float64]


def draw_against(target: Floats, proposals: Sequence[Proposal], uniforms: Sequence[float]) -> list[int]:
    """One id for each row of ``target [n, V]``, probabilities; the drafted one exactly where that is kept."""
    rows = np.arange(len(proposals))
    q = proposed(proposals, target.shape[1])
    drafted = np.array([proposal.token_id for proposal in proposals])
    coins = np.array([proposal.coin for proposal in proposals])
    kept = coins * q[rows, drafted] < target[rows, drafted]
    residual = np.maximum(target - q, 0.0)
    residual[rows, drafted] = 0.0
    empty = residual.sum(axis=1) <= 0  # p and q are equal but for rounding
    residual[empty] = target[empty]
    running = residual.cumsum(axis=1)
    wanted = np.asarray(uniforms)[:, None] * residual.sum(axis=1, keepdims=True)
    # Rounding may keep the last sum under the draw: then it is the last token that has any weight.
    last = target.shape[1] - 1 - (residual[:, ::-1] > 0).argmax(axis=1)
    place = np.minimum((running <= wanted).sum(axis=1), last)
    ids: list[int] = np.where(kept, drafted, place).tolist()
    return ids


def proposed(proposals: Sequence[Proposal], vocab_size: int) -> Floats:
    """``[n, V]``, what each token was drawn from. ``ValueError`` for a row that is no distribution."""
    q = np.zeros((len(proposals), vocab_size))
    for row, proposal in zip(q, proposals, strict=True):
        if proposal.probabilities is None:
            row[proposal.token_id] = 1.0
        else:
            row[:] = np.asarray(proposal.probabilities)
    sums = q.sum(axis=1)
    if not ((np.abs(sums - 1) < 1e-3).all() and (q >= 0).all()):
        bad = int(np.flatnonzero((np.abs(sums - 1) >= 1e-3) | (q < 0).any(axis=1) | np.isnan(sums))[0])
        raise ValueError(
            f"the drafter's probabilities for token {proposals[bad].token_id} sum to {sums[bad]:.4g}, the least is "
            f"{q[bad].min():.4g}: they must sum to 1, none under 0"
        )
    return q
