"""Arithmetic of a forward pass. One multiplication and one addition are two FLOPs.

Norms, activations, softmax and sampling are left out: they are below a percent of any model catalogued.
"""

from __future__ import annotations

from typing import Any

from minillm.costs.arithmetic import clip
from minillm.costs.check import not_negative, positive


def linear_flops(parameters: Any, tokens: Any) -> Any:
    """FLOPs of matrices with ``parameters`` weights in all, applied to ``tokens`` tokens."""
    positive(parameters=parameters)
    not_negative(tokens=tokens)
    return 2 * parameters * tokens


def attention_pairs(new_tokens: Any, cached_tokens: Any, window: Any = None) -> Any:
    """Pairs of a query and a key that causal attention visits for ``new_tokens`` behind ``cached_tokens``.

    The i-th new token sees the cache, the new ones before it, and itself, but at most ``window`` keys.
    A prefill from nothing has n (n + 1) / 2 pairs, a decode step the context's length.
    """
    not_negative(new_tokens=new_tokens, cached_tokens=cached_tokens)
    if window is None:
        return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2
    positive(window=window)
    below = clip(window - cached_tokens, 0, new_tokens)  # queries that see fewer keys than the window holds
    return below * cached_tokens + below * (below + 1) / 2 + (new_tokens - below) * window


def attention_flops(pairs: Any, heads: Any, head_dim: Any, value_head_dim: Any = None) -> Any:
    """FLOPs of scores and weighted sum of one layer for ``pairs`` of query and key, in all query heads.

    KV heads do not enter: sharing keys saves bytes, not arithmetic.
    """
    value_head_dim = head_dim if value_head_dim is None else value_head_dim
    positive(heads=heads, head_dim=head_dim, value_head_dim=value_head_dim)
    not_negative(pairs=pairs)
    return 2 * pairs * heads * (head_dim + value_head_dim)
