"""The weights of a decoder under one set of names, whatever file they come from; strict about every one.

Canonical names: ``embed``, ``final_norm``, ``head`` (unless tied) and, for each layer i,
``layers.i.`` + a key of `layer_shapes`. Matrices are ``[out, in]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from minillm.loaders.files import LoadError
from minillm.loaders.tensors import Float32, TensorSource
from minillm.models.spec import Attention, Dense, Experts, FeedForward, LatentAttention, LayerSpec, Mixer, ModelSpec

Naming = Literal["huggingface", "gguf"]

_TOP = {
    "embed": ("model.embed_tokens.weight", "token_embd.weight"),
    "final_norm": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
}
_LAYER_PREFIX = ("model.layers.{}.", "blk.{}.")
_LAYER = {
    "mixer_norm": ("input_layernorm.weight", "attn_norm.weight"),
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
    "ffn_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
    "gate_bias": ("mlp.gate_proj.bias", "ffn_gate.bias"),
    "up_bias": ("mlp.up_proj.bias", "ffn_up.bias"),
    "down_bias": ("mlp.down_proj.bias", "ffn_down.bias"),
}
# With norms after each block (Gemma), Hugging Face gives one name another meaning.
_POST_NORM_LAYER = {
    "ffn_norm": ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    "post_mixer_norm": ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    "post_ffn_norm": ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
}
# Experts have no name in GGUF here: files that hold them are refused before.
_EXPERTS = {
    "router": "mlp.gate.weight",
    "correction": "mlp.gate.e_score_correction_bias",
    "gate": "mlp.experts.{}.gate_proj.weight",
    "up": "mlp.experts.{}.up_proj.weight",
    "down": "mlp.experts.{}.down_proj.weight",
    "shared.gate": "mlp.shared_experts.gate_proj.weight",
    "shared.up": "mlp.shared_experts.up_proj.weight",
    "shared.down": "mlp.shared_experts.down_proj.weight",
}
# Nor have latent vectors.
_LATENT = {
    "q_down": "self_attn.q_a_proj.weight",
    "q_norm": "self_attn.q_a_layernorm.weight",
    "kv_down": "self_attn.kv_a_proj_with_mqa.weight",
    "kv_norm": "self_attn.kv_a_layernorm.weight",
    "kv": "self_attn.kv_b_proj.weight",
}
_MIXTRAL_EXPERTS = {
    "router": "block_sparse_moe.gate.weight",
    "gate": "block_sparse_moe.experts.{}.w1.weight",
    "up": "block_sparse_moe.experts.{}.w3.weight",
    "down": "block_sparse_moe.experts.{}.w2.weight",
}
# Buffers that old files carry and that follow from the config.
_DERIVED = (".rotary_emb.inv_freq",)


Shapes = dict[str, tuple[int, ...]]


def expected_shapes(spec: ModelSpec) -> Shapes:
    """Every canonical tensor of the model and its shape."""
    shapes: Shapes = {"embed": (spec.vocab_size, spec.hidden), "final_norm": (spec.hidden,)}
    if not spec.tied_head:
        shapes["head"] = (spec.vocab_size, spec.hidden)
    of_kind = {layer: layer_shapes(layer, spec.hidden) for layer in dict.fromkeys(spec.layers)}
    for i, layer in enumerate(spec.layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in of_kind[layer].items()}
    return shapes


def layer_shapes(layer: LayerSpec, hidden: int) -> Shapes:
    """The tensors of one layer and their shapes."""
    names = ("mixer_norm", "ffn_norm", *(("post_mixer_norm", "post_ffn_norm") if layer.post_norms else ()))
    shapes: Shapes = {name: (hidden,) for name in names}
    return shapes | _mixer_shapes(layer.mixer, hidden) | _ffn_shapes(layer.ffn, hidden)


def _mixer_shapes(mixer: Mixer, hidden: int) -> Shapes:
    if isinstance(mixer, LatentAttention):
        return _latent_shapes(mixer, hidden)
    q, kv = mixer.q_size, mixer.kv_size
    shapes: Shapes = {"q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden), "output": (hidden, q)}
    if mixer.qkv_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if mixer.output_bias:
        shapes |= {"output_bias": (hidden,)}
    if mixer.qk_norm:
        shapes |= {"q_norm": (mixer.head_dim,), "k_norm": (mixer.head_dim,)}
    return shapes


def _latent_shapes(mixer: LatentAttention, hidden: int) -> Shapes:
    shapes: Shapes = {
        "q": (mixer.heads * mixer.head_dim, mixer.q_rank or hidden),
        "kv_down": (mixer.kv_rank + mixer.rope.dim, hidden),
        "kv_norm": (mixer.kv_rank,),
        "kv": (mixer.heads * (mixer.nope_dim + mixer.value_dim), mixer.kv_rank),
        "output": (hidden, mixer.output_size),
    }
    return shapes | ({"q_down": (mixer.q_rank, hidden), "q_norm": (mixer.q_rank,)} if mixer.q_rank else {})


def _ffn_shapes(ffn: FeedForward, hidden: int) -> Shapes:
    if isinstance(ffn, Dense):
        shapes = _gated(hidden, ffn.intermediate)
        biases: Shapes = {"gate_bias": (ffn.intermediate,), "up_bias": (ffn.intermediate,), "down_bias": (hidden,)}
        return shapes | biases if ffn.bias else shapes
    shapes = {"router": (ffn.routing.count, hidden)}
    if ffn.correction:
        shapes["correction"] = (ffn.routing.count,)
    for e in range(ffn.routing.count):
        shapes |= {f"experts.{e}.{name}": shape for name, shape in _gated(hidden, ffn.intermediate).items()}
    if ffn.shared_intermediate:
        shapes |= {f"shared.{name}": shape for name, shape in _gated(hidden, ffn.shared_intermediate).items()}
    return shapes


def _gated(hidden: int, intermediate: int) -> Shapes:
    return {"gate": (intermediate, hidden), "up": (intermediate, hidden), "down": (hidden, intermediate)}


class Weights:
    """Reads canonical tensors as float32. Opening checks names and shapes of all; reading is lazy.

    Rows that the spec calls interleaved are brought to halves on reading. ``elsewhere``: stored tensors that others
    read.
    """

    def __init__(
        self,
        source: TensorSource,
        spec: ModelSpec,
        naming: Naming,
        *,
        elsewhere: frozenset[str] = frozenset(),
    ) -> None:
        self.source, self.spec, self._elsewhere = source, spec, elsewhere
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
        part = name.rsplit(".", 1)[-1]
        if self.spec.interleaved_rope and part in ("q", "k", "q_bias", "k_bias", "kv_down"):
            mixer = self.spec.layers[int(name.split(".")[1])].mixer
            if isinstance(mixer, Attention):
                return _pairs_to_halves(values, mixer.head_dim)
            rows = mixer.head_dim if part == "q" else len(values)  # of which the last are rotated
            return _last_pairs_to_halves(values, rows, mixer.rope.dim)
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


def plain_name(tensor: str) -> str:
    """What Hugging Face calls a tensor of an ordinary layer, within the layer."""
    return _LAYER[tensor][0]


def source_name(name: str, spec: ModelSpec, naming: Naming) -> str:
    """What a file calls canonical tensor ``name``."""
    column = _column(naming)
    if name in _TOP:
        return _TOP[name][column]
    _, layer, tensor = name.split(".", 2)
    of_layer, prefix = spec.layers[int(layer)], _LAYER_PREFIX[column].format(layer)
    if isinstance(of_layer.ffn, Experts):
        names = _MIXTRAL_EXPERTS if spec.architecture == "MixtralForCausalLM" else _EXPERTS
        if tensor.startswith("experts."):
            _, expert, part = tensor.split(".")
            return prefix + names[part].format(expert)
        if tensor in names:
            return prefix + names[tensor]
    if isinstance(of_layer.mixer, LatentAttention):
        names = _LATENT | ({"q": "self_attn.q_b_proj.weight"} if of_layer.mixer.q_rank else {})
        if tensor in names:
            return prefix + names[tensor]
    table = {**_LAYER, **_POST_NORM_LAYER} if of_layer.post_norms else _LAYER
    return prefix + table[tensor][column]


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


def _last_pairs_to_halves(values: Float32, rows: int, dim: int) -> Float32:
    """The same for the last ``dim`` of every ``rows`` rows."""
    each = values.reshape(-1, rows, *values.shape[1:]).copy()
    turned = each[:, rows - dim :]
    each[:, rows - dim :] = _pairs_to_halves(turned.reshape(-1, *values.shape[1:]), dim).reshape(turned.shape)
    return each.reshape(values.shape)


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
