"""The operators in NumPy: the reference, and what runs in the browser.

The same code computes in float32 and, as the oracle of the tests, in float64: the dtype is that of
the arrays it is given. Shapes and meanings are those of `minillm.ops.base.Ops`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from minillm.ops import Activation
from minillm.ops.base import AttentionMetadata, AttentionSpec
from minillm.ops.latent import expands
from minillm.ops.linear import Linear
from minillm.ops.numpy_rejection import draw_against
from minillm.ops.numpy_routing import route
from minillm.ops.numpy_sampling import distributions, logprobs, sample
from minillm.ops.paging import Chunk, Group, visible_keys

__all__ = [
    "add_rms_norm",
    "attention",
    "distributions",
    "draw_against",
    "embed",
    "experts",
    "join",
    "latent_attention",
    "linear",
    "logprobs",
    "rms_norm",
    "rope",
    "rope_and_store_kv",
    "route",
    "sample",
    "silu",
    "soft_cap",
    "stack",
    "store",
    "swiglu",
    "take_rows",
]

Array = NDArray[Any]

# Queries of a chunk that are scored at once: bounds the score matrix at tile * context elements a head.
_QUERY_TILE = 128
# NumPy for the browser is built without a BLAS: its matmul is a plain loop, its einsum is vectorized, and
# fastest where the second operand's rows are contiguous. For x @ weight.T those are the weight's columns.
_HAS_BLAS = sys.platform != "emscripten"
MATRIX_ORDER: Literal["C", "F"] = "C" if _HAS_BLAS else "F"


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
    if _HAS_BLAS:
        return a @ b
    result: Array = np.einsum("...ij,...jk->...ik", a, np.ascontiguousarray(b))
    return result


def linear(x: Array, linear: Linear) -> Array:
    out = _matmul(x, linear.weight.T)
    return out if linear.bias is None else out + linear.bias


def rope_and_store_kv(
    qk: Array, v: Array, cos: Array, sin: Array, slot_mapping: Array, k_cache: Array, v_cache: Array
) -> Array:
    heads = qk.shape[1] - k_cache.shape[1]
    rotated = rope(qk, cos, sin)
    k_cache[slot_mapping] = rotated[:, heads:]
    v_cache[slot_mapping] = v
    return rotated[:, :heads]


def store(rows: Array, slot_mapping: Array, cache: Array) -> None:
    cache[slot_mapping] = rows


def rope(x: Array, cos: Array, sin: Array) -> Array:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    out = np.empty_like(x)
    np.subtract(first * cos, second * sin, out=out[..., :half])
    np.add(second * cos, first * sin, out=out[..., half : 2 * half])
    out[..., 2 * half :] = x[..., 2 * half :]
    return out


def attention(q: Array, k_cache: Array, v_cache: Array, read: AttentionMetadata, attention: AttentionSpec) -> Array:
    tokens, heads, head_dim = q.shape
    kv_heads, value_dim = v_cache.shape[1:]
    # [T, K, H / K, D]: the queries that read one KV head lie together.
    grouped = (q * attention.scale).reshape(tokens, kv_heads, heads // kv_heads, head_dim)
    out = np.empty((*grouped.shape[:-1], value_dim), q.dtype)
    for part in read.reads.groups:
        rows = slice(None) if part.tokens is None else part.tokens
        out[rows] = _attend_group(grouped[rows], k_cache, v_cache, part, attention)
    for chunk in read.reads.chunks:
        _attend_chunk(grouped, k_cache[chunk.slots], v_cache[chunk.slots], chunk, attention, out)
    return out.reshape(tokens, heads * value_dim)


def _attend_group(q: Array, k_cache: Array, v_cache: Array, part: Group, attention: AttentionSpec) -> Array:
    """``q [R * n, K, G, D]``, n queries a request, over its padded keys."""
    tokens, kv_heads, group, head_dim = q.shape
    requests, count = tokens // part.queries, part.queries
    keys, values = (cache[part.slots].reshape(requests, part.width, *cache.shape[1:]) for cache in (k_cache, v_cache))
    if attention.window not in part.masks:
        seen = visible_keys(part, attention.window)
        if seen is not None and count > 1:
            seen = seen.repeat(group, axis=1)  # [R, n * G, C]: the queries of one KV head are rows of one matrix
        part.masks[attention.window] = None if seen is None else ~seen[:, None]
    rows = q.reshape(requests, count, kv_heads, group, head_dim).transpose(0, 2, 1, 3, 4)
    mixed = _softmax_attention(
        rows.reshape(requests, kv_heads, count * group, head_dim),
        keys.transpose(0, 2, 1, 3),
        values.transpose(0, 2, 1, 3),
        part.masks[attention.window],
        attention,
    )
    by_query = mixed.reshape(requests, kv_heads, count, group, -1).transpose(0, 2, 1, 3, 4)
    return by_query.reshape(tokens, kv_heads, group, -1)


def _attend_chunk(q: Array, keys: Array, values: Array, chunk: Chunk, attention: AttentionSpec, out: Array) -> None:
    """Writes ``out[start:end]`` of one request: some queries at a time, each over the keys they can see."""
    group, head_dim = q.shape[2:]
    before = chunk.context - (chunk.end - chunk.start)  # position of the first query
    for start in range(chunk.start, chunk.end, _QUERY_TILE):
        end = min(start + _QUERY_TILE, chunk.end)
        count = end - start
        first = before + start - chunk.start
        low = 0 if attention.window is None else max(0, first - attention.window + 1)
        places = np.arange(low, first + count)
        positions = np.arange(first, first + count)[:, None]
        hidden = places > positions
        if attention.window is not None:
            hidden |= places <= positions - attention.window
        rows = q[start:end].transpose(1, 0, 2, 3).reshape(-1, count * group, head_dim)
        seen = slice(low, first + count)
        mixed = _softmax_attention(
            rows,
            keys[seen].transpose(1, 0, 2),
            values[seen].transpose(1, 0, 2),
            hidden.repeat(group, axis=0),
            attention,
        )
        out[start:end] = mixed.reshape(-1, count, group, values.shape[-1]).transpose(1, 0, 2, 3)


def _softmax_attention(
    q: Array, keys: Array, values: Array, hidden: NDArray[np.bool_] | None, attention: AttentionSpec
) -> Array:
    """``q [..., rows, D]``, scaled already, over ``keys, values [..., c, D]``; not over what is ``hidden``."""
    scores = _matmul(q, keys.swapaxes(-1, -2))
    if attention.cap is not None:
        scores = soft_cap(scores, attention.cap)
    if hidden is not None:
        np.copyto(scores, -np.inf, where=hidden)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= np.add.reduce(scores, axis=-1, keepdims=True)
    return _matmul(scores, values)


def latent_attention(
    q: Array, cache: Array, key_up: Array, value_up: Array, read: AttentionMetadata, attention: AttentionSpec
) -> Array:
    (heads, nope, rank), value_dim = key_up.shape, value_up.shape[1]
    scaled = q * attention.scale
    out = np.empty((len(q), heads, value_dim), q.dtype)

    def absorbed(queries: Array) -> Array:
        """``[n, 1, H, C + R]``: queries for the cache as it is, which all heads read."""
        latent = _matmul(queries[..., :nope].swapaxes(0, 1), key_up).swapaxes(0, 1)
        return np.concatenate((latent, queries[..., nope:]), axis=-1)[:, None]

    def turned_back(mixed: Array) -> Array:
        """``[n, H, V]`` of the latent vectors ``[n, 1, H, C]`` that were summed."""
        return _matmul(mixed[:, 0].swapaxes(0, 1), value_up.swapaxes(1, 2)).swapaxes(0, 1)

    for part in read.reads.groups:
        tokens = slice(None) if part.tokens is None else part.tokens
        out[tokens] = turned_back(_attend_group(absorbed(scaled[tokens]), cache, cache[..., :rank], part, attention))
    for chunk in read.reads.chunks:
        own, latent = slice(chunk.start, chunk.end), cache[chunk.slots]  # [context, 1, C + R]
        alone = replace(chunk, start=0, end=chunk.end - chunk.start)
        if expands(alone.end, chunk.context, key_up.shape, value_dim, cache.shape[-1] - rank):
            made = _matmul(latent[None, :, 0, :rank], np.concatenate((key_up, value_up), axis=1).swapaxes(1, 2))
            own_keys, values = np.split(made.swapaxes(0, 1), [nope], axis=-1)  # [context, H, N] and [context, H, V]
            keys = np.concatenate((own_keys, latent[..., rank:].repeat(heads, axis=1)), axis=-1)
            _attend_chunk(scaled[own, :, None], keys, values, alone, attention, out[own, :, None])
        else:
            mixed = np.empty((alone.end, 1, heads, rank), q.dtype)
            _attend_chunk(absorbed(scaled[own]), latent, latent[..., :rank], alone, attention, mixed)
            out[own] = turned_back(mixed)
    return out.reshape(len(q), heads * value_dim)


def swiglu(gate_up: Array, activation: Activation) -> Array:
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :half], gate_up[..., half:]
    if activation == "silu":
        result: Array = silu(gate) * up
    else:
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        result = gate * (1 + np.tanh(inner)) / 2 * up
    return result


def experts(
    x: Array, chosen: Array, shares: Array, gate_up: Sequence[Linear], down: Sequence[Linear], activation: Activation
) -> Array:
    out = np.zeros_like(x)
    for e in np.unique(chosen):
        tokens, place = np.nonzero(chosen == e)
        inner = swiglu(linear(x[tokens], gate_up[e]), activation)
        out[tokens] += linear(inner, down[e]) * shares[tokens, place, None]
    return out


def silu(x: Array) -> Array:
    # exp(-x) overflows to inf for x < -88 in float32, which gives the right limit, -0.
    with np.errstate(over="ignore"):
        result: Array = x / (1 + np.exp(-x))
    return result


def stack(rows: Sequence[Array]) -> Array:
    return np.stack(rows)


def join(parts: Sequence[Array], axis: int) -> Array:
    return np.concatenate(parts, axis)


def soft_cap(x: Array, cap: float) -> Array:
    result: Array = np.tanh(x / cap) * cap
    return result


def take_rows(x: Array, rows: Array) -> Array:
    return x[rows]
