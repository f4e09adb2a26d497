"""Builds a `ModelSpec` from a Hugging Face ``config.json``; whatever it does not know is an error.

Absent fields take the defaults of the transformers library (5.x, ``configuration_*.py`` of each
model), since a file that transformers wrote leaves defaults out. Sizes have no default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from minillm.models.hf_fields import Fields, real
from minillm.models.hf_rope import rope_of, rope_table, stretched
from minillm.models.spec import (
    MAX_LAYERS,
    Attention,
    Dense,
    Experts,
    FeedForward,
    LatentAttention,
    LayerSpec,
    Mixer,
    ModelSpec,
    Rope,
    SpecError,
)
from minillm.ops import Activation
from minillm.ops.routing import Routing

# Defaults of each architecture for fields that a file may leave out. None under "layer_types" and
# "head_dim" means "derived from the other fields".
_COMMON: dict[str, Any] = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "head_dim": None,
    "rope_theta": None,
    "rope_scaling": None,
    "rope_parameters": None,
    "partial_rotary_factor": 1.0,
    "rope_interleaved": False,
}
_WINDOWED: dict[str, Any] = {"use_sliding_window": False, "sliding_window": 4096, "layer_types": None}
_GEMMA: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "attention_bias": False,
    "sliding_window": 4096,
    "layer_types": None,
    "query_pre_attn_scalar": 256,
    "use_bidirectional_attention": None,
    "tie_word_embeddings": True,
}
_DEEPSEEK: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "num_key_value_heads": None,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "qk_head_dim": None,
    "v_head_dim": 128,
    "moe_layer_freq": 1,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "num_key_value_heads": None},
    "MistralForCausalLM": {"hidden_act": "silu", "sliding_window": 4096, "num_key_value_heads": 8},
    "Qwen2ForCausalLM": {"hidden_act": "silu", "num_key_value_heads": 32, **_WINDOWED},
    "Qwen3ForCausalLM": {
        "hidden_act": "silu",
        "num_key_value_heads": 32,
        "head_dim": 128,
        "attention_bias": False,
        **_WINDOWED,
    },
    "MixtralForCausalLM": {
        "hidden_act": "silu",
        "num_key_value_heads": 8,
        "sliding_window": None,
        "rope_theta": 1000000.0,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "Qwen3MoeForCausalLM": {
        "hidden_act": "silu",
        "num_key_value_heads": 4,
        "attention_bias": False,
        "num_experts": None,
        "num_local_experts": None,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        **_WINDOWED,
    },
    "DeepseekV2ForCausalLM": {
        "first_k_dense_replace": 0,
        "n_group": None,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_experts_per_tok": None,
        "moe_intermediate_size": 1407,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "topk_group": None,
        "topk_method": "greedy",
        **_DEEPSEEK,
    },
    "DeepseekV3ForCausalLM": {
        "first_k_dense_replace": 3,
        "n_group": 8,
        "n_routed_experts": 256,
        "num_local_experts": None,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "rope_interleave": True,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_group": 4,
        "topk_method": "noaux_tc",
        **_DEEPSEEK,
    },
    "Gemma2ForCausalLM": {
        "num_key_value_heads": 4,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        **_GEMMA,
    },
    "Gemma3ForCausalLM": {
        "num_key_value_heads": 4,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window_pattern": 6,
        **_GEMMA,
    },
}
_DEEPSEEKS = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
_GEMMAS = ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def spec_from_hf_config(config: Mapping[str, Any]) -> ModelSpec:
    """The spec of a parsed ``config.json``. Raises `SpecError` for anything this engine would get wrong."""
    architecture = _architecture(config)
    fields = Fields(architecture, config, {**_COMMON, **_DEFAULTS[architecture]})
    layers = fields.size("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise SpecError(f"config.json: num_hidden_layers is {layers:,}, the limit is {MAX_LAYERS:,}")
    fields.demand("rope_interleaved", False)
    gemma = architecture in _GEMMAS
    if gemma:
        fields.demand("use_bidirectional_attention", None, False)
    hidden = fields.size("hidden_size")
    return ModelSpec(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden=hidden,
        layers=tuple(
            LayerSpec(mixer, ffn, post_norms=gemma)
            for mixer, ffn in zip(_mixers(fields, layers), _feed_forward(fields, layers), strict=True)
        ),
        max_positions=fields.size("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps"),
        tied_head=fields.flag("tie_word_embeddings"),
        logit_cap=fields.optional_number("final_logit_softcapping"),
        norm_offset=1.0 if gemma else 0.0,
        embedding_scale=math.sqrt(hidden) if gemma else 1.0,
        interleaved_rope=architecture in _DEEPSEEKS and fields.get("rope_interleave", True) is not False,
    )


def _mixers(fields: Fields, layers: int) -> Sequence[Mixer]:
    """The mixer of each layer."""
    if fields.architecture in _DEEPSEEKS:
        return [_latent_attention(fields)] * layers
    return _attention(fields, layers)


def _latent_attention(fields: Fields) -> LatentAttention:
    fields.demand("attention_bias", False)
    heads, rope_dim = fields.size("num_attention_heads"), fields.size("qk_rope_head_dim")
    if fields.get("num_key_value_heads") not in (None, heads):
        raise SpecError(
            f"config.json: num_key_value_heads is {fields.get('num_key_value_heads')!r}, latent attention has one for "
            f"each of the {heads} heads"
        )
    rope, table = rope_of(fields, rope_dim, is_windowed=False), rope_table(fields)
    # Beside the amplitude of cosines and sines, these models scale all scores for the stretched context.
    stretch = real(table.get("mscale_all_dim")) or 0.0 if rope.scaling != "none" else 0.0
    return LatentAttention(
        heads=heads,
        q_rank=None if fields.get("q_lora_rank") is None else fields.size("q_lora_rank"),
        kv_rank=fields.size("kv_lora_rank"),
        nope_dim=fields.size("qk_nope_head_dim"),
        value_dim=fields.size("v_head_dim"),
        rope=rope,
        scale_factor=stretched(rope.factor, stretch) ** 2,
    )


def _attention(fields: Fields, layers: int) -> list[Attention]:
    """The attention of each layer."""
    architecture, heads = fields.architecture, fields.size("num_attention_heads")
    head_dim = fields.size("head_dim", fields.size("hidden_size") // heads)
    attention_bias = fields.flag("attention_bias")
    every = Attention(
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=head_dim,
        rope=Rope(head_dim),
        scale=fields.number("query_pre_attn_scalar") ** -0.5 if architecture in _GEMMAS else None,
        cap=fields.optional_number("attn_logit_softcapping"),
        qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        output_bias=attention_bias,
        qk_norm=architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM"),
    )
    windows = _windows(fields, layers)
    ropes = {window: rope_of(fields, head_dim, is_windowed=window is not None) for window in dict.fromkeys(windows)}
    return [replace(every, rope=ropes[window], window=window) for window in windows]


def _feed_forward(fields: Fields, layers: int) -> list[FeedForward]:
    """The feed-forward of each layer."""
    architecture = fields.architecture
    activation = _activation(fields, "hidden_activation" if architecture in _GEMMAS else "hidden_act")
    dense = Dense(fields.size("intermediate_size"), activation, fields.flag("mlp_bias"))
    if architecture == "MixtralForCausalLM":
        chosen = fields.size("num_experts_per_tok")
        routing = Routing(fields.size("num_local_experts"), chosen, renormalize=True)
        return [Experts(routing, dense.intermediate, activation=activation)] * layers
    if architecture == "Qwen3MoeForCausalLM":
        # transformers 5 writes the name that others read.
        count = fields.size("num_experts", fields.get("num_local_experts", 128))
        routing = Routing(count, fields.size("num_experts_per_tok"), renormalize=fields.flag("norm_topk_prob"))
        experts = Experts(routing, fields.size("moe_intermediate_size"), activation=activation)
        step, only = fields.size("decoder_sparse_step"), fields.indices("mlp_only_layers", layers)
        return [dense if i in only or (i + 1) % step else experts for i in range(layers)]
    if architecture in _DEEPSEEKS:
        fields.demand("moe_layer_freq", 1)
        first = min(fields.size("first_k_dense_replace", lowest=0), layers)
        return [dense] * first + ([_deepseek_experts(fields, activation)] * (layers - first) if first < layers else [])
    return [dense] * layers


def _deepseek_experts(fields: Fields, activation: Activation) -> Experts:
    is_third = fields.architecture == "DeepseekV3ForCausalLM"
    if not is_third and fields.flag("norm_topk_prob"):  # which transformers does not read
        raise SpecError("config.json: norm_topk_prob is true, DeepseekV2ForCausalLM is known with false alone")
    fields.demand("scoring_func", "sigmoid" if is_third else "softmax")
    fields.demand("topk_method", *(["noaux_tc"] if is_third else ["greedy", "group_limited_greedy"]))
    count = fields.size("n_routed_experts", fields.get("num_local_experts"))
    by_group = fields.get("topk_method") != "greedy"
    routing = Routing(
        count,
        fields.size("num_experts_per_tok"),
        renormalize=fields.flag("norm_topk_prob"),
        scale=fields.number("routed_scaling_factor"),
        scoring="sigmoid" if is_third else "softmax",
        groups=fields.size("n_group") if by_group else 1,
        top_groups=fields.size("topk_group") if by_group else 1,
        group_best=2 if is_third else 1,
    )
    inner = fields.size("moe_intermediate_size")
    shared = 0 if fields.get("n_shared_experts") is None else fields.size("n_shared_experts", lowest=0)
    return Experts(routing, inner, inner * shared, activation, correction=is_third)


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in list(_DEFAULTS):
        raise SpecError(f"config.json: architectures is {names!r}, this engine runs one of {', '.join(_DEFAULTS)}")
    return str(names[0])


def _activation(fields: Fields, name: str) -> Activation:
    value = fields.get(name)
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise SpecError(f"config.json: {name} is {value!r}, this engine has {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[value]


def _windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """One window a layer: what a query sees of the tokens before it, None for all of them."""
    window = fields.get("sliding_window")
    switched = "use_sliding_window" in fields.defaults  # Qwen's switch
    if switched and not fields.flag("use_sliding_window"):
        window = None
    if window is not None:
        window = fields.size("sliding_window")
    kinds = fields.get("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if slides else "full_attention" for slides in _slides(fields, layers, switched)]
    elif not isinstance(kinds, list) or len(kinds) != layers:
        raise SpecError(f"config.json: layer_types is {kinds!r}, a list of {layers} entries is needed")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise SpecError(f"config.json: layer_types has {kind!r}, this engine has full and sliding attention")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _slides(fields: Fields, layers: int, switched: bool) -> list[bool]:
    """Which layers have the window, where a file does not say it for each."""
    if fields.architecture in _GEMMAS:  # Gemma 2 has full attention in every second layer, Gemma 3 in every sixth
        period = fields.size("sliding_window_pattern", 2)
        return [(i + 1) % period != 0 for i in range(layers)]
    if fields.architecture == "Qwen3MoeForCausalLM":
        return [True] * layers
    first = fields.size("max_window_layers", 28, lowest=0) if switched else 0
    return [i >= first for i in range(layers)]
