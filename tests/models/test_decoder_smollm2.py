"""A real checkpoint, SmolLM2-135M-Instruct: both backends against transformers on the same GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from minillm.backends import create_backend
from minillm.backends.plans import Chunk, plan_of
from minillm.config import Locations
from minillm.models.load import LoadedModel, load_model

PROMPT = "The capital of France is"
NEW_TOKENS = 16

pytestmark = pytest.mark.slow  # about half a minute


@pytest.fixture(scope="module")
def path() -> Path:
    found = sorted((Locations().cache / "smollm2").glob("*.gguf"))
    if not found:
        pytest.skip("smollm2 is not in the cache: run `minillm pull smollm2`")
    return found[0]


def transformers_from_gguf(path: Path, model: LoadedModel) -> Any:
    """transformers' LlamaForCausalLM, filled by the reference reader and its dequantization.

    transformers can open GGUF files itself, with the package accelerate; tried with 5.24, it gives
    the same logits as this.
    """
    spec = model.spec
    attention = spec.layers[0].mixer
    reference = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=spec.vocab_size,
            hidden_size=spec.hidden,
            intermediate_size=spec.layers[0].ffn.intermediate,
            num_hidden_layers=spec.num_layers,
            num_attention_heads=attention.heads,
            num_key_value_heads=attention.kv_heads,
            max_position_embeddings=spec.max_positions,
            rms_norm_eps=spec.norm_eps,
            rope_theta=attention.rope.theta,
            tie_word_embeddings=True,
        )
    ).eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, spec.num_layers)
    stored = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            values = torch.from_numpy(stored[names.get_name(name, try_suffixes=(".weight",))].astype(np.float32))
            if ".q_proj." in name or ".k_proj." in name:  # the inverse of the converter's permutation
                values = values.view(-1, attention.head_dim // 2, 2, spec.hidden).transpose(1, 2).reshape(values.shape)
            parameter.copy_(values.view(parameter.shape))
    return reference


def greedy(model: LoadedModel, backend_name: str, ids: list[int]) -> tuple[list[int], Any]:
    """(new ids, the first step's logits), the prompt in chunks of 2 tokens."""
    backend: Any = create_backend(model, backend_name, dtype="float32", device="cpu")
    backend.load(block_size=16, num_blocks=16)
    blocks = [3, 9]
    backend.run(plan_of([Chunk(ids, blocks, 0, 2, params=None)], 16))
    computed, known = 2, list(ids)
    first = backend.logits(plan_of([Chunk(ids, blocks, 2)], 16))[0]
    for _ in range(NEW_TOKENS):
        known += backend.run(plan_of([Chunk(known, blocks, computed)], 16)).token_ids
        computed = len(known) - 1
    backend.close()
    return known[len(ids) :], first


def test_both_backends_go_on_as_transformers_does(path: Path) -> None:
    model = load_model(path)
    tokenizer = model.tokenizer()
    ids = tokenizer.encode(PROMPT)
    reference = transformers_from_gguf(path, model)
    prompt = torch.tensor([ids])
    with torch.inference_mode():
        wanted_logits = reference(prompt).logits[0, -1].numpy()
        wanted = reference.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False)[0, len(ids) :].tolist()
    for name in ("numpy", "torch"):
        found, logits = greedy(model, name, ids)
        assert found == wanted, name
        np.testing.assert_allclose(logits, wanted_logits, atol=1e-5 * np.abs(wanted_logits).max())
    assert "Paris" in tokenizer.decode(wanted)
