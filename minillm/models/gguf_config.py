"""Builds a `ModelSpec` from GGUF metadata; whatever it does not know is an error.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Which biases and heads there are
is not in the metadata but in the tensors, so their names are looked at, too.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

from minillm.models.spec import MAX_LAYERS, Attention, Dense, LayerSpec, ModelSpec, Rope, SpecError

ROPE_DIVISORS_TENSOR = "rope_freqs.weight"
# llama.cpp's converter stores Q and K of these with the rotated pairs side by side.
_INTERLEAVED_ROPE = frozenset({"llama"})

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_READ = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scale_linear",
        "attention.causal",
        "vocab_size",
    }
)
# Bookkeeping, or used by scalings that are refused.
_HARMLESS = frozenset({"tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned"})


def spec_from_gguf(
    metadata: Mapping[str, Any],
    tensors: Container[str],
    embedding_shape: Sequence[int],
    rope_divisors: Sequence[float] = (),
) -> ModelSpec:
    """The spec of a GGUF file. ``rope_divisors`` are the values of its ``rope_freqs.weight``, if it has one."""
    architecture = metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise SpecError(
            f"general.architecture is {architecture!r}, this engine runs GGUF files of {', '.join(_ARCHITECTURES)}"
        )
    fields = _Fields(str(architecture), metadata)
    heads, hidden = fields.size("attention.head_count"), fields.size("embedding_length")
    head_dim = fields.size("attention.key_length", hidden // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.size(name, head_dim) != head_dim:
            raise SpecError(f"{fields.key(name)} is {fields.get(name)}, this engine needs it to be {head_dim}")
    if fields.get("attention.causal", True) is not True:
        raise SpecError(f"{fields.key('attention.causal')} is {fields.get('attention.causal')!r}, it must be true")
    layers = fields.size("block_count")
    if layers > MAX_LAYERS:
        raise SpecError(f"{fields.key('block_count')} is {layers:,}, the limit is {MAX_LAYERS:,}")
    vocab_size = int(embedding_shape[0])
    if fields.size("vocab_size", vocab_size) != vocab_size:
        raise SpecError(f"{fields.key('vocab_size')} is {fields.get('vocab_size')}, token_embd has {vocab_size} rows")
    attention = Attention(
        heads=heads,
        kv_heads=fields.size("attention.head_count_kv", heads),
        head_dim=head_dim,
        rope=_rope(fields, head_dim, rope_divisors),
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
    )
    ffn = Dense(fields.size("feed_forward_length"), bias="blk.0.ffn_gate.bias" in tensors)
    return ModelSpec(
        architecture=str(architecture),
        vocab_size=vocab_size,
        hidden=hidden,
        layers=(LayerSpec(attention, ffn),) * layers,
        max_positions=fields.size("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        tied_head="output.weight" not in tensors,
        interleaved_rope=architecture in _INTERLEAVED_ROPE,
    )


class _Fields:
    """Typed access to the architecture's keys; refuses those that could change the maths unseen."""

    def __init__(self, architecture: str, metadata: Mapping[str, Any]) -> None:
        self.architecture, self.metadata = architecture, metadata
        prefix = architecture + "."
        for key, value in metadata.items():
            name = key.removeprefix(prefix)
            if key.startswith(prefix) and name not in _READ | _HARMLESS and value not in (0, False, [], ""):
                raise SpecError(f"metadata has {key} = {value!r}, which this engine does not know and will not ignore")

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def get(self, name: str, default: object = None) -> Any:
        return self.metadata.get(self.key(name), default)

    def size(self, name: str, fallback: int | None = None) -> int:
        value = self.get(name, fallback)
        if type(value) is not int or value < 1:
            raise SpecError(f"{self.key(name)} is {value!r}, a whole number of at least 1 is needed")
        return value

    def number(self, name: str, fallback: float | None = None) -> float:
        value = self.get(name, fallback)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise SpecError(f"{self.key(name)} is {value!r}, a finite number above 0 is needed")
        return float(value)


def _rope(fields: _Fields, dim: int, divisors: Sequence[float]) -> Rope:
    theta = fields.number("rope.freq_base", 10000.0)
    kind = fields.get("rope.scaling.type", "none")
    # Files from before 2023-10 name the linear factor rope.scale_linear.
    factor = fields.number("rope.scaling.factor", fields.get("rope.scale_linear", 1.0))
    if kind not in ("none", "linear"):
        raise SpecError(f"{fields.key('rope.scaling.type')} is {kind!r}, this engine has none and linear")
    if divisors:
        if any(not (math.isfinite(d) and d > 0) for d in divisors):
            raise SpecError(f"{ROPE_DIVISORS_TENSOR} holds {min(divisors)}, divisors are finite and above 0")
        if kind == "linear" and factor != 1.0:
            raise SpecError(f"{ROPE_DIVISORS_TENSOR} and linear rope scaling by {factor} exclude each other")
        return Rope(dim, theta, "divisors", divisors=tuple(divisors))
    if kind == "linear" or (factor != 1.0 and fields.get("rope.scaling.type") is None):
        return Rope(dim, theta, "linear", factor=factor)
    return Rope(dim, theta)
