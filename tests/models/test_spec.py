"""Specs from config.json and GGUF metadata: what is read, what is refused, and never another exception."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import LLAMA

from minillm.loaders.files import LoadError
from minillm.models.gguf_config import spec_from_gguf
from minillm.models.hf_config import spec_from_hf_config
from minillm.models.load import load_model
from minillm.models.rope import inverse_frequencies
from minillm.models.spec import Rope, SpecError

# As published with the checkpoint, 2024-07 (meta-llama/Llama-3.1-8B).
LLAMA_31_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}


def test_llama_31_8b() -> None:
    spec = spec_from_hf_config(LLAMA_31_8B)
    attention = spec.layers[0].mixer
    assert (attention.head_dim, attention.kv_heads, spec.tied_head) == (128, 8, False)
    assert spec.ropes == (Rope(128, 500000.0, "llama3", 8.0, 1.0, 4.0, original_max_positions=8192),)
    assert spec.kv_elements_per_token * 2 == 131072  # bytes in bfloat16, a figure of the book


def test_the_new_and_the_old_spelling_of_rope_are_one() -> None:
    old = spec_from_hf_config(LLAMA_31_8B)
    new = {k: v for k, v in LLAMA_31_8B.items() if not k.startswith("rope")}
    new["rope_parameters"] = {**LLAMA_31_8B["rope_scaling"], "rope_theta": 500000.0}
    assert spec_from_hf_config(new) == old


def test_explicit_head_dim_wins() -> None:
    assert spec_from_hf_config({**LLAMA, "head_dim": 10}).layers[0].mixer.head_dim == 10
    assert spec_from_hf_config({**LLAMA, "head_dim": None}).layers[0].mixer.head_dim == 48 // 6


def test_windows_of_each_family() -> None:
    base = {**LLAMA, "num_hidden_layers": 3}
    base.pop("head_dim")
    mistral = {**base, "architectures": ["MistralForCausalLM"]}
    assert spec_from_hf_config(mistral).windows == (4096,) * 3  # transformers' default
    assert spec_from_hf_config({**mistral, "sliding_window": None}).windows == (None,) * 3
    qwen = {**base, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 9}
    assert spec_from_hf_config(qwen).windows == (None,) * 3
    qwen |= {"use_sliding_window": True, "max_window_layers": 2}
    assert spec_from_hf_config(qwen).windows == (None, None, 9)
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    assert spec_from_hf_config({**qwen, "layer_types": types}).windows == (9, None, 9)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["MambaForCausalLM"]}, r"architectures is \['MambaForCausalLM'\], .* LlamaForCausalLM, Mistral"),
    ({"architectures": None}, "architectures is None"),
    ({"architectures": [["x"]]}, "architectures is"),
    ({"hidden_act": "relu"}, "hidden_act is 'relu', this engine has silu"),
    ({"hidden_act": ["silu"]}, "hidden_act is"),
    (
        {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
        "rope type is 'dynamic', this engine has default",
    ),
    (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": "x"}},
        "rope beta_fast is 'x'",
    ),
    (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.0, "beta_slow": 2.0}},
        "fast must be above slow",
    ),
    ({"rope_scaling": {"type": "linear"}}, "rope factor is None for rope type 'linear'"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}}, "unknown field mrope_section"),
    ({"rope_scaling": {"type": "linear", "factor": -2.0}}, "rope factor is -2.0"),
    ({"rope_scaling": "linear"}, "rope_parameters is 'linear'"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ({"rope_interleaved": True}, "rope_interleaved is True"),
    ({"num_experts": 8}, "field num_experts = 8, which this engine does not know"),
    ({"residual_multiplier": 0.22}, "residual_multiplier = 0.22"),
    ({"sliding_window": 100}, "LlamaForCausalLM has the field sliding_window = 100"),
    ({"hidden_size": None}, "hidden_size is None"),
    ({"hidden_size": "48"}, "hidden_size is '48'"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000, the limit is 4,096"),
    ({"num_key_value_heads": 4}, "6 query heads do not share 4 KV heads"),
    ({"head_dim": 9}, "head_dim is 9"),
    ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'"),
    ({"rope_theta": 10**400}, "rope rope_theta"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_would_change_the_maths_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_from_hf_config({**LLAMA, **change})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [*LLAMA, "rope_scaling", "rope_parameters", "rope_theta", "layer_types", "sliding_window", "attention_bias"]
FAMILIES = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM"]


@settings(max_examples=300, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    change=st.dictionaries(
        st.sampled_from([*FIELDS, "use_sliding_window", "max_window_layers", "hidden_activation"]), JSON, max_size=4
    ),
)
def test_any_config_gives_a_spec_or_a_spec_error(family: str, change: dict[str, Any]) -> None:
    try:
        spec = spec_from_hf_config({**LLAMA, "architectures": [family], **change})
    except SpecError:
        return
    assert np.isfinite(inverse_frequencies(spec.ropes[0])).all()


GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 48,
    "llama.feed_forward_length": 80,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 8,
    "llama.vocab_size": 97,
    "tokenizer.ggml.model": "gpt2",
}


def test_gguf_metadata() -> None:
    spec = spec_from_gguf(GGUF, {"output.weight", "blk.0.attn_q.bias"}, (97, 48))
    attention = spec.layers[0].mixer
    assert (attention.head_dim, attention.kv_heads, spec.tied_head, attention.qkv_bias) == (8, 2, False, True)
    assert spec.ropes == (Rope(8, 10000.0),)
    scaled = {**GGUF, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert spec_from_gguf(scaled, set(), (97, 48)).ropes == (Rope(8, 10000.0, "linear", 4.0),)
    assert spec_from_gguf(GGUF, set(), (97, 48)).tied_head


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "mamba"}, "general.architecture is 'mamba', .* llama, qwen2, qwen3"),
        ({"general.architecture": ["llama"]}, "general.architecture is"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type is 'yarn'"),
        ({"llama.expert_count": 8}, "llama.expert_count = 8, which this engine does not know"),
        ({"llama.attention.sliding_window": 8}, "llama.attention.sliding_window = 8"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count is 4, this engine needs it to be 8"),
        ({"llama.attention.value_length": 16}, "value_length is 16"),
        ({"llama.attention.causal": False}, "causal"),
        ({"llama.attention.head_count_kv": [2, 1]}, r"head_count_kv is \[2, 1\]"),
        ({"llama.block_count": 2**32 - 1}, "block_count is 4,294,967,295"),
        ({"llama.vocab_size": 98}, "vocab_size is 98, token_embd has 97 rows"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "epsilon is None"),
    ],
)
def test_gguf_metadata_that_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_from_gguf({**GGUF, **change}, set(), (97, 48))


def test_a_refusal_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "hidden_act": "relu"}))
    with pytest.raises(LoadError, match=f"{tmp_path}: config.json: hidden_act is 'relu'"):
        load_model(tmp_path)
    with pytest.raises(LoadError, match="there is no such file"):
        load_model(tmp_path / "nothing")
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(LoadError, match=r"a directory with config.json and safetensors, or a .gguf file"):
        load_model(tmp_path / "model.bin")
