"""Real K/V goes from engine to engine, and through host and disk, by the same protocol as on the hash model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lossy_network import LossyNetwork
from random_models import random_model

from minillm.backends import create_backend
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.sampling import SamplingParams
from minillm.models.load import LoadedModel
from minillm.transfer import DeviceStore, Importer, Intake, Prefix, Source
from minillm.transfer.tiers import DiskMedium, HostMedium, SlotStore

PROMPT = [5, 17, 80, 3, 3, 41, 96, 0, 12, 60, 7]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
TIMES = {"retry_s": 2.0, "timeout_s": 20.0, "hold_s": 20.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return random_model(tmp_path_factory.mktemp("model"))


def make(model: LoadedModel, backend: str, dtype: str = "float32", block_size: int = 4) -> Engine:
    config = EngineConfig(block_size=block_size, num_blocks=20, max_batch_tokens=32)
    return Engine(create_backend(model, backend, device="cpu", dtype=dtype), config)


def serve(engine: Engine, name: str, params: SamplingParams = GREEDY) -> list[int]:
    request = engine.add_request(PROMPT, params, request_id=name)
    for _ in engine.run():
        pass
    return request.output_ids


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("source", ["p", "host", "disk"])
def test_a_prefix_that_was_computed_elsewhere_gives_the_same_ids(
    model: LoadedModel, backend: str, source: str, tmp_path: Path
) -> None:
    network = LossyNetwork(1)
    prefill, decode = make(model, backend), make(model, backend)
    serve(prefill, "p", SamplingParams(temperature=0, max_tokens=1))
    stores: dict[str, Any] = {"p": DeviceStore(prefill, "random"), "d": DeviceStore(decode, "random")}
    for name, medium in (("host", HostMedium()), ("disk", DiskMedium(tmp_path))):
        stores[name] = SlotStore(medium, 4, 4, stores["d"].layout)
    for name, store in stores.items():
        network.nodes[name] = Source(name, store, network.send, lease_s=20.0).on_message
    for name, before in (("host", "p"), ("disk", "host")):
        importer = Importer(f"{name}/in", stores[name], network.send, **TIMES)
        network.nodes[f"{name}/in"] = importer.on_message
        importer.pull(f"to {name}", before, Prefix(tuple(PROMPT)), 0.0)
        network.deliver(0.0)
        assert importer.counts == {"done": 1}
    intake = Intake("d/in", decode, stores["d"], network.send, **TIMES)
    network.nodes["d/in"] = intake.on_message
    intake.submit("r", PROMPT, GREEDY, [source], 0.0)
    network.deliver(0.0)
    for _ in decode.run():
        intake.tick(0.0)
    assert decode.requests["r"].num_cached == 8
    assert decode.requests["r"].output_ids == serve(make(model, backend), "alone")


@pytest.mark.parametrize(("backend", "dtype"), [("numpy", "float32"), ("torch", "float32"), ("torch", "bfloat16")])
def test_blocks_come_back_bit_for_bit(model: LoadedModel, backend: str, dtype: str) -> None:
    engine = make(model, backend, dtype)
    serve(engine, "one")
    blocks = engine.kv.holds.find(PROMPT, ())
    contents = engine.backend.read_blocks(blocks)  # type: ignore[attr-defined]
    assert [len(content) for content in contents] == [4 * engine.capacity.kv_bytes_per_token] * 2
    assert contents[0] != contents[1]
    other = make(model, backend, dtype)
    other.backend.write_blocks([(7, contents[1]), (5, contents[0])])  # type: ignore[attr-defined]
    assert other.backend.read_blocks([5, 7]) == contents  # type: ignore[attr-defined]
    assert engine.backend.read_blocks([]) == []  # type: ignore[attr-defined]


def test_what_is_no_block_of_this_model_is_refused(model: LoadedModel) -> None:
    one, other = make(model, "numpy"), make(model, "numpy", block_size=2)
    [content] = one.backend.read_blocks([1])  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"block of 1,280 bytes, one of this model has 640"):
        other.backend.write_blocks([(1, content)])  # type: ignore[attr-defined]
    assert DeviceStore(one, "m").layout != DeviceStore(other, "m").layout
