"""Bytes of the KV cache, for every kind of attention whose cache is known.

A model's cache is a sum over groups of layers (:class:`CacheGroup`), since layers differ: some keep all
tokens, some the last few, some none. Each function takes numbers, arrays or chart parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minillm.costs.arithmetic import ceildiv, floordiv, maximum, minimum
from minillm.costs.check import CostError, not_negative, positive
from minillm.costs.dtypes import size_bytes


@dataclass(frozen=True)
class CacheGroup:
    """``layers`` layers whose caches are alike.

    ``values_per_token`` numbers are stored for each token and layer; ``window`` is the number of most
    recent tokens that a layer needs, None for all. ``state_bytes`` is held once for each sequence and
    layer whatever its length (a recurrent or state-space layer; then ``values_per_token`` is 0).
    """

    layers: Any
    values_per_token: Any
    window: Any = None
    state_bytes: Any = 0

    def __post_init__(self) -> None:
        positive(layers=self.layers)
        not_negative(values_per_token=self.values_per_token, state_bytes=self.state_bytes)
        if self.window is not None:
            positive(window=self.window)


def kv_values_per_token(kv_heads: Any, head_dim: Any, value_head_dim: Any = None) -> Any:
    """Numbers that one layer stores for a token: a key and a value for each KV head.

    Multi-head attention has as many KV heads as query heads, multi-query attention has one. A value may
    be longer or shorter than a key.
    """
    value_head_dim = head_dim if value_head_dim is None else value_head_dim
    positive(kv_heads=kv_heads, head_dim=head_dim, value_head_dim=value_head_dim)
    return kv_heads * (head_dim + value_head_dim)


def latent_values_per_token(kv_lora_rank: Any, rope_dim: Any) -> Any:
    """Numbers that one layer of MLA stores for a token: the latent vector and the rotated key, each once.

    There is no factor 2: keys and values are both computed from the latent (DeepSeek-V2, section 2.1).
    """
    positive(kv_lora_rank=kv_lora_rank, rope_dim=rope_dim)
    return kv_lora_rank + rope_dim


def expanded_latent_values_per_token(heads: Any, nope_dim: Any, rope_dim: Any, value_head_dim: Any) -> Any:
    """Numbers that one layer of MLA stores for a token in a runtime that caches the expanded keys and values."""
    positive(nope_dim=nope_dim, rope_dim=rope_dim)
    return kv_values_per_token(heads, nope_dim + rope_dim, value_head_dim)


def kv_bytes_per_token(layers: Any, kv_heads: Any, head_dim: Any, bytes_per_value: Any) -> Any:
    """Bytes a token adds to the cache of a model whose layers are all alike and keep every token."""
    positive(layers=layers, bytes_per_value=bytes_per_value)
    return layers * kv_values_per_token(kv_heads, head_dim) * bytes_per_value


def growth_bytes_per_token(groups: Sequence[CacheGroup], dtype: str, context_tokens: Any = 0) -> Any:
    """Bytes that the next token adds at ``context_tokens``: a layer whose window is full adds none."""
    not_negative(context_tokens=context_tokens)
    values: Any = 0
    for g in groups:
        grows = 1 if g.window is None else minimum(maximum(g.window - context_tokens, 0), 1)
        values = values + g.layers * g.values_per_token * grows
    return size_bytes(values, dtype)


def kv_logical_bytes(groups: Sequence[CacheGroup], context_tokens: Any, dtype: str, batch: Any = 1) -> Any:
    """Bytes of the keys and values that attention can still read: ``batch`` sequences of ``context_tokens``."""
    not_negative(context_tokens=context_tokens, batch=batch)
    values: Any = 0
    for g in groups:
        held = context_tokens if g.window is None else minimum(context_tokens, g.window)
        values = values + g.layers * g.values_per_token * held
    return batch * (size_bytes(values, dtype) + _state_bytes(groups))


def kv_allocated_bytes(
    groups: Sequence[CacheGroup],
    context_tokens: Any,
    dtype: str,
    block_size: Any,
    batch: Any = 1,
    *,
    frees_behind_window: bool = False,
) -> Any:
    """Bytes that an engine with whole blocks reserves for the same sequences; never below the logical bytes.

    With one block table for all layers, each layer has a slot for every token, windows or not. With
    ``frees_behind_window`` layers of a kind have their own table and give back blocks that lie wholly
    behind their window, so a full window takes up to one block more than its tokens fill.
    """
    not_negative(context_tokens=context_tokens, batch=batch)
    positive(block_size=block_size)
    blocks = ceildiv(context_tokens, block_size)
    slots: Any = 0
    for g in groups:
        held = blocks
        if frees_behind_window and g.window is not None:
            held = blocks - floordiv(maximum(context_tokens - g.window, 0), block_size)
        slots = slots + g.layers * g.values_per_token * held
    return batch * (size_bytes(slots * block_size, dtype) + _state_bytes(groups))


def max_context_tokens(groups: Sequence[CacheGroup], budget_bytes: int, dtype: str, batch: int = 1) -> int | None:
    """The longest context of which ``batch`` sequences fit into ``budget_bytes``; None where no length is too long.

    Inverts :func:`kv_logical_bytes`, which is not linear: the bytes of one token say nothing about a window.
    """
    positive(budget_bytes=budget_bytes, batch=batch)
    if kv_logical_bytes(groups, 0, dtype, batch) > budget_bytes:
        raise CostError(f"budget_bytes is {budget_bytes}: the state of {batch} sequences alone is larger")
    unbounded = sum(g.layers * g.values_per_token for g in groups if g.window is None) == 0
    high = 1 + max((g.window for g in groups if g.window is not None), default=0)
    if unbounded and kv_logical_bytes(groups, high, dtype, batch) <= budget_bytes:
        return None
    while kv_logical_bytes(groups, high, dtype, batch) <= budget_bytes:
        high *= 2
    low = 0  # fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if kv_logical_bytes(groups, middle, dtype, batch) <= budget_bytes else (low, middle)
    return low


def _state_bytes(groups: Sequence[CacheGroup]) -> Any:
    return sum((g.layers * g.state_bytes for g in groups), start=0)
