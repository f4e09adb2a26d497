"""Models all of whose layers have a sliding window, on the engine: what is given back is never missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_models import random_model, transformers_model

from minillm.backends import create_backend
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.sampling import SamplingParams
from minillm.models.load import LoadedModel, load_model

WINDOW = 7
PROMPTS = [[5, 17, 40, 3], [41, 9] * 12, [7, 7, 7, 60, 12, 33, 2, 8, 1], [41, 9] * 12 + [5]]
PARAMS = SamplingParams(temperature=0, max_tokens=30, logprobs=0)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LoadedModel]:
    """(transformers' model, ours of the same weights)."""
    directory = tmp_path_factory.mktemp("mistral")
    sizes = {"vocab_size": 61, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128}
    reference = transformers_model(directory, "MistralForCausalLM", sliding_window=WINDOW, **sizes, **heads)
    return reference, load_model(directory)


def run(model: LoadedModel, name: str, **options: Any) -> Engine:
    """Freed and unwritten slots are NaN, and every structure is checked after every step."""
    config = EngineConfig(**{"block_size": 3, "num_blocks": 60, "debug_checks": True, **options})
    engine = Engine(create_backend(model, name, dtype="float32", device="cpu", debug_poison=True), config)
    for prompt in PROMPTS:
        engine.add_request(prompt, PARAMS)
    list(engine.run())
    return engine


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk_size": 2, "overlap": 1},
        {"chunk_size": 20, "max_batch_tokens": 24},
        {"num_blocks": 12, "chunk_size": 4, "max_batch_tokens": 8},
        {"num_blocks": 12, "chunk_size": 4, "max_batch_tokens": 8, "preemption": "swap", "num_host_blocks": 20},
        {"free_behind_window": False},
    ],
)
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_outputs_are_those_of_transformers(both: Any, name: str, options: dict[str, Any]) -> None:
    reference, model = both
    engine = run(model, name, **options)
    left = [event for event in engine.trace.events if event.kind == "leave"]
    assert bool(left) == options.get("free_behind_window", True)
    for request in engine.requests.values():
        with torch.inference_mode():
            logits = reference(torch.tensor([request.token_ids])).logits[0].log_softmax(-1).numpy()
        given = logits[request.num_prompt - 1 : -1]
        assert request.num_output == PARAMS.max_tokens
        drawn = np.array([one.logprob for one in request.logprobs])
        np.testing.assert_allclose(drawn, given[np.arange(len(given)), request.output_ids], atol=2e-4)
        np.testing.assert_allclose(drawn, given.max(-1), atol=2e-4)  # and each is the likeliest


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_model_with_a_layer_that_sees_all_keeps_all(tmp_path: Path, name: str) -> None:
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    model = random_model(tmp_path, architectures=["Qwen2ForCausalLM"], head_dim=8, **windows)
    assert set(model.spec.windows) == {None, WINDOW}
    engine = run(model, name)
    assert engine.capacity.window is None
    assert not [event for event in engine.trace.events if event.kind == "leave"]
