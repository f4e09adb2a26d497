"""The vectorized twin of `minillm.core.sampling.sample`: same order of transforms, same ties, same draw.

A greedy row is one argmax. A sampled row ranks only as many top tokens as its draw needs: it takes
the 64 most likely, then eight times as many, until the draw falls inside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.core.sampling import SamplingParams

_FIRST_HEAD = 64
_GROWTH = 8


def sample(logits: NDArray[Any], params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    """One id for each row of ``logits [S, V]``. ``ValueError`` when a row holds NaN, +inf, or bans all."""
    # argmax returns the first maximum, thus the lowest id, and the first NaN where there is one.
    best = logits.argmax(axis=1)
    tops = logits[np.arange(len(best)), best]
    if not np.isfinite(tops).all():
        row = int(np.flatnonzero(~np.isfinite(tops))[0])
        raise ValueError(
            f"row {row}: logits hold NaN or +inf, or ban every token: the model or the mask before it is broken"
        )
    return [
        int(best[row]) if p.temperature == 0 else _draw(logits[row], float(tops[row]), p, uniforms[row])
        for row, p in enumerate(params)
    ]


def _draw(logits: NDArray[Any], top: float, params: SamplingParams, uniform: float) -> int:
    weights = np.exp((logits.astype(np.float64) - top) / params.temperature)
    if params.top_k and params.top_k < len(weights):
        head = _head(weights, params.top_k)[: params.top_k]
        return _draw_from(head, weights[head] / weights[head].sum(), params, uniform)
    probabilities = weights / weights.sum()
    kept_total = 1.0
    if params.top_p == 1 and params.min_p > 0:
        kept_total = probabilities[probabilities >= params.min_p * probabilities.max()].sum()
    # Enough of the head is ranked once it holds the whole nucleus, or the place where the draw falls.
    needed = params.top_p if params.top_p < 1 else uniform * kept_total
    size = _FIRST_HEAD
    while True:
        head = _head(probabilities, size)
        reached = np.cumsum(probabilities[head])
        if size >= len(probabilities):
            return _draw_from(head, probabilities[head], params, uniform)
        if reached[-1] > needed:
            if params.top_p < 1:
                return _draw_from(head, probabilities[head], params, uniform)
            return int(head[np.searchsorted(reached, needed, side="right")])
        size *= _GROWTH


def _draw_from(head: NDArray[Any], probabilities: NDArray[np.float64], params: SamplingParams, u: float) -> int:
    """top-p and min-p on a ranked head that holds every candidate, then the inverse CDF at ``u``."""
    if params.top_p < 1:
        reached = np.cumsum(probabilities)
        probabilities = probabilities[: int(np.searchsorted(reached, params.top_p, side="left")) + 1]
    probabilities = probabilities[probabilities >= params.min_p * probabilities[0]]
    reached = np.cumsum(probabilities / probabilities.sum())
    # Rounding may keep the last sum under 1, and u above it.
    return int(head[min(int(np.searchsorted(reached, u, side="right")), len(reached) - 1)])


def _head(weights: NDArray[np.float64], size: int) -> NDArray[Any]:
    """Ids of the ``size`` largest weights above 0, and of all that equal the last of them; by
    (weight falling, id rising)."""
    if size < len(weights):
        threshold = np.partition(weights, len(weights) - size)[len(weights) - size]
        ids = np.flatnonzero((weights >= threshold) & (weights > 0))
    else:
        ids = np.flatnonzero(weights > 0)
    return ids[np.argsort(-weights[ids], kind="stable")]
