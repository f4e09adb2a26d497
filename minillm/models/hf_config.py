"""Builds a `ModelSpec` from a Hugging Face ``config.json``; whatever it does not know is an error.

Absent fields take the defaults of the transformers library (5.x, ``configuration_*.py`` of each
model), since a file that transformers wrote leaves defaults out. Sizes have no default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from minillm.models.spec import MAX_LAYERS, ModelSpec, Rope, SpecError
from minillm.ops import Activation

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
    "repetition_penalty", "finetuning_task", "task_specific_params", "tokenizer_class", "use_bfloat16",
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
    "Gemma2ForCausalLM": {
        "hidden_activation": "gelu_pytorch_tanh",
        "num_key_value_heads": 4,
        "head_dim": 256,
        "attention_bias": False,
        "sliding_window": 4096,
        "layer_types": None,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": None,
        "tie_word_embeddings": True,
    },
}
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
    heads, hidden, layers = (fields.size(n) for n in ("num_attention_heads", "hidden_size", "num_hidden_layers"))
    if layers > MAX_LAYERS:
        raise SpecError(f"config.json: num_hidden_layers is {layers:,}, the limit is {MAX_LAYERS:,}")
    gemma = architecture == "Gemma2ForCausalLM"
    qwen = architecture in ("Qwen2ForCausalLM", "Qwen3ForCausalLM")
    attention_bias = fields.flag("attention_bias")
    fields.demand("rope_interleaved", False)
    if gemma:
        fields.demand("use_bidirectional_attention", None, False)
    return ModelSpec(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=fields.size("head_dim", hidden // heads),
        intermediate=fields.size("intermediate_size"),
        max_positions=fields.size("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps"),
        rope=_rope(fields),
        windows=_windows(fields, layers, alternating=gemma, switched=qwen),
        tied_head=fields.flag("tie_word_embeddings"),
        qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        output_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias"),
        qk_norm=architecture == "Qwen3ForCausalLM",
        activation=_activation(fields, "hidden_activation" if gemma else "hidden_act"),
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5 if gemma else None,
        attention_cap=fields.optional_number("attn_logit_softcapping") if gemma else None,
        logit_cap=fields.optional_number("final_logit_softcapping") if gemma else None,
        norm_offset=1.0 if gemma else 0.0,
        embedding_scale=math.sqrt(hidden) if gemma else 1.0,
        post_norms=gemma,
    )


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in list(_DEFAULTS):
        raise SpecError(f"config.json: architectures is {names!r}, this engine runs one of {', '.join(_DEFAULTS)}")
    return str(names[0])


class _Fields:
    """Typed access to a config with defaults; refuses fields that could change the maths unseen."""

    def __init__(self, architecture: str, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.config, self.defaults = config, defaults
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


def _windows(fields: _Fields, layers: int, *, alternating: bool, switched: bool) -> tuple[int | None, ...]:
    """One window a layer. ``switched``: Qwen's ``use_sliding_window``; ``alternating``: Gemma 2's default."""
    window = fields.get("sliding_window")
    if switched and not fields.flag("use_sliding_window"):
        window = None
    if window is not None:
        window = fields.size("sliding_window")
    kinds = fields.get("layer_types")
    if kinds is None:
        first = fields.size("max_window_layers", 28, lowest=0) if switched else 0
        kinds = [
            "sliding_attention" if (i % 2 == 0 if alternating else i >= first) else "full_attention"
            for i in range(layers)
        ]
    elif not isinstance(kinds, list) or len(kinds) != layers:
        raise SpecError(f"config.json: layer_types is {kinds!r}, a list of {layers} entries is needed")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise SpecError(f"config.json: layer_types has {kind!r}, this engine has full and sliding attention")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope(fields: _Fields) -> Rope:
    """From ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
    given = fields.get("rope_parameters")
    old = fields.get("rope_scaling")
    if given is not None and old is not None and given != old:
        raise SpecError(f"config.json: rope_parameters {given!r} and rope_scaling {old!r} contradict each other")
    table = given if given is not None else old if old is not None else {}
    if not isinstance(table, dict):
        raise SpecError(f"config.json: rope_parameters is {table!r}, an object is needed")
    outer_theta = fields.get("rope_theta")
    theta = table.get("rope_theta", 10000.0 if outer_theta is None else outer_theta)
    kind = table.get("rope_type", table.get("type", "default"))
    partial = table.get("partial_rotary_factor", fields.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise SpecError(f"config.json: partial_rotary_factor is {partial!r}, this engine rotates whole heads")
    needed = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }
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
    allowed = {"rope_theta", "rope_type", "type", "partial_rotary_factor", *needed[kind]}
    for name, value in table.items():
        if name not in allowed and value is not None and kind != "default":
            raise SpecError(f"config.json: rope type {kind!r} has the unknown field {name} = {value!r}")
    return Rope(
        theta=numbers["rope_theta"],
        scaling=cast(Any, {"default": "none"}.get(kind, kind)),
        factor=numbers.get("factor", 1.0),
        low_freq_factor=numbers.get("low_freq_factor", 1.0),
        high_freq_factor=numbers.get("high_freq_factor", 4.0),
        original_max_positions=int(numbers.get("original_max_position_embeddings", 0)),
    )
