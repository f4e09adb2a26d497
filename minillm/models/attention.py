"""Attention as a layer's mixer, which carries information between tokens.

A mixer takes the normed hidden states ``[T, hidden]`` of a step and the layer's cache, writes what it keeps of the
step's tokens, and returns ``[T, output_size]``; the layer's output projection follows. `minillm.models.latent` is
another, `minillm.models.layers` says which layer has which.
"""

from __future__ import annotations

import numpy as np

from minillm.models.reader import Reader
from minillm.models.spec import Attention, Rope
from minillm.ops.base import Array, AttentionMetadata, AttentionSpec, Batch, Ops

Cache = tuple[Array, ...]  # the arrays of `minillm.models.cache_spec.CacheSpec.rows`, ``[slots, *row]`` each


class AttentionMixer:
    """Multi-head, grouped-query or multi-query attention."""

    def __init__(self, spec: Attention, eps: float, ropes: tuple[Rope, ...], reader: Reader, prefix: str) -> None:
        self.spec, self._eps, self._rope = spec, eps, ropes.index(spec.rope)
        self._attention = AttentionSpec(spec.score_scale, spec.window, spec.cap)
        # Q, K and V are one matrix, read in one go.
        self._qkv = reader.linear(prefix, "q", "k", "v", bias=spec.qkv_bias)
        self._qk_norm = self._head_norms(reader, prefix) if spec.qk_norm else None

    def _head_norms(self, reader: Reader, prefix: str) -> Array:
        """``[H + K, D]``: the weight of each head of Q and of K."""
        names = ["q_norm"] * self.spec.heads + ["k_norm"] * self.spec.kv_heads
        rows = [reader.read(prefix + name) + np.float32(reader.norm_offset) for name in names]
        return reader.vector(np.stack(rows))

    def __call__(self, ops: Ops, x: Array, batch: Batch, read: AttentionMetadata, cache: Cache) -> Array:
        spec, (keys, values), (cos, sin) = self.spec, cache, batch.rotations[self._rope]
        qkv = ops.linear(x, self._qkv).reshape(len(x), -1, spec.head_dim)
        qk, v = qkv[:, : spec.heads + spec.kv_heads], qkv[:, spec.heads + spec.kv_heads :]
        if self._qk_norm is not None:
            qk = ops.rms_norm(qk, self._qk_norm, self._eps)
        q = ops.rope_and_store_kv(qk, v, cos, sin, read.slot_mapping, keys, values)
        return ops.attention(q, keys, values, read, self._attention)
