"""Canonical weights: names, shapes and scales are checked before a value is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from random_models import random_model, write_model
from safetensors.numpy import load_file, save_file

from minillm.loaders.files import LoadError
from minillm.models.load import load_model
from minillm.models.weights import expected_shapes, source_name

Tensors = dict[str, NDArray[Any]]
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
        }
    },
}


def edited(directory: Path, edit: Callable[[Tensors], None], **config: Any) -> Path:
    """A written model whose tensors went through ``edit``."""
    write_model(directory, **config)
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")
    return directory


def quantize(tensors: Tensors) -> None:
    """Every matrix to int8 with one scale a row, as the bundled models are stored."""
    for name in [n for n, t in tensors.items() if t.ndim == 2]:
        scale = np.abs(tensors[name]).max(axis=1, keepdims=True) / 127
        tensors[name + "_scale"] = scale.astype(np.float32)
        tensors[name] = np.rint(tensors[name] / scale).astype(np.int8)


def test_int8_is_integer_times_the_scale_of_its_row(tmp_path: Path) -> None:
    plain = random_model(tmp_path / "plain")
    model = load_model(edited(tmp_path / "int8", quantize, quantization_config=INT8))
    stored = load_file(tmp_path / "int8" / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    found = model.weights.read("layers.1.down")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, stored[name].astype(np.float32) * stored[name + "_scale"])
    # Half a step of the row's scale, and nothing more, was lost.
    assert (np.abs(found - plain.weights.read("layers.1.down")) <= stored[name + "_scale"] * 0.5001).all()


def drop(*names: str) -> Callable[[Tensors], None]:
    return lambda tensors: [tensors.pop(n) for n in names] and None


def put(name: str, value: NDArray[Any]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: value})


def both(*edits: Callable[[Tensors], None]) -> Callable[[Tensors], None]:
    return lambda tensors: [edit(tensors) for edit in edits] and None


Q = "model.layers.0.self_attn.q_proj.weight"
WRONG: dict[str, tuple[Callable[[Tensors], None], dict[str, Any], str]] = {
    "missing": (drop(Q), {}, f"1 of 20 tensors of LlamaForCausalLM are missing: {Q}"),
    "left over": (put("model.layers.2.x", np.ones(1, np.float32)), {}, "1 tensors do not belong .* model.layers.2.x"),
    "shape": (put(Q, np.ones((59, 48), np.float32)), {}, r"q_proj.weight' is \[59, 48\], .* needs \[60, 48\]"),
    "tied head differs": (put("lm_head.weight", np.ones((97, 48), np.float32)), {}, "tied to the embedding, but"),
    "int8 unannounced": (quantize, {}, "is I8 and config.json has no quantization_config"),
    "scale missing": (both(quantize, drop(Q + "_scale")), {"quantization_config": INT8}, "its scales .* are missing"),
    "scale of another shape": (
        both(quantize, put(Q + "_scale", np.ones((1, 60), np.float32))),
        {"quantization_config": INT8},
        r"weight_scale' is \[1, 60\], .* needs \[60, 1\]",
    ),
    "scale is int8": (
        both(quantize, put(Q + "_scale", np.ones((60, 1), np.int8))),
        {"quantization_config": INT8},
        "is I8, scales are floating point",
    ),
    "another scheme": (drop(), {"quantization_config": {"quant_method": "gptq"}}, "quantization is 'gptq'"),
    "another width": (
        quantize,
        {"quantization_config": json.loads(json.dumps(INT8).replace("8", "4"))},
        "weights.num_bits = 4, this reader has 8",
    ),
    "activations too": (
        quantize,
        {
            "quantization_config": {
                **INT8,
                "config_groups": {"g": {**INT8["config_groups"]["group_0"], "input_activations": {}}},  # type: ignore[index]
            }
        },
        "quantizes activations",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_named(case: str, tmp_path: Path) -> None:
    edit, config, message = WRONG[case]
    directory = edited(tmp_path / "model", edit, **config)
    with pytest.raises(LoadError, match=message) as caught:
        load_model(directory)
    assert str(directory) in str(caught.value)


def test_a_config_of_another_size_is_named(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "vocab_size": 98}))
    with pytest.raises(LoadError, match=r"embed_tokens.weight' is \[97, 48\], .* needs \[98, 48\]"):
        load_model(directory)


@pytest.mark.parametrize(
    "edit",
    [
        put("model.layers.0.self_attn.rotary_emb.inv_freq", np.ones(5, np.float32)),
        lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].copy()}),
    ],
)
def test_copies_and_derived_buffers_are_no_surprise(edit: Callable[[Tensors], None], tmp_path: Path) -> None:
    model = load_model(edited(tmp_path / "model", edit))
    assert set(model.weights) == set(expected_shapes(model.spec))


def test_gguf_llama_rows_come_back_in_halves(tmp_path: Path) -> None:
    """A GGUF file written as llama.cpp's converter does (its permutation, spelled out) reads as the original."""
    model = random_model(tmp_path / "hf", head_dim=8)
    spec = model.spec
    attention = spec.layers[0].mixer
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.max_positions)
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(spec.layers[0].ffn.intermediate)
    writer.add_head_count(attention.heads)
    writer.add_head_count_kv(attention.kv_heads)
    writer.add_key_length(attention.head_dim)
    writer.add_value_length(attention.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    for name in model.weights:
        values = model.weights.read(name)
        if name.endswith((".q", ".k")):
            permuted = np.empty_like(values)
            for head in range(len(values) // 8):
                for i in range(4):
                    permuted[head * 8 + 2 * i] = values[head * 8 + i]
                    permuted[head * 8 + 2 * i + 1] = values[head * 8 + i + 4]
            values = permuted
        writer.add_tensor(source_name(name, spec, "gguf"), values)
    writer.add_tensor("rope_freqs.weight", np.array([1, 1, 2, 4], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = load_model(tmp_path / "model.gguf")
    for name in model.weights:
        np.testing.assert_array_equal(read.weights.read(name), model.weights.read(name))
    assert [(rope.scaling, rope.divisors) for rope in read.spec.ropes] == [("divisors", (1, 1, 2, 4))]
    assert read.spec.tied_head
