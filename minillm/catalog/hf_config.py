"""Geometry from a published Hugging Face ``config.json``; what could change a size and is unknown is an error.

An explicit field always wins over a rule such as hidden size / heads. Where a file may leave a field
out, the default is that of the transformers library (5.x, ``configuration_*.py`` of the model type).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minillm.catalog.formats import WeightFormats, native_formats
from minillm.catalog.geometry import Experts, Geometry, GroupedAttention, LatentAttention
from minillm.catalog.source import CatalogError
from minillm.costs.check import CostError

# Fields that change no size: bookkeeping, positions, activations, training, routing rules, other towers.
# fmt: off
_HARMLESS = frozenset({
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache", "auto_map",
    "initializer_range", "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "pretraining_tp",
    "rms_norm_eps", "hidden_act", "hidden_activation", "hidden_dropout", "rope_theta", "rope_scaling",
    "rope_parameters", "rope_local_base_freq", "rope_interleaved", "partial_rotary_factor", "quantization_config",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "cache_implementation",
    "max_window_layers", "use_sliding_window", "sliding_window", "sliding_window_pattern", "layer_types",
    "head_dim", "num_key_value_heads", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings", "tie_word_embeddings", "norm_topk_prob", "output_router_logits", "swiglu_limit",
    "router_aux_loss_coef", "router_jitter_noise", "routed_scaling_factor", "scoring_func", "topk_method", "topk_group",
    "n_group", "aux_loss_alpha", "seq_aux", "ep_size", "experts_per_token", "initial_context_length",
    "num_nextn_predict_layers", "is_llama_config", "transformers.js_config", "transformers_weights",
    "image_token_index", "boi_token_index", "eoi_token_index", "mm_tokens_per_image", "vision_config",
    "image_token_id", "boi_token_id", "eoi_token_id", "name_or_path", "qk_head_dim",
})
# fmt: on
_ENCODERS = ("bert", "roberta", "xlm-roberta", "modernbert", "distilbert", "nomic_bert", "electra", "deberta-v2")


@dataclass(frozen=True)
class _Family:
    """How the layers of a model type are built, where the config does not say it."""

    fields: frozenset[str] = frozenset()  # what this type has besides the common fields
    qkv_bias: bool = False
    attention_bias: bool = False  # default of the field
    qk_norm: bool = False
    sinks: bool = False
    norms_per_layer: int = 2
    mlp_bias: bool = False
    tied: bool = False
    head_dim_rule: bool = True  # head_dim may be missing: it is hidden size / heads
    window: int | None = None  # default of sliding_window
    every: int = 1  # layer i is windowed unless (i + 1) % every == 0; 1: all layers are
    switched: bool = False  # windows need use_sliding_window
    experts: str = ""  # the field that counts the routed experts
    latent: bool = False
    vocab_size: int | None = None


_EXPERT_FIELDS = frozenset({"num_experts_per_tok", "intermediate_size", "moe_intermediate_size"})
_SHARED = _EXPERT_FIELDS | {"n_routed_experts", "n_shared_experts", "first_k_dense_replace", "moe_layer_freq"}
_LATENT = frozenset({"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
_DENSE = frozenset({"intermediate_size", "attention_bias", "mlp_bias"})
_QWEN_MOE = _EXPERT_FIELDS | {"num_experts", "decoder_sparse_step", "mlp_only_layers", "attention_bias"}

_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(_DENSE),
    "mistral": _Family(_DENSE, window=4096),
    "mixtral": _Family(_EXPERT_FIELDS | {"num_local_experts"}, experts="num_local_experts"),
    "qwen2": _Family(_DENSE, qkv_bias=True, switched=True, window=4096),
    "qwen3": _Family(_DENSE, qk_norm=True, head_dim_rule=False, switched=True, window=4096),
    "qwen3_moe": _Family(
        _QWEN_MOE, qk_norm=True, head_dim_rule=False, switched=True, window=4096, experts="num_experts"
    ),
    "gemma3_text": _Family(
        _DENSE, qk_norm=True, head_dim_rule=False, norms_per_layer=4, tied=True, window=4096, every=6, vocab_size=262208
    ),
    "gpt_oss": _Family(
        _EXPERT_FIELDS | {"num_local_experts", "attention_bias"},
        attention_bias=True,
        sinks=True,
        mlp_bias=True,
        head_dim_rule=False,
        window=128,
        every=2,
        experts="num_local_experts",
    ),
    "glm4_moe": _Family(_SHARED | {"use_qk_norm", "attention_bias"}, head_dim_rule=False, experts="n_routed_experts"),
    "deepseek_v3": _Family(_SHARED | _LATENT | {"attention_bias"}, latent=True, experts="n_routed_experts"),
}


def geometry_from_hf_config(config: Mapping[str, Any]) -> Geometry:
    """The geometry of a parsed ``config.json``. Raises :class:`CatalogError` that names field and value."""
    if isinstance(config.get("text_config"), Mapping):
        config = config["text_config"]
    fields = _Fields(config)
    try:
        return Geometry(
            hidden_size=fields.size("hidden_size"),
            vocab_size=fields.size("vocab_size", fields.family.vocab_size),
            context_tokens=fields.size("max_position_embeddings"),
            attention=_latent(fields) if fields.family.latent else _grouped(fields),
            windows=_windows(fields),
            intermediate_size=_dense_size(fields),
            experts=_experts(fields) if fields.family.experts else None,
            tied_embeddings=bool(fields.get("tie_word_embeddings", fields.family.tied)),
            mlp_bias=bool(fields.get("mlp_bias", False)),
            norms_per_layer=fields.family.norms_per_layer,
        )
    except CostError as error:
        raise CatalogError(f"config.json: {error}") from None


def formats_from_hf_config(config: Mapping[str, Any]) -> WeightFormats | None:
    """The number formats of the files that a parsed ``config.json`` describes, None where they are not understood."""
    own = config["text_config"] if isinstance(config.get("text_config"), Mapping) else config
    quantization = own.get("quantization_config") or config.get("quantization_config")
    dtype = next((c[name] for c in (own, config) for name in ("dtype", "torch_dtype") if c.get(name)), None)
    return native_formats(dtype, quantization)


class _Fields:
    """Typed access to a config of a known model type; refuses fields that the formulas do not know."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        kind = config.get("model_type")
        if kind in _ENCODERS:
            raise CatalogError(
                f"config.json: model_type {kind!r} is an encoder: it reads its whole input at once and has no KV cache"
            )
        if kind not in _FAMILIES:
            raise CatalogError(
                f"config.json: model_type {kind!r} is not known to the formulas, which cover {', '.join(_FAMILIES)}; "
                "its cache may be of another kind, so nothing is guessed"
            )
        self.config, self.kind, self.family = config, str(kind), _FAMILIES[str(kind)]
        for name, value in config.items():
            off = value is None or value is False or value in ([], {})
            if name in _HARMLESS or name in self.family.fields or name.startswith("_") or off:
                continue
            raise CatalogError(
                f"config.json: {kind} has the field {name} = {value!r}, which the formulas do not know; "
                "it may change a size: leave it out only if you know that it does not"
            )

    def get(self, name: str, default: Any = None) -> Any:
        value = self.config.get(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if value is None:
            raise CatalogError(f"config.json: {self.kind} needs the field {name}, which is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CatalogError(f"config.json: {name} is {value!r}, a whole number of at least 1 is needed")
        return value


def _grouped(fields: _Fields) -> GroupedAttention:
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    rule = hidden // heads if fields.family.head_dim_rule and hidden % heads == 0 else None
    if rule is None and fields.get("head_dim") is None:
        why = f"hidden_size {hidden} / {heads} heads is not its head size"
        raise CatalogError(f"config.json: {fields.kind} needs the field head_dim, which is missing: {why}")
    bias = bool(fields.get("attention_bias", fields.family.attention_bias))
    return GroupedAttention(
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads if fields.kind == "llama" else None),
        head_dim=fields.size("head_dim", rule),
        qkv_bias=bias or fields.family.qkv_bias,
        # GLM's attention_bias stands for the inputs only.
        output_bias=bias and fields.kind not in ("qwen2", "glm4_moe"),
        qk_norm=fields.family.qk_norm or bool(fields.get("use_qk_norm", False)),
        sinks=fields.family.sinks,
    )


def _latent(fields: _Fields) -> LatentAttention:
    if fields.get("attention_bias", False):
        raise CatalogError(f"config.json: attention_bias is true, which the formulas do not know of {fields.kind}")
    return LatentAttention(
        heads=fields.size("num_attention_heads"),
        q_lora_rank=None if fields.get("q_lora_rank") is None else fields.size("q_lora_rank"),
        kv_lora_rank=fields.size("kv_lora_rank"),
        nope_dim=fields.size("qk_nope_head_dim"),
        rope_dim=fields.size("qk_rope_head_dim"),
        value_head_dim=fields.size("v_head_dim"),
    )


def _windows(fields: _Fields) -> tuple[int | None, ...]:
    """One window a layer, None where a layer sees everything."""
    layers, family = fields.size("num_hidden_layers"), fields.family
    # A file says "no window" by null, so a null must not fall back to the default.
    window = fields.config.get("sliding_window", family.window)
    if family.switched and not fields.get("use_sliding_window", False):
        window = None
    kinds = fields.get("layer_types")
    if kinds is None:
        every = fields.size("sliding_window_pattern", family.every)
        first = fields.get("max_window_layers", 28) if family.switched else 0
        local = [i >= first and (every == 1 or (i + 1) % every != 0) for i in range(layers)]
    else:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise CatalogError(f"config.json: layer_types is {kinds!r}, a list of {layers} entries is needed")
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise CatalogError(
                    f"config.json: layer_types has {kind!r}, the formulas know full and sliding attention"
                )
        local = [kind == "sliding_attention" for kind in kinds]
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise CatalogError(f"config.json: sliding_window is {window!r}, a whole number of at least 1 or null is needed")
    return tuple(window if is_local else None for is_local in local)


def _dense_size(fields: _Fields) -> int | None:
    """Width of the dense layers' MLP; None where all layers have experts (Mixtral and GPT-OSS keep theirs here)."""
    if fields.kind in ("mixtral", "gpt_oss", "qwen3_moe"):
        return None
    return fields.size("intermediate_size")


def _experts(fields: _Fields) -> Experts:
    if fields.get("moe_layer_freq", 1) != 1 or fields.get("decoder_sparse_step", 1) != 1:
        raise CatalogError(
            f"config.json: {fields.kind} has experts in some layers only, which the formulas do not know"
        )
    gpt_oss = fields.kind == "gpt_oss"
    own = "intermediate_size" if fields.kind in ("mixtral", "gpt_oss") else "moe_intermediate_size"
    width = fields.size(own)
    return Experts(
        count=fields.size(fields.family.experts),
        per_token=fields.size("num_experts_per_tok"),
        intermediate_size=width,
        shared_intermediate_size=width * int(fields.get("n_shared_experts", 0)),
        first_layer=int(fields.get("first_k_dense_replace", 0)),
        bias=fields.family.mlp_bias,
        # DeepSeek and GLM add a correction to each expert's score, which counts as a parameter.
        router_bias=gpt_oss or fields.kind in ("deepseek_v3", "glm4_moe"),
    )
