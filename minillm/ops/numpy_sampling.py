"""The vectorized twin of `minillm.core.sampling.sample`: same order of transforms, same ties, same draw.

A greedy row is one argmax. A sampled row ranks only as many top tokens as its draw needs: it takes
the 64 most likely, then eight times as many, until the draw falls inside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.core.sampling import SamplingParams
from minillm.core.sampling.logprobs import TokenLogprobs
from minillm.core.sampling.shaping import Transform
from minillm.ops.transforms import flatten

_FIRST_HEAD = 64
_GROWTH = 8


_NOTHING: Mapping[int, Transform] = {}


def sample(
    logits: NDArray[Any],
    params: Sequence[SamplingParams],
    uniforms: Sequence[float],
    transforms: Mapping[int, Transform] = _NOTHING,
) -> list[int]:
    """One id for each row of ``logits [S, V]``. ``ValueError`` when a row holds NaN, +inf, or bans all."""
    logits, best, tops = _tops(logits, transforms)
    return [
        int(best[row]) if p.temperature == 0 else _draw(logits[row], float(tops[row]), p, uniforms[row])
        for row, p in enumerate(params)
    ]


def distributions(
    logits: NDArray[Any], params: Sequence[SamplingParams], transforms: Mapping[int, Transform] = _NOTHING
) -> NDArray[np.float64]:
    """``[S, V]`` probabilities from which ``sample`` draws, the twin of `minillm.core.sampling.distribution`."""
    logits, best, tops = _tops(logits, transforms)
    found = np.zeros(logits.shape)
    for row, p in enumerate(params):
        if p.temperature == 0:
            found[row, best[row]] = 1.0
            continue
        weights = np.exp((logits[row].astype(np.float64) - tops[row]) / p.temperature)
        if p.top_k or p.top_p < 1 or p.typical_p < 1:
            head = _head(weights, p.top_k or len(weights))[: p.top_k or None]
            ids, probabilities = _kept(head, weights[head] / weights[head].sum(), p)
            found[row, ids] = probabilities
        else:  # nothing that needs an order: the highest weight is 1
            weights[weights < p.min_p] = 0.0
            found[row] = weights / weights.sum()
    return found


def _tops(
    logits: NDArray[Any], transforms: Mapping[int, Transform]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
    """(shaped logits, the most likely id of each row, its logit). ``ValueError`` for a row that is broken."""
    if transforms:
        logits = _shaped(logits, transforms)
    # argmax returns the first maximum, thus the lowest id, and the first NaN where there is one.
    best = logits.argmax(axis=1)
    tops = logits[np.arange(len(best)), best]
    if not np.isfinite(tops).all():
        row = int(np.flatnonzero(~np.isfinite(tops))[0])
        raise ValueError(
            f"row {row}: logits hold NaN or +inf, or ban every token: the model or the mask before it is broken"
        )
    return logits, best, tops


def _shaped(logits: NDArray[Any], transforms: Mapping[int, Transform]) -> NDArray[np.float64]:
    """A copy in float64, so that a penalty rounds as in the reference."""
    flat = flatten(transforms, logits.shape[1])
    shaped = logits.astype(np.float64)
    values = shaped[flat.penalized]
    divided = np.where(values > 0, values / flat.repetition, values * flat.repetition)
    shaped[flat.penalized] = divided - flat.subtracted
    shaped[flat.biased] += flat.bias
    shaped[flat.banned] = -np.inf
    shaped[flat.masked_rows] = np.where(flat.masks, shaped[flat.masked_rows], -np.inf)
    return shaped


def logprobs(
    logits: NDArray[Any], rows: Sequence[int], token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """The twin of `minillm.core.sampling.logprobs.token_logprobs`, row by row."""
    return [_logprobs(logits[row], *wanted) for row, *wanted in zip(rows, token_ids, num_top, strict=True)]


def _logprobs(logits: NDArray[Any], token_id: int, num_top: int) -> TokenLogprobs:
    scores = logits.astype(np.float64)
    highest = scores.max()
    scores -= highest + np.log(np.exp(scores - highest).sum())
    own = scores[token_id]
    rank = 1 + np.count_nonzero(scores > own) + np.count_nonzero(scores[:token_id] == own)
    top = _largest(scores, num_top, scores > -np.inf)[:num_top].tolist() if num_top else []
    return TokenLogprobs(token_id, float(own), int(rank), tuple((i, float(scores[i])) for i in top))


def _draw(logits: NDArray[Any], top: float, params: SamplingParams, uniform: float) -> int:
    weights = np.exp((logits.astype(np.float64) - top) / params.temperature)
    if params.top_k and params.top_k < len(weights):
        head = _head(weights, params.top_k)[: params.top_k]
        return _draw_from(head, weights[head] / weights[head].sum(), params, uniform)
    probabilities = weights / weights.sum()
    if params.typical_p < 1:  # the entropy needs all of them
        head = _head(probabilities, len(probabilities))
        return _draw_from(head, probabilities[head], params, uniform)
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
    """The inverse CDF at ``u`` of what is left of a ranked head that holds every candidate."""
    head, probabilities = _kept(head, probabilities, params)
    reached = np.cumsum(probabilities)
    # Rounding may keep the last sum under 1, and u above it.
    return int(head[min(int(np.searchsorted(reached, u, side="right")), len(reached) - 1)])


def _kept(
    head: NDArray[Any], probabilities: NDArray[np.float64], params: SamplingParams
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """top-p, min-p and typical-p on a ranked head: the ids that are left, and their probabilities, scaled to 1."""
    if params.top_p < 1:
        reached = np.cumsum(probabilities)
        probabilities = probabilities[: int(np.searchsorted(reached, params.top_p, side="left")) + 1]
    probabilities = probabilities[probabilities >= params.min_p * probabilities[0]]
    if params.typical_p < 1:
        kept = _typical(probabilities / probabilities.sum(), params.typical_p)
        head, probabilities = head[kept], probabilities[kept]
    return head[: len(probabilities)], probabilities / probabilities.sum()


def _typical(probabilities: NDArray[np.float64], typical_p: float) -> NDArray[Any]:
    """Places, rising, of the tokens whose surprise is nearest to the entropy, until they reach ``typical_p``."""
    surprise = -np.log(probabilities)
    nearest = np.argsort(np.abs(surprise - probabilities @ surprise), kind="stable")
    reached = np.cumsum(probabilities[nearest])
    return np.sort(nearest[: int(np.searchsorted(reached, typical_p, side="left")) + 1])


def _head(weights: NDArray[np.float64], size: int) -> NDArray[Any]:
    """Ids of the ``size`` largest weights above 0, and of all that equal the last of them; by
    (weight falling, id rising)."""
    return _largest(weights, size, weights > 0)


def _largest(values: NDArray[np.float64], size: int, eligible: NDArray[np.bool_]) -> NDArray[Any]:
    """Eligible ids among the ``size`` largest values and all that equal the last of them; by (value falling,
    id rising)."""
    if size < len(values):
        eligible = eligible & (values >= np.partition(values, len(values) - size)[len(values) - size])
    ids = np.flatnonzero(eligible)
    return ids[np.argsort(-values[ids], kind="stable")]
