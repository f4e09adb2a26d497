"""The decoder against transformers' own classes, on random weights that transformers wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kinds_of_layers import KINDS, LATENT, SIZES
from random_models import transformers_model

from minillm.backends import create_backend
from minillm.backends.plans import Chunk, plan_of
from minillm.models.load import LoadedModel, load_model

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-tied-odd-head": ("LlamaForCausalLM", {"head_dim": 10, "tie_word_embeddings": True}),
    "llama-biases-llama3-rope": (
        "LlamaForCausalLM",
        {"attention_bias": True, "mlp_bias": True, "rope_scaling": LLAMA3_ROPE},
    ),
    "llama-mha-linear-rope": (
        "LlamaForCausalLM",
        {"num_key_value_heads": 6, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    "mistral-window": ("MistralForCausalLM", {"sliding_window": 7, "num_key_value_heads": 1}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-some-windows": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 12}),
    "qwen3-moe-every-second": (
        "Qwen3MoeForCausalLM",
        {"head_dim": 12, "num_experts": 4, "num_experts_per_tok": 1, "decoder_sparse_step": 2},
    ),
    "llama-yarn": (
        "LlamaForCausalLM",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    ),
    "deepseek-v2-groups-yarn": (
        "DeepseekV2ForCausalLM",
        {
            **LATENT,
            "q_lora_rank": 14,
            "n_routed_experts": 6,
            "topk_method": "group_limited_greedy",
            "n_group": 3,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "mscale": 0.707,
                "mscale_all_dim": 0.9,
            },
        },
    ),
    "gemma2": ("Gemma2ForCausalLM", {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 10}),
    **KINDS,
}
TOKENS = 24
# Scrambled on purpose: no two blocks follow each other, so every read goes through the table.
BLOCKS = [5, 3, 8, 2, 10, 1, 12, 7, 4]
BLOCK_SIZE = 3


@pytest.fixture(scope="module", params=CASES)
def oracle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedModel, list[int], Any]:
    """(our model, a prompt, transformers' float32 logits for each of its positions)."""
    architecture, extra = CASES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    reference = transformers_model(directory, architecture, **{**SIZES, **extra})
    ids = torch.randint(0, SIZES["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits = reference(ids).logits[0].numpy()
    return load_model(directory), ids[0].tolist(), logits


def logits_in_chunks(model: LoadedModel, ids: list[int], chunk: int, **options: Any) -> Any:
    """Logits after each chunk of ``chunk`` tokens, K/V of the earlier ones read from the cache."""
    backend: Any = create_backend(model, debug_poison=True, **options)
    backend.load(block_size=BLOCK_SIZE, num_blocks=14)
    ends = [*range(chunk, len(ids), chunk), len(ids)]
    starts = [0, *ends[:-1]]
    plans = [plan_of([Chunk(ids, BLOCKS, a, b)], BLOCK_SIZE) for a, b in zip(starts, ends, strict=True)]
    return ends, np.array([backend.logits(plan)[0] for plan in plans])


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("chunk", [1, 2, 7, TOKENS])
def test_logits_equal_transformers_whatever_the_chunk(oracle: Any, backend: str, chunk: int) -> None:
    model, ids, expected = oracle
    ends, found = logits_in_chunks(model, ids, chunk, backend=backend, dtype="float32", device="cpu")
    wanted = expected[np.array(ends) - 1]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_backends_agree_in_float64(oracle: Any) -> None:
    model, ids, _ = oracle
    _, by_numpy = logits_in_chunks(model, ids, 5, backend="numpy", dtype="float64")
    _, by_torch = logits_in_chunks(model, ids, 5, backend="torch", dtype="float64", device="cpu")
    np.testing.assert_allclose(by_numpy, by_torch, rtol=1e-9, atol=1e-11)


def test_bfloat16_is_near(oracle: Any) -> None:
    """bfloat16 has 8 bits: errors of some 2 % of the largest logit, over three layers."""
    model, ids, expected = oracle
    _, found = logits_in_chunks(model, ids, 5, backend="torch", dtype="bfloat16", device="cpu")
    error = np.abs(found[-1] - expected[-1])
    assert error.max() < 0.06 * np.abs(expected[-1]).max()


def test_a_written_checkpoint_reads_back_as_it_was(oracle: Any, tmp_path: Path) -> None:
    model, _, _ = oracle
    from safetensors.numpy import load_file

    stored = load_file(model.path / "model.safetensors")
    np.testing.assert_array_equal(model.weights.read("embed"), stored["model.embed_tokens.weight"])
    assert model.weights.parameters == sum(t.size for t in stored.values())
