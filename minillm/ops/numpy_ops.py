"""The operators in NumPy: the reference, and what runs in the browser.

The same code computes in float32 and, as the oracle of the tests, in float64: the dtype is that of
the arrays it is given. Shapes and meanings are those of `minillm.ops.base.Ops`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.core.plan import StepPlan
from minillm.models.spec import Activation
from minillm.ops.base import AttentionSpec, Batch
from minillm.ops.numpy_sampling import sample

__all__ = [
    "add_rms_norm",
    "attention",
    "attention_index",
    "embed",
    "linear",
    "rms_norm",
    "rope_and_store_kv",
    "sample",
    "soft_cap",
    "swiglu",
    "take_rows",
]

Array = NDArray[Any]

# Queries of a chunk that are scored at once: bounds the score matrix at tile * context elements a head.
_QUERY_TILE = 128
# NumPy for the browser is built without a BLAS: its matmul is a plain loop, its einsum is vectorized.
_HAS_BLAS = sys.platform != "emscripten"


def embed(table: Array, token_ids: Array) -> Array:
    return table[token_ids]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    mean_square: Array = np.add.reduce(x * x, axis=-1, keepdims=True) / x.shape[-1]
    result: Array = x / np.sqrt(mean_square + eps) * weight
    return result


def add_rms_norm(x: Array, residual: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    total = x + residual
    return rms_norm(total, weight, eps), total


def _matmul(a: Array, b: Array) -> Array:
    result: Array = a @ b if _HAS_BLAS else np.einsum("...ij,...jk->...ik", a, b)
    return result


def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    out = _matmul(x, weight.T)
    return out if bias is None else out + bias


def rope_and_store_kv(q: Array, k: Array, v: Array, batch: Batch, k_cache: Array, v_cache: Array) -> Array:
    k_cache[batch.slots] = _rotate(k, batch.cos, batch.sin)
    v_cache[batch.slots] = v
    return _rotate(q, batch.cos, batch.sin)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    out = np.empty_like(x)
    np.subtract(first * cos, second * sin, out=out[..., :half])
    np.add(second * cos, first * sin, out=out[..., half:])
    return out


@dataclass(slots=True)
class Segment:
    """One request of the batch: its flat tokens ``[start, end)`` and the slots of its ``context`` keys."""

    start: int
    end: int
    context: int
    slots: slice | NDArray[np.int64]  # a slice where the blocks follow each other: reading is a view


def attention_index(plan: StepPlan) -> list[Segment]:
    """Which slots each request reads. Made once a step, used by every layer."""
    block = plan.block_size
    segments = []
    for r, context in enumerate(plan.context_lengths):
        table = np.asarray(plan.block_tables[r][: -(-context // block)], dtype=np.int64)
        slots: slice | NDArray[np.int64]
        if np.array_equal(table, np.arange(table[0], table[0] + len(table))):
            first = int(table[0]) * block
            slots = slice(first, first + context)
        else:
            slots = (table[:, None] * block + np.arange(block)).ravel()[:context]
        segments.append(Segment(plan.query_starts[r], plan.query_starts[r + 1], context, slots))
    return segments


def attention(q: Array, k_cache: Array, v_cache: Array, batch: Batch, attention: AttentionSpec) -> Array:
    tokens, heads, head_dim = q.shape
    kv_heads = k_cache.shape[1]
    # [K, T, H / K, D]: the queries that read one KV head lie together.
    grouped = (q * attention.scale).reshape(tokens, kv_heads, -1, head_dim).transpose(1, 0, 2, 3)
    out = np.empty((tokens, kv_heads, heads // kv_heads, head_dim), dtype=q.dtype)
    for segment in batch.attention:
        keys, values = k_cache[segment.slots], v_cache[segment.slots]
        before = segment.context - (segment.end - segment.start)  # position of the first query
        for start in range(segment.start, segment.end, _QUERY_TILE):
            end = min(start + _QUERY_TILE, segment.end)
            first_position = before + start - segment.start
            last_position = first_position + (end - start) - 1
            low = 0 if attention.window is None else max(0, first_position - attention.window + 1)
            visible = slice(low, last_position + 1)
            out[start:end] = _attend(
                grouped[:, start:end],
                keys[visible],
                values[visible],
                np.arange(first_position - low, last_position - low + 1),
                attention,
            ).transpose(1, 0, 2, 3)
    return out.reshape(tokens, heads * head_dim)


def _attend(q: Array, keys: Array, values: Array, positions: Array, attention: AttentionSpec) -> Array:
    """``q [K, n, G, D]`` over ``keys, values [c, K, D]``; ``positions [n]`` count from the first key."""
    kv_heads, count, group, head_dim = q.shape
    context = len(keys)
    rows = q.reshape(kv_heads, count * group, head_dim)
    scores = _matmul(rows, keys.transpose(1, 2, 0))
    if attention.cap is not None:
        scores = soft_cap(scores, attention.cap)
    hidden = _hidden(positions, context, attention.window)
    if hidden is not None:
        scores.reshape(kv_heads, count, group, context)[:, hidden[:, None, :].repeat(group, 1)] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= np.add.reduce(scores, axis=-1, keepdims=True)
    return _matmul(scores, values.transpose(1, 0, 2)).reshape(kv_heads, count, group, head_dim)


def _hidden(positions: Array, context: int, window: int | None) -> NDArray[np.bool_] | None:
    """``[n, c]``, true where a query may not look; None for a single query, whose keys are all visible."""
    if len(positions) == 1:
        return None
    keys = np.arange(context)
    after = keys > positions[:, None]
    return after if window is None else after | (keys <= positions[:, None] - window)


def swiglu(gate_up: Array, activation: Activation) -> Array:
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :half], gate_up[..., half:]
    if activation == "silu":
        # exp(-x) overflows to inf for x < -88 in float32, which gives the right limit, -0.
        with np.errstate(over="ignore"):
            result: Array = gate / (1 + np.exp(-gate)) * up
    else:
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        result = gate * (1 + np.tanh(inner)) / 2 * up
    return result


def soft_cap(x: Array, cap: float) -> Array:
    result: Array = np.tanh(x / cap) * cap
    return result


def take_rows(x: Array, rows: Array) -> Array:
    return x[rows]
