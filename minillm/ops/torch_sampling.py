"""Sampling on torch's device, all rows of a batch at once: the twin of `minillm.core.sampling.sample`.

Greedy rows are one argmax. Rows that are sampled rank their 256 most likely tokens; only when some
row's draw needs more, or a tie straddles the cut, the whole rows are sorted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minillm.core.sampling import SamplingParams

_HEAD = 256


def sample(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    """One id for each row of ``logits [S, V]``. ``ValueError`` when a row holds NaN, +inf, or bans all."""
    best = logits.argmax(dim=1)  # the first of equal maxima, thus the lowest id
    tops = logits.gather(1, best[:, None]).squeeze(1)
    drawn = [row for row, p in enumerate(params) if p.temperature > 0]
    if drawn and bool(torch.isfinite(tops).all()):
        rows = torch.tensor(drawn, device=logits.device)
        best[rows] = _draw(logits[rows], [params[r] for r in drawn], [uniforms[r] for r in drawn])
    broken = ~torch.isfinite(tops)
    ids, bad = torch.stack((best, broken.to(best.dtype))).tolist()  # one transfer for both
    if any(bad):
        raise ValueError(
            f"row {bad.index(1)}: logits hold NaN or +inf, or ban every token: the model or the mask "
            "before it is broken"
        )
    return list(ids)


def _draw(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """``[n]`` ids drawn from ``logits [n, V]``, in float64."""
    vocab = logits.shape[1]

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float64, device=logits.device)[:, None]

    scores = logits.double()
    weights = torch.exp((scores - scores.amax(dim=1, keepdim=True)) / column([p.temperature for p in params]))
    top_k = column([min(p.top_k, vocab) if p.top_k else vocab for p in params])
    settings = (top_k, column([p.top_p for p in params]), column([p.min_p for p in params]), column(uniforms))
    if vocab > _HEAD:
        chosen, complete = _pick(*_ranked_head(weights, _HEAD), weights, *settings)
        if bool(complete.all()):
            return chosen
    ranked, ids = torch.sort(weights, dim=1, descending=True, stable=True)  # ties: the lower id first
    return _pick(ranked, ids, None, weights, *settings)[0]


def _ranked_head(weights: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ``size`` largest by (weight falling, id rising), their ids, and whether no tie was cut ``[n]``."""
    values, ids = torch.topk(weights, size, dim=1)
    ids, order = torch.sort(ids, dim=1)
    ranked, again = torch.sort(values.gather(1, order), dim=1, descending=True, stable=True)
    last = ranked[:, -1:]
    untied = (weights >= last).sum(dim=1) == size
    return ranked, ids.gather(1, again), untied | (last.squeeze(1) == 0)


def _pick(
    ranked: Tensor,
    ids: Tensor,
    untied: Tensor | None,
    weights: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
) -> tuple[Tensor, Tensor]:
    """The token at ``uniform`` and, for each row, whether the ranked head was long enough to tell."""
    size, vocab = ranked.shape[1], weights.shape[1]
    kept = torch.where(torch.arange(size, device=ranked.device) < top_k, ranked, 0.0)
    by_top_k = top_k <= size
    total = torch.where(by_top_k, kept.sum(dim=1, keepdim=True), weights.sum(dim=1, keepdim=True))
    probabilities = kept / total
    before = probabilities.cumsum(dim=1) - probabilities
    reached = probabilities.cumsum(dim=1)
    # top-p keeps a token when those before it have not reached top_p; the first is always kept.
    shifted = torch.cat((torch.zeros_like(before[:, :1]), reached[:, :-1]), dim=1)
    nucleus = (shifted < top_p) | (top_p >= 1)
    kept_mask = nucleus & (probabilities >= min_p * probabilities[:, :1]) & (probabilities > 0)
    final = torch.where(kept_mask, probabilities, 0.0)
    in_head = final.sum(dim=1, keepdim=True)
    # Without top-k and top-p, tokens after the head take part too: their mass comes from all weights.
    everything = weights / weights.sum(dim=1, keepdim=True)
    floor = min_p * everything.amax(dim=1, keepdim=True)
    total_kept = torch.where(everything >= floor, everything, 0.0).sum(dim=1, keepdim=True)
    open_ended = ~by_top_k & (top_p >= 1)
    mass = torch.where(open_ended & (size < vocab), total_kept, in_head)
    running = final.cumsum(dim=1) / mass
    place = (running <= uniform).sum(dim=1, keepdim=True)
    last = kept_mask.sum(dim=1, keepdim=True) - 1
    complete = by_top_k | torch.where(top_p < 1, reached[:, -1:] >= top_p, running[:, -1:] > uniform)
    if untied is not None:
        complete &= untied[:, None]
    return ids.gather(1, torch.minimum(place, last)).squeeze(1), complete.squeeze(1)
