"""Latent attention as a layer's mixer (DeepSeek-V2, section 2.1): one vector a token is all that is kept."""

from __future__ import annotations

from minillm.models.attention import Cache
from minillm.models.reader import Reader
from minillm.models.spec import LatentAttention, Rope
from minillm.ops.base import Array, AttentionMetadata, AttentionSpec, Batch, Ops


class LatentMixer:
    """Attention whose keys and values are made of one latent vector a token."""

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
