"""The forward pass of the Llama family, written once against `minillm.ops.base.Ops`.

It knows nothing about requests, files or array libraries: a batch goes in, logits of the rows to
sample come out, and the K/V of every token is left in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minillm.loaders.tensors import Float32
from minillm.models.spec import ModelSpec
from minillm.models.weights import Weights
from minillm.ops.base import Array, AttentionSpec, Batch, Ops


@dataclass(slots=True)
class Layer:
    """Weights of one layer, ``[out, in]``; Q, K, V and gate, up are one matrix each, read in one go."""

    attention_norm: Array
    qkv: Array
    qkv_bias: Array | None
    qk_norm: Array | None  # [H + K, D], a row for each head of Q and of K
    output: Array
    output_bias: Array | None
    post_attention_norm: Array | None
    mlp_norm: Array
    gate_up: Array
    gate_up_bias: Array | None
    down: Array
    down_bias: Array | None
    post_mlp_norm: Array | None
    attention: AttentionSpec


@dataclass(slots=True)
class Parameters:
    """All weights of a model, in one library's arrays. ``head`` is ``embed`` where the two are tied."""

    embed: Array
    layers: list[Layer]
    final_norm: Array
    head: Array


def build_parameters(
    spec: ModelSpec,
    weights: Weights,
    matrix: Callable[[Sequence[Float32]], Array],
    vector: Callable[[Float32], Array],
) -> Parameters:
    """Reads every tensor once. ``matrix`` joins rows and converts to the backend's dtype and device,
    ``vector`` converts a norm's weight, which stays in float32 where the matrices do not."""

    def layer(i: int) -> Layer:
        def joined(*names: str) -> Array:
            return matrix([weights.read(f"layers.{i}.{name}") for name in names])

        def norm(name: str) -> Array:
            return vector(weights.read(f"layers.{i}.{name}") + np.float32(spec.norm_offset))

        def head_norms() -> Array:
            names = ["q_norm"] * spec.heads + ["k_norm"] * spec.kv_heads
            return vector(np.stack([weights.read(f"layers.{i}.{name}") for name in names]))

        return Layer(
            attention_norm=norm("attention_norm"),
            qkv=joined("q", "k", "v"),
            qkv_bias=joined("q_bias", "k_bias", "v_bias") if spec.qkv_bias else None,
            qk_norm=head_norms() if spec.qk_norm else None,
            output=joined("output"),
            output_bias=joined("output_bias") if spec.output_bias else None,
            post_attention_norm=norm("post_attention_norm") if spec.post_norms else None,
            mlp_norm=norm("mlp_norm"),
            gate_up=joined("gate", "up"),
            gate_up_bias=joined("gate_bias", "up_bias") if spec.mlp_bias else None,
            down=joined("down"),
            down_bias=joined("down_bias") if spec.mlp_bias else None,
            post_mlp_norm=norm("post_mlp_norm") if spec.post_norms else None,
            attention=AttentionSpec(spec.score_scale, spec.windows[i], spec.attention_cap),
        )

    embed = matrix([weights.read("embed")])
    return Parameters(
        embed=embed,
        layers=[layer(i) for i in range(spec.layers)],
        final_norm=vector(weights.read("final_norm") + np.float32(spec.norm_offset)),
        head=embed if spec.tied_head else matrix([weights.read("head")]),
    )


# Hears of the hidden states behind the embedding and each layer: ``[T, hidden]``, or those sampled, behind the last.
Look = Callable[[str, Array], None]


class Decoder:
    """A model ready to run: spec, weights and the operators that compute it."""

    def __init__(self, spec: ModelSpec, parameters: Parameters, ops: Ops) -> None:
        self.spec, self.parameters, self.ops = spec, parameters, ops

    def hidden_states(
        self,
        batch: Batch,
        caches: Sequence[tuple[Array, Array]],
        batches: Sequence[Batch] | None = None,
        look: Look | None = None,
    ) -> Array:
        """``[S, hidden]`` of ``batch.logits_indices``, after the last norm; ``caches`` holds (keys, values) of each
        layer, ``batches`` its slots and reads where layers differ in them."""
        spec, ops, p = self.spec, self.ops, self.parameters
        hidden = ops.embed(p.embed, batch.token_ids)
        if spec.embedding_scale != 1.0:
            hidden = hidden * spec.embedding_scale
        if look is not None:
            look("the embedding", hidden)
        normed = ops.rms_norm(hidden, p.layers[0].attention_norm, spec.norm_eps)
        for i, layer in enumerate(p.layers):
            attended = attend(spec, ops, layer, normed, batch if batches is None else batches[i], caches[i])
            if i == spec.layers - 1:
                # Nothing but the sampled rows is read after the last attention.
                attended = ops.take_rows(attended, batch.logits_indices)
                hidden = ops.take_rows(hidden, batch.logits_indices)
            attended = ops.linear(attended, layer.output, layer.output_bias)
            if layer.post_attention_norm is not None:
                attended = ops.rms_norm(attended, layer.post_attention_norm, spec.norm_eps)
            normed, hidden = ops.add_rms_norm(attended, hidden, layer.mlp_norm, spec.norm_eps)
            inner = ops.swiglu(ops.linear(normed, layer.gate_up, layer.gate_up_bias), spec.activation)
            inner = ops.linear(inner, layer.down, layer.down_bias)
            if layer.post_mlp_norm is not None:
                inner = ops.rms_norm(inner, layer.post_mlp_norm, spec.norm_eps)
            following = p.final_norm if i == spec.layers - 1 else p.layers[i + 1].attention_norm
            normed, hidden = ops.add_rms_norm(inner, hidden, following, spec.norm_eps)
            if look is not None:
                look(f"layer {i} of {spec.layers}", hidden)
        return normed

    def logits(self, hidden: Array) -> Array:
        """``[n, V]`` from hidden states ``[n, hidden]`` after the last norm."""
        logits = self.ops.linear(hidden, self.parameters.head, None)
        return logits if self.spec.logit_cap is None else self.ops.soft_cap(logits, self.spec.logit_cap)


def attend(spec: ModelSpec, ops: Ops, layer: Layer, x: Array, batch: Batch, cache: tuple[Array, Array]) -> Array:
    """``[T, H * D]`` of one layer, before the output projection; ``cache`` is its (keys, values)."""
    qkv = ops.linear(x, layer.qkv, layer.qkv_bias).reshape(len(x), -1, spec.head_dim)
    rotated = spec.heads + spec.kv_heads
    qk, v = qkv[:, :rotated], qkv[:, rotated:]
    if layer.qk_norm is not None:
        qk = ops.rms_norm(qk, layer.qk_norm, spec.norm_eps)
    q = ops.rope_and_store_kv(qk, v, batch, *cache)
    return ops.attention(q, *cache, batch, layer.attention)
