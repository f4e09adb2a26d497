"""The weights of a decoder under one set of names, whatever file they come from; strict about every one.

Canonical names: ``embed``, ``final_norm``, ``head`` (unless tied) and, for each layer i,
``layers.i.`` + a key of ``_LAYER``. Matrices are ``[out, in]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from minillm.loaders.files import LoadError
from minillm.loaders.tensors import Float32, TensorSource
from minillm.models.spec import ModelSpec

Naming = Literal["huggingface", "gguf"]

_TOP = {
    "embed": ("model.embed_tokens.weight", "token_embd.weight"),
    "final_norm": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
}
_LAYER_PREFIX = ("model.layers.{}.", "blk.{}.")
_LAYER = {
    "attention_norm": ("input_layernorm.weight", "attn_norm.weight"),
    "q": ("self_attn.q_proj.weight", "attn_q.weight"),
    "k": ("self_attn.k_proj.weight", "attn_k.weight"),
    "v": ("self_attn.v_proj.weight", "attn_v.weight"),
    "q_bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "k_bias": ("self_attn.k_proj.bias", "attn_k.bias"),
    "v_bias": ("self_attn.v_proj.bias", "attn_v.bias"),
    "q_norm": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "k_norm": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "output": ("self_attn.o_proj.weight", "attn_output.weight"),
    "output_bias": ("self_attn.o_proj.bias", "attn_output.bias"),
    "mlp_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
    "gate_bias": ("mlp.gate_proj.bias", "ffn_gate.bias"),
    "up_bias": ("mlp.up_proj.bias", "ffn_up.bias"),
    "down_bias": ("mlp.down_proj.bias", "ffn_down.bias"),
}
# With norms after each block (Gemma 2), Hugging Face gives one name another meaning.
_POST_NORM_LAYER = {
    "mlp_norm": ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    "post_attention_norm": ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    "post_mlp_norm": ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
}
# Buffers that old files carry and that follow from the config.
_DERIVED = (".rotary_emb.inv_freq",)


def layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer and their shapes."""
    hidden, q, kv, inner = spec.hidden, spec.q_size, spec.kv_size, spec.intermediate
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "q": (q, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "output": (hidden, q),
        "mlp_norm": (hidden,),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    if spec.qkv_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if spec.output_bias:
        shapes |= {"output_bias": (hidden,)}
    if spec.mlp_bias:
        shapes |= {"gate_bias": (inner,), "up_bias": (inner,), "down_bias": (hidden,)}
    if spec.qk_norm:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.post_norms:
        shapes |= {"post_attention_norm": (hidden,), "post_mlp_norm": (hidden,)}
    return shapes


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every canonical tensor of the model and its shape."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (spec.vocab_size, spec.hidden), "final_norm": (spec.hidden,)}
    if not spec.tied_head:
        shapes["head"] = (spec.vocab_size, spec.hidden)
    one_layer = layer_shapes(spec)
    return shapes | {f"layers.{i}.{name}": s for i in range(spec.layers) for name, s in one_layer.items()}


class Weights:
    """Reads canonical tensors as float32. Opening checks names and shapes of all; reading is lazy.

    ``interleaved_rope``: the rows of Q and K are stored with the pairs of the rotation beside each
    other, as GGUF's llama architecture has them, and are brought back to halves on reading. ``elsewhere``: stored
    tensors that someone else reads.
    """

    def __init__(
        self,
        source: TensorSource,
        spec: ModelSpec,
        naming: Naming,
        *,
        interleaved_rope: bool = False,
        elsewhere: frozenset[str] = frozenset(),
    ) -> None:
        self.source, self.spec, self.interleaved_rope, self._elsewhere = source, spec, interleaved_rope, elsewhere
        self._shapes = expected_shapes(spec)
        self._names = {name: source_name(name, spec, naming) for name in self._shapes}
        self._check_names(naming)
        self._check_shapes()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    @property
    def parameters(self) -> int:
        """Elements of all tensors, a tied head counted once."""
        return sum(int(np.prod(shape)) for shape in self._shapes.values())

    def read(self, name: str) -> Float32:
        """Tensor ``name`` as float32, possibly a read-only view of the file."""
        stored = self._names[name]
        values = self.source.read(stored)
        if values.dtype == np.int8:
            values = values * self.source.read(_scale_name(stored))
        if self.interleaved_rope and name.rsplit(".", 1)[-1] in ("q", "k", "q_bias", "k_bias"):
            values = _pairs_to_halves(values, self.spec.head_dim)
        return values

    def _check_names(self, naming: Naming) -> None:
        label, stored = self.source.label, set(self.source)
        missing = sorted(set(self._names.values()) - stored)
        if missing:
            raise LoadError(
                f"{label}: {len(missing)} of {len(self._names)} tensors of {self.spec.architecture} are missing: "
                f"{_some(missing)}"
            )
        scales = {_scale_name(n) for n in self._names.values() if self.source.info(n).dtype == "I8"}
        extra = {n for n in stored - set(self._names.values()) - scales - self._elsewhere if not n.endswith(_DERIVED)}
        tied = _TOP["head"][_column(naming)]
        if self.spec.tied_head and tied in extra:
            embed = self.source.read(self._names["embed"])
            if not np.array_equal(self.source.read(tied), embed):
                raise LoadError(f"{label}: the head is tied to the embedding, but {tied!r} holds other values")
            extra -= {tied, _scale_name(tied)}
        if extra:
            raise LoadError(f"{label}: {len(extra)} tensors do not belong to the model: {_some(sorted(extra))}")

    def _check_shapes(self) -> None:
        for name, stored in self._names.items():
            info = self.source.info(stored)
            self._check_shape(stored, info.shape, self._shapes[name])
            if info.dtype == "I8":
                scale = _scale_name(stored)
                if scale not in self.source:
                    raise LoadError(f"{self.source.label}: tensor {stored!r} is I8, its scales {scale!r} are missing")
                found = self.source.info(scale)
                self._check_shape(scale, found.shape, (info.shape[0], *([1] * (len(info.shape) - 1))))
                if found.dtype == "I8":
                    raise LoadError(f"{self.source.label}: tensor {scale!r} is I8, scales are floating point")

    def _check_shape(self, stored: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if found != wanted:
            raise LoadError(
                f"{self.source.label}: tensor {stored!r} is {list(found)}, {self.spec.architecture} with this "
                f"config needs {list(wanted)}"
            )


def _column(naming: Naming) -> int:
    return 0 if naming == "huggingface" else 1


def source_name(name: str, spec: ModelSpec, naming: Naming) -> str:
    """What a file calls canonical tensor ``name``."""
    column = _column(naming)
    if name in _TOP:
        return _TOP[name][column]
    _, layer, tensor = name.split(".")
    table = {**_LAYER, **_POST_NORM_LAYER} if spec.post_norms else _LAYER
    return _LAYER_PREFIX[column].format(layer) + table[tensor][column]


def _scale_name(stored: str) -> str:
    return stored + "_scale"


def _pairs_to_halves(values: Float32, head_dim: int) -> Float32:
    """Rows of each head from (0, D/2, 1, D/2 + 1, ...) to (0, 1, ..., D - 1).

    The converter of llama.cpp makes the former, since its rotation of the llama architecture pairs
    neighbours; ours pairs element i with i + D / 2.
    """
    tail = values.shape[1:]
    heads = values.reshape(-1, head_dim // 2, 2, *tail)
    return heads.swapaxes(1, 2).reshape(values.shape)


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
