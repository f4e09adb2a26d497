"""Builds a `ModelSpec` from a Hugging Face ``config.json``; whatever it does not know is an error.

Absent fields take the defaults of the transformers library (5.x, ``configuration_*.py`` of each
model), since a file that transformers wrote leaves defaults out. Sizes have no default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

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

# Fields that do not change what the decoder computes: bookkeeping, training, text generation.
# fmt: off
_HARMLESS = frozenset({
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache",
    "initializer_range", "attention_dropout", "hidden_dropout", "bos_token_id", "eos_token_id", "pad_token_id",
    "pretraining_tp", "auto_map", "id2label", "label2id", "num_labels", "problem_type", "output_hidden_states",
    "output_attentions", "return_dict", "is_encoder_decoder", "is_decoder", "torchscript",
    "tie_last_hidden_states", "chunk_size_feed_forward", "quantization_config", "cache_implementation",
    "is_llama_config", "transformers.js_config", "unsloth_version", "unsloth_fixed", "mlp_dropout", "resid_pdrop",
    "name_or_path", "max_length", "min_length", "do_sample", "temperature", "top_k", "top_p",
    "aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers",
    "repetition_penalty", "router_aux_loss_coef", "output_router_logits", "router_jitter_noise", "finetuning_task",
    "task_specific_params", "tokenizer_class", "use_bfloat16",
    "tf_legacy_loss", "keys_to_ignore_at_inference", "hidden_act", "max_window_layers",
})
# fmt: on

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
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def spec_from_hf_config(config: Mapping[str, Any]) -> ModelSpec:
    """The spec of a parsed ``config.json``. Raises `SpecError` for anything this engine would get wrong."""
    architecture = _architecture(config)
    fields = _Fields(architecture, config, {**_COMMON, **_DEFAULTS[architecture]})
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


def _mixers(fields: _Fields, layers: int) -> Sequence[Mixer]:
    """The mixer of each layer."""
    if fields.architecture in _DEEPSEEKS:
        return [_latent_attention(fields)] * layers
    return _attention(fields, layers)


def _latent_attention(fields: _Fields) -> LatentAttention:
    fields.demand("attention_bias", False)
    heads, rope_dim = fields.size("num_attention_heads"), fields.size("qk_rope_head_dim")
    if fields.get("num_key_value_heads") not in (None, heads):
        raise SpecError(
            f"config.json: num_key_value_heads is {fields.get('num_key_value_heads')!r}, latent attention has one for "
            f"each of the {heads} heads"
        )
    rope, table = _rope(fields, rope_dim, is_windowed=False), _rope_table(fields)
    # Beside the amplitude of cosines and sines, these models scale all scores for the stretched context.
    stretch = _real(table.get("mscale_all_dim")) or 0.0 if rope.scaling != "none" else 0.0
    return LatentAttention(
        heads=heads,
        q_rank=None if fields.get("q_lora_rank") is None else fields.size("q_lora_rank"),
        kv_rank=fields.size("kv_lora_rank"),
        nope_dim=fields.size("qk_nope_head_dim"),
        value_dim=fields.size("v_head_dim"),
        rope=rope,
        scale_factor=_stretched(rope.factor, stretch) ** 2,
    )


def _attention(fields: _Fields, layers: int) -> list[Attention]:
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
    ropes = {window: _rope(fields, head_dim, is_windowed=window is not None) for window in dict.fromkeys(windows)}
    return [replace(every, rope=ropes[window], window=window) for window in windows]


def _feed_forward(fields: _Fields, layers: int) -> list[FeedForward]:
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
        first = fields.size("first_k_dense_replace", lowest=0)
        return [dense if i < first else _deepseek_experts(fields, activation) for i in range(layers)]
    return [dense] * layers


def _deepseek_experts(fields: _Fields, activation: Activation) -> Experts:
    is_third = fields.architecture == "DeepseekV3ForCausalLM"
    fields.demand("scoring_func", "sigmoid" if is_third else "softmax")
    fields.demand("topk_method", *(["noaux_tc"] if is_third else ["greedy", "group_limited_greedy"]))
    count = fields.size("n_routed_experts", fields.get("num_local_experts"))
    by_group = fields.get("topk_method") != "greedy"
    routing = Routing(
        count,
        fields.size("num_experts_per_tok"),
        # transformers does not read the field of the second generation.
        renormalize=is_third and fields.flag("norm_topk_prob"),
        scale=fields.number("routed_scaling_factor"),
        scoring="sigmoid" if is_third else "softmax",
        groups=fields.size("n_group") if by_group else 1,
        top_groups=fields.size("topk_group") if by_group else 1,
        group_best=2 if is_third else 1,
    )
    if not is_third and fields.flag("norm_topk_prob"):
        raise SpecError("config.json: norm_topk_prob is true, DeepseekV2ForCausalLM is known with false alone")
    inner = fields.size("moe_intermediate_size")
    shared = 0 if fields.get("n_shared_experts") is None else fields.size("n_shared_experts", lowest=0)
    return Experts(routing, inner, inner * shared, activation, correction=is_third)


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in list(_DEFAULTS):
        raise SpecError(f"config.json: architectures is {names!r}, this engine runs one of {', '.join(_DEFAULTS)}")
    return str(names[0])


class _Fields:
    """Typed access to a config with defaults; refuses fields that could change the maths unseen."""

    def __init__(self, architecture: str, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.architecture, self.config, self.defaults = architecture, config, defaults
        known = {*_SIZES, *defaults}
        for name, value in config.items():
            # An unknown switch that is off changes nothing; one that is on, or a number, may.
            if name in known or name in _HARMLESS or name.startswith("_") or value in (None, False, [], {}):
                continue
            raise SpecError(
                f"config.json: {architecture} has the field {name} = {value!r}, which this engine does not know "
                "and will not ignore"
            )

    def get(self, name: str, default: object = None) -> Any:
        return self.config.get(name, self.defaults.get(name, default))

    def size(self, name: str, fallback: int | None = None, lowest: int = 1) -> int:
        value = self.get(name)
        value = fallback if value is None else value
        if type(value) is not int or not lowest <= value < 2**31:
            raise SpecError(f"config.json: {name} is {value!r}, a whole number from {lowest} to 2**31 - 1 is needed")
        return value

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value not in (None, True, False):
            raise SpecError(f"config.json: {name} is {value!r}, true or false is needed")
        return bool(value)

    def number(self, name: str) -> float:
        value = _real(self.get(name))
        if value is None or value <= 0:
            raise SpecError(f"config.json: {name} is {self.get(name)!r}, a finite number above 0 is needed")
        return value

    def indices(self, name: str, limit: int) -> frozenset[int]:
        """A list of layers; none where the field is missing."""
        value = self.get(name) or []
        if not isinstance(value, list) or not all(type(i) is int and 0 <= i < limit for i in value):
            raise SpecError(f"config.json: {name} is {value!r}, a list of layers from 0 to {limit - 1} is needed")
        return frozenset(value)

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def demand(self, name: str, *allowed: object) -> None:
        if self.get(name) not in allowed:
            raise SpecError(f"config.json: {name} is {self.get(name)!r}, this engine has only {allowed[0]!r}")


def _real(value: object) -> float | None:
    """``value`` as a finite float, or None; JSON has integers that no float can hold, and NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e30 < value < 1e30:
        return None
    return float(value)


def _activation(fields: _Fields, name: str) -> Activation:
    value = fields.get(name)
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise SpecError(f"config.json: {name} is {value!r}, this engine has {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[value]


def _windows(fields: _Fields, layers: int) -> tuple[int | None, ...]:
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


def _slides(fields: _Fields, layers: int, switched: bool) -> list[bool]:
    """Which layers have the window, where a file does not say it for each."""
    if fields.architecture in _GEMMAS:  # Gemma 2 has full attention in every second layer, Gemma 3 in every sixth
        period = fields.size("sliding_window_pattern", 2)
        return [(i + 1) % period != 0 for i in range(layers)]
    if fields.architecture == "Qwen3MoeForCausalLM":
        return [True] * layers
    first = fields.size("max_window_layers", 28, lowest=0) if switched else 0
    return [i >= first for i in range(layers)]


def _rope_table(fields: _Fields) -> Mapping[str, Any]:
    """``rope_parameters``, or what older files have in its place."""
    given = fields.get("rope_parameters")
    old = fields.get("rope_scaling")
    if given is not None and old is not None and given != old:
        raise SpecError(f"config.json: rope_parameters {given!r} and rope_scaling {old!r} contradict each other")
    table = given if given is not None else old if old is not None else {}
    if not isinstance(table, dict):
        raise SpecError(f"config.json: rope_parameters is {table!r}, an object is needed")
    return table


def _stretched(factor: float, weight: float) -> float:
    """How much larger than without it scores get where a context is stretched by ``factor`` (YaRN, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _rope(fields: _Fields, dim: int, *, is_windowed: bool) -> Rope:
    """From ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
    table = _rope_table(fields)
    outer_theta = fields.get("rope_theta")
    if fields.architecture == "Gemma3ForCausalLM":  # layers with a window turn faster, and have no scaling
        layer_type = "sliding_attention" if is_windowed else "full_attention"
        if "sliding_attention" in table or "full_attention" in table:
            own = table.get(layer_type)
            if not isinstance(own, dict):
                raise SpecError(f"config.json: rope_parameters has {own!r} for {layer_type}, an object is needed")
            table = own
        elif is_windowed:
            table, outer_theta = {}, fields.get("rope_local_base_freq")
    theta = table.get("rope_theta", 10000.0 if outer_theta is None else outer_theta)
    kind = table.get("rope_type", table.get("type", "default"))
    partial = table.get("partial_rotary_factor", fields.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise SpecError(f"config.json: partial_rotary_factor is {partial!r}, this engine rotates whole heads")
    needed = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        "yarn": ("factor", "original_max_position_embeddings"),
    }
    optional = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate")
    if not isinstance(kind, str) or kind not in needed:
        raise SpecError(f"config.json: rope type is {kind!r}, this engine has {', '.join(needed)}")
    given_numbers = {"rope_theta": theta}
    for name in needed[kind]:
        # transformers falls back to max_position_embeddings for the original length only.
        fallback = fields.get("max_position_embeddings") if name == "original_max_position_embeddings" else None
        given_numbers[name] = table.get(name, fallback)
    numbers = {}
    for name, value in given_numbers.items():
        number = _real(value)
        if number is None:
            raise SpecError(f"config.json: rope {name} is {value!r} for rope type {kind!r}, a number is needed")
        numbers[name] = number
    more = optional if kind == "yarn" else ()
    allowed = {"rope_theta", "rope_type", "type", "partial_rotary_factor", *needed[kind], *more}
    for name, value in table.items():
        if name not in allowed and value is not None and kind != "default":
            raise SpecError(f"config.json: rope type {kind!r} has the unknown field {name} = {value!r}")
    if kind == "yarn":
        return _yarn(dim, numbers, table)
    return Rope(
        dim,
        theta=numbers["rope_theta"],
        scaling=cast(Any, {"default": "none"}.get(kind, kind)),
        factor=numbers.get("factor", 1.0),
        low_freq_factor=numbers.get("low_freq_factor", 1.0),
        high_freq_factor=numbers.get("high_freq_factor", 4.0),
        original_max_positions=int(numbers.get("original_max_position_embeddings", 0)),
    )


def _yarn(dim: int, numbers: Mapping[str, float], table: Mapping[str, Any]) -> Rope:
    """The defaults and the amplitude are those of transformers; a weight that is 0 counts as none."""
    names = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
    given = {name: table.get(name) for name in names}
    found = {name: _real(value) for name, value in given.items()}
    for name, value in given.items():
        if value is not None and found[name] is None:
            raise SpecError(f"config.json: rope {name} is {value!r} for rope type 'yarn', a number is needed")
    factor, amplitude = numbers["factor"], found["attention_factor"]
    if amplitude is None:
        own, of_all = found["mscale"], found["mscale_all_dim"]
        amplitude = _stretched(factor, own) / _stretched(factor, of_all) if own and of_all else _stretched(factor, 1)
    truncate = table.get("truncate", True)
    if not isinstance(truncate, bool):
        raise SpecError(f"config.json: rope truncate is {truncate!r}, true or false is needed")
    return Rope(
        dim,
        numbers["rope_theta"],
        "yarn",
        factor=factor,
        beta_fast=found["beta_fast"] or 32.0,
        beta_slow=found["beta_slow"] or 1.0,
        truncate=truncate,
        amplitude=amplitude,
        original_max_positions=int(numbers["original_max_position_embeddings"]),
    )
