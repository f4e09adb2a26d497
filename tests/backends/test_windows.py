"""Models with sliding windows, in all layers or in some, on the engine: what is given back is never missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_models import random_model, transformers_model

from minillm.backends import create_backend
from minillm.backends.plans import Chunk, plan_of
from minillm.core.blocks import PoolError
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.kv.events import block_events
from minillm.core.sampling import SamplingParams
from minillm.models.load import LoadedModel, load_model
from minillm.models.spec import Attention, Dense, LayerSpec, ModelSpec, Rope
from minillm.transfer.device import DeviceStore

WINDOW = 7
PROMPTS = [[5, 17, 40, 3], [41, 9] * 12, [7, 7, 7, 60, 12, 33, 2, 8, 1], [41, 9] * 12 + [5]]
PARAMS = SamplingParams(temperature=0, max_tokens=30, logprobs=0)


ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "all windowed": ("MistralForCausalLM", {"sliding_window": WINDOW}),
    "every other": ("Gemma2ForCausalLM", {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 10}),
    "all but the first": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
}
SIZES = {"vocab_size": 61, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LoadedModel]:
    """(transformers' model, ours of the same weights)."""
    directory = tmp_path_factory.mktemp("model")
    architecture, more = ARCHITECTURES[request.param]
    reference = transformers_model(directory, architecture, **SIZES, **HEADS, **more)
    return reference, load_model(directory)


def run(model: LoadedModel, name: str, **options: Any) -> Engine:
    """Freed and unwritten slots are NaN, and every structure is checked after every step."""
    groups = len(model.spec.layer_groups()) if options.get("free_behind_window", True) else 1
    config = EngineConfig(**{"block_size": 3, "num_blocks": 60, "debug_checks": True, "record_trace": True, **options})
    config = replace(config, num_blocks=groups * (config.num_blocks or 0))
    engine = Engine(create_backend(model, name, dtype="float32", device="cpu", debug_poison=True), config)
    assert 1 + len(engine.capacity.other_windows) == groups
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


@pytest.mark.parametrize(
    ("windows", "groups"),
    [
        ((None, None), [(None, (0, 1))]),
        ((4, None, 4, None), [(None, (1, 3)), (4, (0, 2))]),
        ((4, 4, 4, None, 4, 4), [(None, (3,)), *((4, (i,)) for i in (0, 1, 2, 4, 5))]),
        ((8, 8, 4, 8, 4), [(8, (0, 1)), (8, (3,)), (4, (2, 4))]),
    ],
)
def test_layers_are_grouped_by_window(windows: tuple[int | None, ...], groups: list[Any]) -> None:
    layers = tuple(LayerSpec(Attention(2, 1, 4, Rope(4), window), Dense(8)) for window in windows)
    spec = ModelSpec("X", vocab_size=9, hidden=8, layers=layers, max_positions=64, norm_eps=1e-5)
    assert [(group.window, group.layers) for group in spec.layer_groups()] == groups


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_hybrid_model_holds_less(tmp_path: Path, name: str) -> None:
    """One layer of four sees everything: it alone keeps all tokens, the others a window of them."""
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    model = random_model(tmp_path, architectures=["Qwen2ForCausalLM"], num_hidden_layers=4, head_dim=8, **windows)
    used = {}
    for frees in (True, False):
        config = EngineConfig(block_size=2, num_blocks=200, free_behind_window=frees, prefix_caching=False)
        engine = Engine(create_backend(model, name, dtype="float32", device="cpu", debug_poison=True), config)
        request = engine.add_request([5] * 10, SamplingParams(temperature=0, max_tokens=50))
        while engine.has_work():
            engine.step()
            used[frees] = engine.kv_usage().used_bytes or used.get(frees, 0)
        assert request.num_output == 50
    token_bytes = 2 * 2 * 8 * 4  # K and V, heads, head size, float32: of one layer
    assert used[False] == 4 * 58 * token_bytes  # before the last step
    assert 0 < used[True] <= (58 + 3 * (WINDOW + 3)) * token_bytes


def test_what_layer_groups_do_not_support_is_refused(tmp_path: Path) -> None:
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    model = random_model(tmp_path, architectures=["Qwen2ForCausalLM"], head_dim=8, **windows)
    engine = Engine(create_backend(model, "numpy"), EngineConfig(num_blocks=20))
    with pytest.raises(PoolError, match=r"events of cached blocks with 2 cache groups.* free_behind_window=False"):
        block_events(engine.kv)
    with pytest.raises(PoolError, match=r"a transfer of blocks with 2 cache groups.* free_behind_window=False"):
        engine.kv.holds.find([1, 2, 3], ())
    with pytest.raises(ValueError, match=r"blocks of 2 cache groups cannot be handed over.* free_behind_window=False"):
        DeviceStore(engine, "X")
    DeviceStore(Engine(create_backend(model, "numpy"), EngineConfig(num_blocks=20, free_behind_window=False)), "X")
    with pytest.raises(ValueError, match="tables of 1 layer groups, the K/V is in 2"):
        engine.backend.run(plan_of([Chunk([1, 2, 3], [1])], 16))


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_groups_take_no_more_memory_than_one_table(tmp_path: Path, name: str) -> None:
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    model = random_model(
        tmp_path, architectures=["Qwen2ForCausalLM"], num_hidden_layers=3, max_position_embeddings=64, **windows
    )
    total = {}
    for frees in (True, False):
        config = EngineConfig(block_size=4, free_behind_window=frees)
        total[frees] = Engine(create_backend(model, name, device="cpu"), config).kv_usage().total_bytes
    # The null block is one of all, and is not counted.
    assert 0 <= total[True] - total[False] < 4 * model.spec.kv_elements_per_token * 4


def test_a_plan_that_computes_in_the_null_block_is_refused(tmp_path: Path) -> None:
    backend = create_backend(random_model(tmp_path), "numpy")
    backend.load(block_size=4, num_blocks=9)
    with pytest.raises(ValueError, match=r"6 tokens of 0 lie in the null block 0 of its table.* 2 places"):
        backend.run(plan_of([Chunk([1, 2, 3, 4, 5, 6], [0, 1])], 4))
