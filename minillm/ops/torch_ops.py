"""The operators in torch, for the CPU and CUDA: same results as `numpy_ops`, index work vectorized.

Shapes and meanings are those of `minillm.ops.base.Ops`. Norms, rotations and the scores' softmax are
computed in float32 where the weights are bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.ops import Activation
from minillm.ops.base import AttentionMetadata, AttentionSpec
from minillm.ops.latent import expands
from minillm.ops.linear import Linear
from minillm.ops.paging import Group, Reads, visible_keys
from minillm.ops.routing import Routing
from minillm.ops.torch_rejection import draw_against
from minillm.ops.torch_sampling import distributions, logprobs, sample

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
    "to_device",
]


def embed(table: Tensor, token_ids: Tensor) -> Tensor:
    return F.embedding(token_ids, table)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    # The weight is float32 where x is bfloat16: multiply before rounding back.
    wide = x.to(weight.dtype)
    if weight.dim() > 1:  # a weight for each head
        return (F.rms_norm(wide, wide.shape[-1:], None, eps) * weight).to(x.dtype)
    return F.rms_norm(wide, weight.shape, weight, eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps), total


def linear(x: Tensor, linear: Linear) -> Tensor:
    return F.linear(x, linear.weight, linear.bias)


def rope_and_store_kv(
    qk: Tensor, v: Tensor, cos: Tensor, sin: Tensor, slot_mapping: Tensor, k_cache: Tensor, v_cache: Tensor
) -> Tensor:
    heads = qk.shape[1] - k_cache.shape[1]
    rotated = rope(qk, cos, sin)
    k_cache.index_copy_(0, slot_mapping, rotated[:, heads:])
    v_cache.index_copy_(0, slot_mapping, v)
    return rotated[:, :heads]


def store(rows: Tensor, slot_mapping: Tensor, cache: Tensor) -> None:
    cache.index_copy_(0, slot_mapping, rows)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second, rest = x.to(cos.dtype).split((half, half, x.shape[-1] - 2 * half), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1).to(x.dtype)


def to_device(reads: Reads, device: torch.device) -> Reads:
    """The index of `minillm.ops.paging` with tensors for its arrays; slices stay."""

    def put(values: Any) -> Any:
        return torch.from_numpy(values).to(device) if isinstance(values, np.ndarray) else values

    groups = [replace(g, tokens=put(g.tokens), slots=put(g.slots)) for g in reads.groups]
    return Reads(groups, [replace(c, slots=put(c.slots)) for c in reads.chunks])


def attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, read: AttentionMetadata, attention: AttentionSpec) -> Tensor:
    tokens, heads, _ = q.shape
    reads = read.reads
    if len(reads.groups) == 1 and reads.groups[0].tokens is None:
        return _attend_group(q, k_cache, v_cache, reads.groups[0], attention).reshape(tokens, -1)
    out = q.new_empty(tokens, heads, v_cache.shape[-1])
    for part in reads.groups:
        out[part.tokens] = _attend_group(q[part.tokens], k_cache, v_cache, part, attention)
    for chunk in reads.chunks:
        out[chunk.start : chunk.end] = _attend_chunk(
            q[chunk.start : chunk.end], _read(k_cache, chunk.slots), _read(v_cache, chunk.slots), attention
        )
    return out.reshape(tokens, -1)


def _read(cache: Tensor, slots: Tensor | slice) -> Tensor:
    """``[n, K, D]``: a view for a slice, else a copy."""
    return cache[slots] if isinstance(slots, slice) else cache.index_select(0, slots.flatten())


def _attend_group(q: Tensor, k_cache: Tensor, v_cache: Tensor, part: Group, attention: AttentionSpec) -> Tensor:
    """``q [R * n, H, D]``, n queries a request, over its padded keys."""
    tokens, heads, head_dim = q.shape
    requests, kv_heads = tokens // part.queries, k_cache.shape[1]
    keys, values = (
        _read(cache, part.slots).view(requests, part.width, *cache.shape[1:]).transpose(1, 2)
        for cache in (k_cache, v_cache)
    )
    # The queries of one KV head become rows of one small matrix, so keys are read once for all of them.
    split = (requests, part.queries, kv_heads, heads // kv_heads, head_dim)
    rows = q.view(split).transpose(1, 2).reshape(requests, kv_heads, -1, head_dim)
    seen = _seen(part, attention.window, heads // kv_heads, q.device)
    mixed = _masked_attention(rows, keys, values, seen, attention)
    by_query = mixed.view(requests, kv_heads, part.queries, heads // kv_heads, -1).transpose(1, 2)
    return by_query.reshape(tokens, heads, -1)


def _seen(part: Group, window: int | None, group: int, device: torch.device) -> Tensor | None:
    """``[R, 1, n * G, C]``, true where a query may look; None where all may everywhere. Kept for all layers."""
    if window not in part.masks:
        seen = visible_keys(part, window)
        if seen is not None and part.queries > 1:
            seen = seen.repeat(group, axis=1)
        part.masks[window] = None if seen is None else torch.from_numpy(seen).to(device)[:, None]
    return part.masks[window]


def _attend_chunk(q: Tensor, keys: Tensor, values: Tensor, attention: AttentionSpec) -> Tensor:
    """``q [n, H, D]``, the last n tokens of a request, over its keys ``[c, K, D]``."""
    count, context = len(q), len(keys)
    queries, keys, values = (x.transpose(0, 1)[None] for x in (q, keys, values))
    first = context - count
    full = attention.window is None or attention.window >= context
    if attention.cap is None and first == 0 and full:
        out = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=attention.scale, enable_gqa=True
        )
        return out[0].transpose(0, 1)
    places = torch.arange(context, device=q.device)
    position = torch.arange(first, context, device=q.device)[:, None]
    visible = places <= position
    if attention.window is not None:
        visible &= places > position - attention.window
    group = queries.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    return _masked_attention(queries, keys, values, visible, attention)[0].transpose(0, 1)


def _masked_attention(
    q: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None, attention: AttentionSpec
) -> Tensor:
    """Attention over ``[..., rows, D]`` and ``[..., c, D]`` where ``visible``, softmax in at least float32."""
    if attention.cap is None:
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=visible, scale=attention.scale)
    scores = (q * attention.scale) @ keys.transpose(-1, -2)
    if scores.dtype == torch.bfloat16:
        scores = scores.float()
    scores = soft_cap(scores, attention.cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return torch.softmax(scores, dim=-1).to(values.dtype) @ values


def latent_attention(
    q: Tensor, cache: Tensor, key_up: Tensor, value_up: Tensor, read: AttentionMetadata, attention: AttentionSpec
) -> Tensor:
    (heads, nope, rank), value_dim = key_up.shape, value_up.shape[1]
    out = q.new_empty(len(q), heads, value_dim)

    def absorbed(queries: Tensor) -> Tensor:
        """``[n, H, C + R]``: queries for the cache as it is, which all heads read."""
        latent = torch.einsum("thn,hnc->thc", queries[..., :nope], key_up)
        return torch.cat((latent, queries[..., nope:]), dim=-1)

    for part in read.reads.groups:
        tokens = slice(None) if part.tokens is None else part.tokens
        mixed = _attend_group(absorbed(q[tokens]), cache, cache[..., :rank], part, attention)
        out[tokens] = torch.einsum("thc,hvc->thv", mixed, value_up)
    for chunk in read.reads.chunks:
        own, latent = slice(chunk.start, chunk.end), _read(cache, chunk.slots)  # [context, 1, C + R]
        if expands(chunk.end - chunk.start, chunk.context, key_up.shape, value_dim, cache.shape[-1] - rank):
            own_keys = torch.einsum("cr,hnr->chn", latent[:, 0, :rank], key_up)
            keys = torch.cat((own_keys, latent[..., rank:].expand(-1, heads, -1)), dim=-1)
            values = torch.einsum("cr,hvr->chv", latent[:, 0, :rank], value_up)
            out[own] = _attend_chunk(q[own], keys, values, attention)
        else:
            mixed = _attend_chunk(absorbed(q[own]), latent, latent[..., :rank], attention)
            out[own] = torch.einsum("thc,hvc->thv", mixed, value_up)
    return out.reshape(len(q), heads * value_dim)


def swiglu(gate_up: Tensor, activation: Activation) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up


def route(logits: Tensor, routing: Routing, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scores = torch.softmax(wide, dim=-1) if routing.scoring == "softmax" else torch.sigmoid(wide)
    candidates = scores if bias is None else scores + bias
    if routing.groups > 1:
        by_group = candidates.view(len(scores), routing.groups, -1)
        worth = by_group.topk(routing.group_best, dim=-1).values.sum(dim=-1)  # [T, groups]
        taken = worth.argsort(dim=-1, descending=True, stable=True)[:, : routing.top_groups]
        is_open = torch.zeros_like(worth, dtype=torch.bool).scatter_(1, taken, True)
        is_open = is_open.repeat_interleave(routing.count // routing.groups, dim=-1)
        candidates = candidates.masked_fill(~is_open, float("-inf"))
    chosen = candidates.argsort(dim=-1, descending=True, stable=True)[:, : routing.per_token]
    shares = scores.gather(1, chosen)
    if routing.renormalize:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    return chosen, (shares * routing.scale).to(logits.dtype)


def experts(
    x: Tensor, chosen: Tensor, shares: Tensor, gate_up: Sequence[Linear], down: Sequence[Linear], activation: Activation
) -> Tensor:
    out = torch.zeros_like(x)
    for e in chosen.unique().tolist():
        tokens, place = torch.nonzero(chosen == e, as_tuple=True)
        inner = swiglu(linear(x[tokens], gate_up[e]), activation)
        out.index_add_(0, tokens, linear(inner, down[e]) * shares[tokens, place, None])
    return out


def silu(x: Tensor) -> Tensor:
    return F.silu(x)


def stack(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(rows))


def join(parts: Sequence[Tensor], axis: int) -> Tensor:
    return torch.cat(list(parts), axis)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    return torch.tanh(x / cap) * cap


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    return x[rows]
