"""Which experts a token visits, in NumPy: see `minillm.ops.base.Ops.route`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.ops.routing import Routing

Array = NDArray[Any]


def route(logits: Array, routing: Routing, bias: Array | None) -> tuple[Array, Array]:
    if routing.scoring == "softmax":
        scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
    else:
        scores = _sigmoid(logits)
    candidates = scores if bias is None else scores + bias
    if routing.groups > 1:
        by_group = np.sort(candidates.reshape(len(scores), routing.groups, -1), axis=-1)
        worth = by_group[..., -routing.group_best :].sum(axis=-1)  # [T, groups]
        taken = np.argsort(-worth, axis=-1, kind="stable")[:, : routing.top_groups]
        is_open = np.zeros(worth.shape, dtype=bool)
        np.put_along_axis(is_open, taken, True, axis=-1)
        candidates = np.where(is_open.repeat(routing.count // routing.groups, axis=-1), candidates, -np.inf)
    chosen = np.argsort(-candidates, axis=-1, kind="stable")[:, : routing.per_token]
    shares = np.take_along_axis(scores, chosen, axis=-1)
    if routing.renormalize:
        shares /= shares.sum(axis=-1, keepdims=True)
    return chosen, shares * routing.scale


def _sigmoid(x: Array) -> Array:
    # exp(-x) overflows to inf for x < -88 in float32, which gives the right limit.
    with np.errstate(over="ignore"):
        result: Array = 1 / (1 + np.exp(-x))
    return result
