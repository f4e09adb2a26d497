"""Small models with random weights for tests: written by our side of the format, or by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from minillm.models.hf_config import spec_from_hf_config
from minillm.models.load import LoadedModel, load_model
from minillm.models.weights import expected_shapes, source_name

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def write_model(directory: Path, seed: int = 0, **config: Any) -> Path:
    """A Llama-like checkpoint in ``directory``; ``config`` overrides fields of ``LLAMA``."""
    merged = {**LLAMA, **config}
    spec = spec_from_hf_config(merged)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(merged))
    rng = np.random.default_rng(seed)
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, shape in expected_shapes(spec).items():
        values = rng.normal(1.0 if "norm" in name else 0.0, 0.2, shape)
        tensors[source_name(name, spec, "huggingface")] = values.astype(np.float32)
    save_file(tensors, directory / "model.safetensors")
    return directory


def random_model(directory: Path, seed: int = 0, **config: Any) -> LoadedModel:
    """``write_model``, opened."""
    return load_model(write_model(directory, seed, **config))


def transformers_model(directory: Path, architecture: str, **config: Any) -> Any:
    """A random model of transformers' own class, saved by it in ``directory``; returned for reference."""
    import torch
    import transformers

    torch.manual_seed(0)
    config_name = {"Gemma3ForCausalLM": "Gemma3TextConfig"}.get(architecture)
    config_class = getattr(transformers, config_name or architecture.replace("ForCausalLM", "Config"))
    model = getattr(transformers, architecture)(config_class(**config)).eval()
    # Larger than the initial weights, and biases that are not 0, so that every term shows.
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3 if parameter.dim() == 1 else 0.15)
    model.set_attn_implementation("eager")
    model.save_pretrained(directory)
    return model
