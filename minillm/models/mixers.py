"""What carries information between tokens in a layer: one class for each mixer of `minillm.models.spec`.

Each takes the normed hidden states ``[T, hidden]`` of a step and the layer's cache, writes what it keeps of the step's
tokens, and returns ``[T, output_size]``; the layer's output projection follows.
"""

from __future__ import annotations

import numpy as np

from minillm.models.reader import Reader
from minillm.models.spec import Attention, LatentAttention, Mixer, Rope
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


class LatentMixer:
    """Attention whose keys and values are made of one latent vector a token, which is all that is kept."""

    def __init__(self, spec: LatentAttention, eps: float, ropes: tuple[Rope, ...], reader: Reader, prefix: str) -> None:
        self.spec, self._eps, self._rope = spec, eps, ropes.index(spec.rope)
        self._attention = AttentionSpec(spec.score_scale)
        is_low_rank = spec.q_rank is not None
        self._q_down = reader.linear(prefix, "q_down") if is_low_rank else None
        self._q_norm = reader.norm(prefix + "q_norm") if is_low_rank else None
        self._q = reader.linear(prefix, "q")
        self._kv_down, self._kv_norm = reader.linear(prefix, "kv_down"), reader.norm(prefix + "kv_norm")
        made = reader.read(prefix + "kv").reshape(spec.heads, spec.nope_dim + spec.value_dim, spec.kv_rank)
        self._key_up = reader.matrix([made[:, : spec.nope_dim]])
        self._value_up = reader.matrix([made[:, spec.nope_dim :]])

    def __call__(self, ops: Ops, x: Array, batch: Batch, read: AttentionMetadata, cache: Cache) -> Array:
        spec, (rows,), (cos, sin) = self.spec, cache, batch.rotations[self._rope]
        down = x if self._q_down is None else ops.rms_norm(ops.linear(x, self._q_down), self._q_norm, self._eps)
        q = ops.linear(down, self._q).reshape(len(x), spec.heads, spec.head_dim)
        latent = ops.linear(x, self._kv_down)
        normed = ops.rms_norm(latent[:, : spec.kv_rank], self._kv_norm, self._eps)
        turned = ops.rope(ops.join((q[..., spec.nope_dim :], latent[:, None, spec.kv_rank :]), 1), cos, sin)
        ops.store(ops.join((normed[:, None], turned[:, spec.heads :]), 2), read.slot_mapping, rows)
        q = ops.join((q[..., : spec.nope_dim], turned[:, : spec.heads]), 2)
        return ops.latent_attention(q, rows, self._key_up, self._value_up, read, self._attention)


AnyMixer = AttentionMixer | LatentMixer


def build_mixer(spec: Mixer, eps: float, ropes: tuple[Rope, ...], reader: Reader, prefix: str) -> AnyMixer:
    """The mixer of the layer whose tensors begin with ``prefix``."""
    if isinstance(spec, LatentAttention):
        return LatentMixer(spec, eps, ropes, reader, prefix)
    return AttentionMixer(spec, eps, ropes, reader, prefix)
