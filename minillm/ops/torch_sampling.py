"""Sampling on torch's device, all rows of a batch at once: the twin of `minillm.core.sampling.sample`.

Greedy rows are one argmax. Rows that are sampled rank their 256 most likely tokens; only when some
row's draw needs more, or a tie straddles the cut, are whole rows sorted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minillm.core.sampling import SamplingParams
from minillm.core.sampling.logprobs import TokenLogprobs
from minillm.core.sampling.shaping import Transform
from minillm.ops.transforms import flatten

_HEAD = 256
_ROWS = 64


_NOTHING: Mapping[int, Transform] = {}


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    uniforms: Sequence[float],
    transforms: Mapping[int, Transform] = _NOTHING,
) -> list[int]:
    """One id for each row of ``logits [S, V]``. ``ValueError`` when a row holds NaN, +inf, or bans all."""
    if not params:
        return []
    if transforms:
        logits = _shaped(logits, transforms)
    ids = logits.argmax(dim=1)  # the first of equal maxima, thus the lowest id; the first NaN, if any
    finite = torch.isfinite(logits.gather(1, ids[:, None]).squeeze(1))
    drawn = [row for row, p in enumerate(params) if p.temperature > 0]
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        ids[rows] = _draw(logits[rows], [params[r] for r in drawn], [uniforms[r] for r in drawn])
    result, usable = torch.stack((ids, finite.to(ids.dtype))).tolist()  # one transfer for both
    if not all(usable):
        raise ValueError(
            f"row {usable.index(0)}: logits hold NaN or +inf, or ban every token: the model or the mask "
            "before it is broken"
        )
    return list(result)


def distributions(
    logits: Tensor, params: Sequence[SamplingParams], transforms: Mapping[int, Transform] = _NOTHING
) -> Tensor:
    """``[S, V]`` float64 probabilities from which ``sample`` draws: twins of `minillm.core.sampling.distribution`."""
    if transforms:
        logits = _shaped(logits, transforms)
    greedy = torch.tensor([p.temperature == 0 for p in params], device=logits.device)[:, None]
    best = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    best.scatter_(1, logits.argmax(dim=1, keepdim=True), 1.0)
    weights, settings = _weights(logits, params, [0.0] * len(params))
    ranked, ids = torch.sort(weights, dim=1, descending=True, stable=True)
    kept, _ = _kept(ranked, weights, settings)
    found = torch.zeros_like(weights).scatter_(1, ids, kept / kept.sum(1, keepdim=True))
    if not bool(torch.isfinite(found).all()):
        row = int((~torch.isfinite(found)).any(1).nonzero()[0])
        raise ValueError(
            f"row {row}: logits hold NaN or +inf, or ban every token: the model or the mask before it is broken"
        )
    return torch.where(greedy, best, found)


def _shaped(logits: Tensor, transforms: Mapping[int, Transform]) -> Tensor:
    """A copy in float64, so that a penalty rounds as in the reference."""
    flat = flatten(transforms, logits.shape[1])

    def put(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(logits.device)

    def places(where: tuple[np.ndarray, np.ndarray]) -> tuple[Tensor, Tensor]:
        return put(where[0]), put(where[1])

    shaped = logits.to(torch.float64, copy=True)
    where, repetition = places(flat.penalized), put(flat.repetition)
    values = shaped[where]
    shaped[where] = torch.where(values > 0, values / repetition, values * repetition) - put(flat.subtracted)
    where = places(flat.biased)
    shaped[where] = shaped[where] + put(flat.bias)
    shaped[places(flat.banned)] = -torch.inf
    rows = put(flat.masked_rows)
    shaped[rows] = shaped[rows].masked_fill(~put(flat.masks), -torch.inf)
    return shaped


def logprobs(
    logits: Tensor, rows: Sequence[int], token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """The twin of `minillm.core.sampling.logprobs.token_logprobs`, some rows at a time: each is copied in float64."""
    found: list[TokenLogprobs] = []
    for start in range(0, len(rows), _ROWS):
        some = slice(start, start + _ROWS)
        found += _logprobs(logits, rows[some], token_ids[some], num_top[some])
    return found


def _logprobs(
    logits: Tensor, rows: Sequence[int], token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    scores = torch.log_softmax(logits[torch.tensor(rows, device=logits.device)].double(), dim=1)
    targets = torch.tensor(token_ids, device=logits.device)[:, None]
    own = scores.gather(1, targets)
    before = torch.arange(scores.shape[1], device=logits.device) < targets
    ranks = 1 + ((scores > own) | ((scores == own) & before)).sum(1)
    size = min(max(1, *num_top), scores.shape[1])
    values, ids, untied = _largest(scores, size)
    if not bool(untied.all()):
        values, ids = (x[:, :size] for x in torch.sort(scores, dim=1, descending=True, stable=True))
    columns = zip(token_ids, own.squeeze(1).tolist(), ranks.tolist(), ids.tolist(), values.tolist(), strict=True)
    return [
        TokenLogprobs(token, value, rank, tuple(e for e in zip(top[:n], tops[:n], strict=True) if e[1] > -math.inf))
        for (token, value, rank, top, tops), n in zip(columns, num_top, strict=True)
    ]


@dataclass(slots=True)
class _Settings:
    """Parameters of ``n`` rows, as columns ``[n, 1]``."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    typical_p: Tensor
    uniform: Tensor


def _draw(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """``[n]`` ids drawn from ``logits [n, V]``, in float64."""
    weights, settings = _weights(logits, params, uniforms)
    if logits.shape[1] > _HEAD and all(p.typical_p == 1 for p in params):  # the entropy needs all tokens
        ranked, ids, untied = _largest(weights, _HEAD)
        chosen, enough = _pick(ranked, ids, weights, settings)
        # A tie of weights that are 0 concerns nobody: none of them can be drawn.
        if bool((enough & (untied | (ranked[:, -1] == 0))).all()):
            return chosen
    ranked, ids = torch.sort(weights, dim=1, descending=True, stable=True)  # of equals, the lower id first
    return _pick(ranked, ids, weights, settings)[0]


def _weights(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> tuple[Tensor, _Settings]:
    """``[n, V]`` probabilities but for their scale: the highest weight of a row is 1. Greedy rows count as 1."""
    vocab = logits.shape[1]

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float64, device=logits.device)[:, None]

    scores = logits.double()
    temperatures = column([p.temperature or 1.0 for p in params])
    settings = _Settings(
        top_k=column([min(p.top_k, vocab) if p.top_k else vocab for p in params]),
        top_p=column([p.top_p for p in params]),
        min_p=column([p.min_p for p in params]),
        typical_p=column([p.typical_p for p in params]),
        uniform=column(uniforms),
    )
    return torch.exp((scores - scores.amax(dim=1, keepdim=True)) / temperatures), settings


def _largest(values: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ``size`` largest of each row by (value falling, id rising), their ids, and whether no tie was cut ``[n]``."""
    found, ids = torch.topk(values, size, dim=1)  # equals come in no order
    ids, order = torch.sort(ids, dim=1)
    ranked, again = torch.sort(found.gather(1, order), dim=1, descending=True, stable=True)
    untied = (values >= ranked[:, -1:]).sum(dim=1) == size
    return ranked, ids.gather(1, again), untied


def _pick(ranked: Tensor, ids: Tensor, weights: Tensor, s: _Settings) -> tuple[Tensor, Tensor]:
    """For each row the token at ``s.uniform``, and whether the ranked head was long enough to tell.

    ``ranked, ids [n, h]`` are the head of ``weights [n, V]``; all columns broadcast over it.
    """
    size = ranked.shape[1]
    ranks = torch.arange(size, device=ranked.device)
    closed = s.top_k <= size  # nothing behind the head can be drawn; so, too, when the head is all
    probabilities, reached = _kept(ranked, weights, s)
    mass = probabilities.sum(1, keepdim=True)
    # With neither top-k nor top-p, what lies behind the head counts as well.
    share_kept = torch.where(weights >= s.min_p, weights, 0.0).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
    mass = torch.where(closed | (s.top_p < 1), mass, share_kept)
    running = probabilities.cumsum(dim=1) / mass
    # Rounding may keep the last sum under the draw: then it is the last token that is kept.
    last = torch.where(probabilities > 0, ranks, -1).amax(1, keepdim=True)
    place = torch.minimum((running <= s.uniform).sum(1, keepdim=True), last)
    # A top-k that ends behind the head needs the order up to there to know its sum.
    unlimited = s.top_k == weights.shape[1]
    covered = torch.where(s.top_p < 1, reached[:, -1:] >= s.top_p, running[:, -1:] > s.uniform)
    enough = closed | (unlimited & covered)
    return ids.gather(1, place.clamp(min=0)).squeeze(1), enough.squeeze(1)


def _kept(ranked: Tensor, weights: Tensor, s: _Settings) -> tuple[Tensor, Tensor]:
    """``[n, h]``: probabilities of the tokens of a ranked head that are left, not scaled anew; and the running sums
    of all of the head, before anything but top-k was cut."""
    size = ranked.shape[1]
    ranks = torch.arange(size, device=ranked.device)
    ranked = torch.where(ranks < s.top_k, ranked, 0.0)
    total = torch.where(s.top_k <= size, ranked.sum(1, keepdim=True), weights.sum(1, keepdim=True))
    probabilities = ranked / total
    reached = probabilities.cumsum(dim=1)
    before = torch.cat((torch.zeros_like(reached[:, :1]), reached[:, :-1]), dim=1)
    # The nucleus ends with the token that reaches top_p; the first is always in it.
    kept = ((before < s.top_p) | (s.top_p == 1)) & (ranked >= s.min_p) & (ranked > 0)
    probabilities = torch.where(kept, probabilities, 0.0)
    if bool((s.typical_p < 1).any()):
        typical = _typical(probabilities / probabilities.sum(1, keepdim=True), s.typical_p)
        probabilities = torch.where(typical | (s.typical_p == 1), probabilities, 0.0)
    return probabilities, reached


def _typical(probabilities: Tensor, typical_p: Tensor) -> Tensor:
    """True for the tokens of each row ``[n, V]`` whose surprise is nearest to the entropy, until they reach
    ``typical_p [n, 1]``."""
    surprise = -torch.log(probabilities)
    entropy = torch.where(probabilities > 0, probabilities * surprise, 0.0).sum(1, keepdim=True)
    _, nearest = torch.sort((surprise - entropy).abs(), dim=1, stable=True)
    reached = probabilities.gather(1, nearest).cumsum(dim=1)
    before = torch.cat((torch.zeros_like(reached[:, :1]), reached[:, :-1]), dim=1)
    return torch.zeros_like(probabilities, dtype=torch.bool).scatter(1, nearest, before < typical_p)
