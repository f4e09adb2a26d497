"""The operators in torch, for the CPU and CUDA: same results as `numpy_ops`, index work vectorized.

Shapes and meanings are those of `minillm.ops.base.Ops`. Norms, rotations and the scores' softmax are
computed in float32 where the weights are bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.core.plan import StepPlan
from minillm.models.spec import Activation
from minillm.ops.base import AttentionSpec, Batch
from minillm.ops.torch_sampling import sample

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


def embed(table: Tensor, token_ids: Tensor) -> Tensor:
    return F.embedding(token_ids, table)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    # The weight is float32 where x is bfloat16: multiply before rounding back.
    if x.dtype == weight.dtype:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps), total


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def rope_and_store_kv(q: Tensor, k: Tensor, v: Tensor, batch: Batch, k_cache: Tensor, v_cache: Tensor) -> Tensor:
    k_cache.index_copy_(0, batch.slots, _rotate(k, batch.cos, batch.sin))
    v_cache.index_copy_(0, batch.slots, v)
    return _rotate(q, batch.cos, batch.sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


@dataclass(slots=True)
class Decodes:
    """All requests with one query: their keys are gathered into one padded array ``[R, C]``."""

    tokens: Tensor | None  # [R] flat query tokens; None when they are the whole batch in order
    slots: Tensor  # [R * C], padding points at the slot that is never written
    lengths: Tensor  # [R]
    width: int  # C, the longest context


@dataclass(slots=True)
class Chunk:
    """One request with several queries: flat tokens ``[start, end)``, its keys' slots ``[context]``."""

    start: int
    end: int
    slots: Tensor


@dataclass(slots=True)
class AttentionIndex:
    decodes: Decodes | None
    chunks: list[Chunk]


def attention_index(plan: StepPlan, device: torch.device, padding_slot: int) -> AttentionIndex:
    """Which slots each query reads. Made once a step, used by every layer.

    ``padding_slot`` holds zeros: what lies there is multiplied by a weight of 0, and 0 * NaN is NaN.
    """
    counts = np.diff(plan.query_starts)
    single = np.flatnonzero(counts == 1)
    decodes = _decodes(plan, single, device, padding_slot) if len(single) else None
    chunks = []
    for r in np.flatnonzero(counts > 1):
        slots = _slots(plan, [int(r)], padding_slot)[0]
        chunks.append(Chunk(plan.query_starts[r], plan.query_starts[r + 1], torch.from_numpy(slots).to(device)))
    return AttentionIndex(decodes, chunks)


def _decodes(plan: StepPlan, rows: np.ndarray, device: torch.device, padding_slot: int) -> Decodes:
    slots = _slots(plan, rows.tolist(), padding_slot)
    tokens = None
    if len(rows) < len(plan.context_lengths):
        tokens = torch.tensor([plan.query_starts[r] for r in rows], device=device)
    lengths = torch.tensor([plan.context_lengths[r] for r in rows], device=device)
    return Decodes(tokens, torch.from_numpy(slots.ravel()).to(device), lengths, slots.shape[1])


def _slots(plan: StepPlan, rows: list[int], padding_slot: int) -> np.ndarray:
    """``[len(rows), longest context]`` int64: the slots of each request's keys in order, then padding."""
    block = plan.block_size
    lengths = np.asarray([plan.context_lengths[r] for r in rows])
    width = int(lengths.max())
    tables = np.zeros((len(rows), -(-width // block)), dtype=np.int64)
    for i, r in enumerate(rows):
        table = plan.block_tables[r][: tables.shape[1]]
        tables[i, : len(table)] = table
    slots = (tables[:, :, None] * block + np.arange(block)).reshape(len(rows), -1)[:, :width]
    return np.where(np.arange(width) < lengths[:, None], slots, padding_slot)


def attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch, attention: AttentionSpec) -> Tensor:
    index: AttentionIndex = batch.attention
    tokens, heads, head_dim = q.shape
    if index.decodes is not None and index.decodes.tokens is None:
        return _attend_decodes(q, k_cache, v_cache, index.decodes, attention).reshape(tokens, heads * head_dim)
    out = torch.empty_like(q)
    if index.decodes is not None:
        rows = index.decodes.tokens
        out[rows] = _attend_decodes(q[rows], k_cache, v_cache, index.decodes, attention)
    for chunk in index.chunks:
        out[chunk.start : chunk.end] = _attend_chunk(
            q[chunk.start : chunk.end], k_cache[chunk.slots], v_cache[chunk.slots], attention
        )
    return out.reshape(tokens, heads * head_dim)


def _attend_decodes(q: Tensor, k_cache: Tensor, v_cache: Tensor, decodes: Decodes, attention: AttentionSpec) -> Tensor:
    """``q [R, H, D]``, one query a request, over its padded keys."""
    requests, _, head_dim = q.shape
    shape = (requests, decodes.width, -1, head_dim)
    keys = k_cache.index_select(0, decodes.slots).view(shape).transpose(1, 2)
    values = v_cache.index_select(0, decodes.slots).view(shape).transpose(1, 2)
    places = torch.arange(decodes.width, device=q.device)
    visible = places < decodes.lengths[:, None]
    if attention.window is not None:
        visible &= places >= decodes.lengths[:, None] - attention.window
    # The queries of one KV head become rows of one small matrix, so keys are read once for all of them.
    grouped = q.view(requests, keys.shape[1], -1, head_dim)
    return _softmax_attention(grouped, keys, values, visible[:, None, None, :], attention).reshape(q.shape)


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
    if attention.cap is None:
        out = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=visible, scale=attention.scale, enable_gqa=True
        )
    else:
        group = queries.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
        out = _softmax_attention(queries, keys, values, visible, attention)
    return out[0].transpose(0, 1)


def _softmax_attention(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, attention: AttentionSpec) -> Tensor:
    """Plain attention over ``[..., rows, D]`` and ``[..., c, D]``, softmax in at least float32."""
    scores = (q * attention.scale) @ keys.transpose(-1, -2)
    if scores.dtype == torch.bfloat16:
        scores = scores.float()
    if attention.cap is not None:
        scores = soft_cap(scores, attention.cap)
    scores = scores.masked_fill(~visible, float("-inf"))
    return torch.softmax(scores, dim=-1).to(values.dtype) @ values


def swiglu(gate_up: Tensor, activation: Activation) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up


def soft_cap(x: Tensor, cap: float) -> Tensor:
    return torch.tanh(x / cap) * cap


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    return x[rows]
