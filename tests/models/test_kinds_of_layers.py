"""Every kind of layer through the whole engine: whatever is done to a request, its logits are transformers'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kinds_of_layers import KINDS
from lossy_network import LossyNetwork
from random_models import transformers_model

from minillm.backends import create_backend
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams
from minillm.models.load import load_model
from minillm.speculate.ngram import NgramDrafter
from minillm.speculate.speculator import Speculation
from minillm.transfer.device import DeviceStore
from minillm.transfer.intake import Intake
from minillm.transfer.source import Source

TOLERANCE = 1e-4  # of the largest logit
PROMPTS = [[5, 17, 80, 3, 3, 41, 96, 0, 12, 60, 7, 5, 17, 80], [9, 33, 70, 9, 12, 81, 33, 44, 2], [61]]
TOP = 10
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=TOP)
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "in chunks": {"chunk_size": 3},
    "preempted": {"num_blocks": 9},
    "swapped": {"num_blocks": 9, "num_host_blocks": 40, "preemption": "swap"},
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(transformers' model, ours of the same weights)."""
    directory = tmp_path_factory.mktemp("kind")
    architecture, config = KINDS[request.param]
    return transformers_model(directory, architecture, **config), load_model(directory)


def engine_of(model: Any, backend: str, speculation: Speculation | None = None, **options: Any) -> Engine:
    groups = len(model.spec.layer_groups()) if options.get("free_behind_window", True) else 1
    options["num_blocks"] = 1 + groups * (options.get("num_blocks", 60) - 1)  # each group's, and the null block
    config = EngineConfig(**{"block_size": 4, "debug_checks": True, **options})
    made = create_backend(model, backend, device="cpu", dtype="float32", debug_poison=True)
    return Engine(made, config, speculation=speculation)


def served(engine: Engine, prompts: list[list[int]]) -> list[Request]:
    requests = [engine.add_request(prompt, GREEDY) for prompt in prompts]
    list(engine.run())
    return requests


def check(reference: Any, request: Request) -> None:
    """The log-probabilities of each drawn token and of the ten highest, against transformers over the whole text."""
    ids = [*request.prompt_ids, *request.output_ids]
    assert len(request.output_ids) == GREEDY.max_tokens, request.error
    with torch.inference_mode():
        logits = reference(torch.tensor([ids])).logits[0].double()
    wanted = torch.log_softmax(logits, -1).numpy()[len(request.prompt_ids) - 1 :]
    largest = float(logits.abs().max())
    for row, found in zip(wanted, request.logprobs, strict=False):
        tokens, values = zip((found.token_id, found.logprob), *found.top, strict=True)
        assert len(tokens) == 1 + TOP
        assert np.abs(row[list(tokens)] - values).max() <= TOLERANCE * largest


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("way", WAYS)
def test_a_batch(kind: Any, backend: str, way: str) -> None:
    reference, model = kind
    engine = engine_of(model, backend, **WAYS[way])
    for request in served(engine, PROMPTS):
        check(reference, request)
    assert ("num_blocks" in WAYS[way]) == (engine.metrics().preemptions > 0)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_prefix_that_is_hit(kind: Any, backend: str) -> None:
    reference, model = kind
    engine = engine_of(model, backend)
    first, second = served(engine, [PROMPTS[0]]), served(engine, [[*PROMPTS[0], 33]])
    check(reference, first[0])
    check(reference, second[0])
    assert second[0].num_cached == 12


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_drafts_that_are_rewound(kind: Any, backend: str) -> None:
    """The prompts repeat themselves, so that n-grams are found, and the random model hardly ever follows them."""
    reference, model = kind
    engine = engine_of(model, backend, Speculation(NgramDrafter(), 3))
    for request in served(engine, PROMPTS):
        check(reference, request)
    assert (engine.metrics().acceptance_rate or 0.0) < 1
    assert engine.metrics().acceptance_at


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_prefix_that_was_computed_elsewhere(kind: Any, backend: str) -> None:
    reference, model = kind
    network = LossyNetwork(1)
    # Only engines whose layers share their blocks hand them over.
    prefill, decode = (engine_of(model, backend, free_behind_window=False) for _ in range(2))
    served(prefill, [PROMPTS[0]])
    stores = [DeviceStore(engine, "random") for engine in (prefill, decode)]
    network.nodes["p"] = Source("p", stores[0], network.send, lease_s=20.0).on_message
    intake = Intake("d/in", decode, stores[1], network.send, retry_s=2.0, timeout_s=20.0, hold_s=20.0)
    network.nodes["d/in"] = intake.on_message
    intake.submit("r", PROMPTS[0], GREEDY, ["p"], 0.0)
    network.deliver(0.0)
    for _ in decode.run():
        intake.tick(0.0)
    assert decode.requests["r"].num_cached == 12
    check(reference, decode.requests["r"])
