"""Both numeric backends: capacity, errors, poisoned memory, block copies, and independence of the batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import random_model

from minillm.backends import create_backend
from minillm.backends.inputs import stale_slots
from minillm.backends.memory import MemoryShortageError, blocks_for, host_kv_budget_bytes
from minillm.backends.numpy_backend import NumpyBackend
from minillm.backends.plans import Chunk, plan_of
from minillm.backends.torch_backend import TorchBackend
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.plan import StepPlan
from minillm.core.sampling import SamplingParams
from minillm.core.sampling.logprobs import token_logprobs
from minillm.core.sampling.shaping import Transform
from minillm.models.load import LoadedModel
from minillm.ops import numpy_ops

BOTH = pytest.mark.parametrize("name", ["numpy", "torch"])
IDS = [5, 17, 80, 3, 3, 41, 96, 0, 12, 60, 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return random_model(tmp_path_factory.mktemp("model"))


def loaded(model: LoadedModel, name: str, block_size: int = 4, num_blocks: int = 12, **options: Any) -> Any:
    backend = create_backend(model, name, device="cpu", debug_poison=True, **options)
    backend.load(block_size=block_size, num_blocks=num_blocks)
    return backend


@BOTH
def test_capacity(model: LoadedModel, name: str) -> None:
    capacity = loaded(model, name).capacity()
    assert (capacity.num_blocks, capacity.block_size, capacity.vocab_size) == (12, 4, 97)
    assert capacity.kv_bytes_per_token == 2 * 2 * 2 * 10 * 4  # K and V, layers, KV heads, head size, bytes
    assert capacity.weight_bytes == model.weights.parameters * 4
    assert capacity.max_model_len == 128
    assert loaded(model, name, max_model_len=100).capacity().max_model_len == 100
    with pytest.raises(ValueError, match=r"max_model_len is 129, .* takes 1 to 128"):
        create_backend(model, name, max_model_len=129)


def test_bfloat16_halves_weights_and_cache(model: LoadedModel) -> None:
    full, half = (loaded(model, "torch", dtype=d).capacity() for d in ("float32", "bfloat16"))
    assert half.weight_bytes * 2 == full.weight_bytes
    assert half.kv_bytes_per_token * 2 == full.kv_bytes_per_token


@BOTH
def test_blocks_come_from_the_memory_at_hand(model: LoadedModel, name: str) -> None:
    backend_class: Any = NumpyBackend if name == "numpy" else TorchBackend
    per_token = 320
    backend = backend_class(model, available_bytes=2 * 1000 * per_token, max_model_len=64)
    backend.load(block_size=4, num_blocks=None)
    assert backend.capacity().num_blocks == 1000 // 4  # half of what is available
    with pytest.raises(MemoryShortageError, match=r"one sequence of 128 tokens needs 42,240 bytes .* 96 tokens"):
        backend_class(model, available_bytes=2 * 100 * per_token).load(block_size=4, num_blocks=None)
    # The largest length of the message does fit, and one more does not.
    backend_class(model, available_bytes=2 * 100 * per_token, max_model_len=96).load(block_size=4, num_blocks=None)
    with pytest.raises(MemoryShortageError):
        backend_class(model, available_bytes=2 * 100 * per_token, max_model_len=97).load(block_size=4, num_blocks=None)


def test_a_small_model_does_not_take_all_memory() -> None:
    gib = 2**30
    assert host_kv_budget_bytes(64 * gib, one_sequence_bytes=2**20) == 32 * 2**20
    assert host_kv_budget_bytes(64 * gib, one_sequence_bytes=gib // 2) == 2 * gib
    assert host_kv_budget_bytes(64 * gib, one_sequence_bytes=5 * gib) == 5 * gib
    assert host_kv_budget_bytes(2 * gib, one_sequence_bytes=gib // 2) == gib


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_the_length_that_is_said_to_fit_is_the_largest(block_size: int) -> None:
    for budget in range(0, 2000, 37):
        sizes = {"budget_bytes": budget, "block_size": block_size, "bytes_per_token": 10}
        fits = max((n for n in range(1, 300) if (-(-n // block_size) + 1) * block_size * 10 <= budget), default=0)
        with pytest.raises(MemoryShortageError, match=f"largest length that fits is {fits:,} tokens"):
            blocks_for(**sizes, max_model_len=fits + 1)
        if fits:
            assert blocks_for(**sizes, max_model_len=fits) == budget // (block_size * 10)


@BOTH
def test_a_backend_without_memory_says_so(model: LoadedModel, name: str) -> None:
    backend: Any = create_backend(model, name, device="cpu")
    plan = plan_of([Chunk(IDS, [1, 2, 3])], 4)
    with pytest.raises(RuntimeError, match="call load first"):
        backend.run(plan)
    backend.load(block_size=4, num_blocks=5)
    backend.run(plan)
    backend.close()
    backend.close()
    with pytest.raises(RuntimeError, match="call load first"):
        backend.run(plan)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "jax"}, "backend 'jax' is unknown: choose from numpy, torch"),
        (
            {"backend": "numpy", "dtype": "bfloat16"},
            "dtype 'bfloat16' is not one of the numpy backend's: auto",
        ),
        ({"backend": "torch", "dtype": "int8"}, "dtype 'int8'"),
        ({"backend": "numpy", "device": "cuda"}, "the numpy backend runs on the cpu"),
        ({"backend": "torch", "device": "tpu"}, "device 'tpu' is"),
        ({"backend": "torch", "device": "cuda:99"}, "sees . CUDA devices|build for the CPU"),
        ({"backend": "torch", "device": "meta"}, "device 'meta' is not supported"),
    ],
)
def test_unknown_names_are_errors_with_the_choices(model: LoadedModel, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_backend(model, **arguments)


def test_torch_is_imported_only_when_asked_for(model: LoadedModel) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from minillm.backends import create_backend\n"
        "from minillm.models.load import load_model\n"
        f"model = load_model({str(model.path)!r})\n"
        "create_backend(model, 'numpy').load(block_size=4, num_blocks=4)\n"
        "try:\n    create_backend(model, 'torch')\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'inference-handbook[torch]'" in done.stdout


@BOTH
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("token_ids", -1, "token_ids holds -1, the backend takes 0 to 96"),
        ("token_ids", 97, "token_ids holds 97"),
        ("positions", 128, "positions holds 128, the backend takes 0 to 127"),
        ("slot_mapping", 48, "slot_mapping holds 48, the backend takes 0 to 47"),
        ("slot_mapping", -4, "slot_mapping holds -4"),
    ],
)
def test_an_index_that_would_wrap_is_an_error(
    model: LoadedModel, name: str, field: str, value: int, message: str
) -> None:
    plan = plan_of([Chunk(IDS, [1, 2, 3])], 4)
    getattr(plan, field)[3] = value
    with pytest.raises(ValueError, match=message):
        loaded(model, name).run(plan)


@BOTH
def test_columns_of_unequal_length_are_an_error(model: LoadedModel, name: str) -> None:
    plan = plan_of([Chunk(IDS, [1, 2, 3])], 4)
    plan.slot_mapping.pop()
    with pytest.raises(ValueError, match="10 slot_mapping for 11 tokens"):
        loaded(model, name).run(plan)


@BOTH
def test_steps_that_sample_nothing(model: LoadedModel, name: str) -> None:
    backend = loaded(model, name)
    assert backend.run(StepPlan(step=0, block_size=4)).token_ids == []
    assert backend.run(plan_of([Chunk(IDS, [1, 2, 3], params=None)], 4)).token_ids == []
    # ... and what it wrote is there.
    found = backend.logits(plan_of([Chunk([*IDS, 1], [1, 2, 3], len(IDS))], 4))
    np.testing.assert_allclose(found, loaded(model, name).logits(plan_of([Chunk([*IDS, 1], [1, 2, 3])], 4)), atol=1e-5)


@BOTH
def test_a_read_of_what_nobody_wrote_is_nan(model: LoadedModel, name: str) -> None:
    backend = loaded(model, name)
    # Tokens 0 to 3 are claimed to be in block 5, which was never written.
    with pytest.raises(ValueError, match="NaN"):
        backend.run(plan_of([Chunk(IDS, [5, 2, 3], 4)], 4))


@BOTH
def test_a_reused_block_forgets_its_former_owner(model: LoadedModel, name: str) -> None:
    backend = loaded(model, name)
    backend.run(plan_of([Chunk(IDS, [1, 2, 3])], 4))
    backend.run(plan_of([Chunk([9, 9], [2])], 4))  # block 2 has a new owner, who wrote two of its slots
    with pytest.raises(ValueError, match="NaN"):
        backend.run(plan_of([Chunk([9, 9, 9, 9, 1], [2, 4], 4)], 4))
    backend.run(plan_of([Chunk([9, 9, 9], [2], 2)], 4))  # its own continuation is fine
    backend.poison_blocks([2])
    with pytest.raises(ValueError, match="NaN"):
        backend.run(plan_of([Chunk([9, 9, 9, 9], [2], 3)], 4))


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_stale_slots_are_those_behind_the_last_write(block_size: int) -> None:
    slots = np.array([7, 3, 4])
    found = set(stale_slots(slots, block_size).tolist())
    blocks = {s // block_size for s in (7, 3, 4)}
    wanted = {
        slot
        for b in blocks
        for slot in range(b * block_size, (b + 1) * block_size)
        if slot > max(s for s in (7, 3, 4) if s // block_size == b)
    }
    assert found == wanted


@BOTH
def test_copied_blocks_serve_another_request(model: LoadedModel, name: str) -> None:
    backend = loaded(model, name)
    backend.run(plan_of([Chunk(IDS, [1, 2, 3])], 4))
    before = backend.logits(plan_of([Chunk([*IDS, 1], [1, 2, 3], 11)], 4))
    # A swap and a copy in one call: every source is read before anything is written.
    backend.copy_blocks([(1, 2), (2, 1), (3, 7)])
    after = backend.logits(plan_of([Chunk([*IDS, 1], [2, 1, 7], 11)], 4))
    np.testing.assert_allclose(after, before, atol=1e-6)
    backend.copy_blocks([])


@BOTH
def test_blocks_go_to_the_host_and_come_back_elsewhere(model: LoadedModel, name: str) -> None:
    backend = create_backend(model, name, device="cpu", debug_poison=True)
    backend.load(block_size=4, num_blocks=12, num_host_blocks=3)
    assert backend.capacity().num_host_blocks == 3
    backend.run(plan_of([Chunk(IDS, [1, 2, 3])], 4))
    before = backend.logits(plan_of([Chunk([*IDS, 1], [1, 2, 3], 11)], 4))
    backend.copy_blocks([(1, 12), (2, 13), (3, 14)])
    backend.poison_blocks([1, 2, 3])
    # To the device, within the host and from the device in one call: every source is read before a write.
    backend.copy_blocks([(12, 5), (13, 12), (14, 4), (4, 13)])
    backend.copy_blocks([(12, 6)])
    after = backend.logits(plan_of([Chunk([*IDS, 1], [5, 6, 4], 11)], 4))
    np.testing.assert_allclose(after, before, atol=1e-6)


@BOTH
def test_batch_mates_change_nothing(model: LoadedModel, name: str) -> None:
    """Rows of one step, prefill and decode mixed, equal the same rows alone."""
    others = [IDS[::-1], IDS[3:8], [4]]
    tables = [[1, 2, 3], [4, 5, 6], [7, 8], [9]]
    chunks = [Chunk(t, b) for t, b in zip([IDS, *others], tables, strict=True)]
    backend = loaded(model, name)
    backend.run(plan_of([Chunk(IDS, tables[0], 0, 10, params=None)], 4))
    mixed = backend.logits(plan_of([Chunk(IDS, tables[0], 10), *chunks[1:]], 4))
    for row, chunk in enumerate(chunks):
        alone = loaded(model, name).logits(plan_of([chunk], 4))[0]
        np.testing.assert_allclose(mixed[row], alone, atol=1e-5)


@BOTH
def test_chunks_of_a_long_prompt_change_nothing(tmp_path: Path, name: str) -> None:
    """4,000 tokens at once, and in chunks of 512 and of 1,333: float32's rounding, and no more."""
    long = random_model(tmp_path / "long", max_position_embeddings=4096, num_hidden_layers=1)
    ids = np.random.default_rng(0).integers(0, 97, 4000).tolist()
    found = []
    for chunk in (4000, 512, 1333):
        backend = loaded(long, name, block_size=16, num_blocks=260)
        for start in range(0, 4000, chunk):
            plan = plan_of([Chunk(ids, list(range(1, 251)), start, min(start + chunk, 4000))], 16)
            logits = backend.logits(plan)[0]
        found.append(logits)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-5 * np.abs(found[0]).max())


def generate(model: LoadedModel, name: str, prompts: list[list[int]], config: EngineConfig, params: Any) -> Any:
    """(ids of each prompt, the run's metrics) from the real engine."""
    engine = Engine(create_backend(model, name, device="cpu", debug_poison=True), config)
    for i, prompt in enumerate(prompts):
        engine.add_request(prompt, SamplingParams(max_tokens=24, seed=7, **params), request_id=str(i))
    for _ in engine.run():
        pass
    engine.check()
    return [engine.requests[str(i)].output_ids for i in range(len(prompts))], engine.metrics()


MODES: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.8, "top_k": 5}}


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> dict[str, list[list[int]]]:
    """Each prompt by itself, in whole chunks, with another block size and no prefix cache."""
    plain = EngineConfig(block_size=16, num_blocks=40, prefix_caching=False)
    return {
        mode: [generate(model, "numpy", [p], plain, params)[0][0] for p in PROMPTS] for mode, params in MODES.items()
    }


SHARED = [7, 3, 9, 9, 1, 50, 66, 2, 31, 8]
PROMPTS = [SHARED, [*SHARED, 4, 5], [*SHARED, 4, 5, 6, 90, 12], IDS, [11]]
CONFIGS = {
    "roomy": EngineConfig(block_size=4, num_blocks=80, debug_checks=True),
    "block of one": EngineConfig(block_size=1, num_blocks=300, debug_checks=True),
    "chunks of three": EngineConfig(block_size=3, num_blocks=80, max_batch_tokens=3, debug_checks=True),
    "preempting": EngineConfig(block_size=2, num_blocks=24, max_batch_tokens=16, debug_checks=True),
    "swapping": EngineConfig(
        block_size=2, num_blocks=24, max_batch_tokens=16, debug_checks=True, preemption="swap", num_host_blocks=40
    ),
    "overlapped": EngineConfig(block_size=3, num_blocks=80, max_batch_tokens=16, debug_checks=True, overlap=1),
    "one by one": EngineConfig(block_size=4, num_blocks=40, max_running_requests=1, debug_checks=True),
}


@BOTH
@pytest.mark.parametrize("case", CONFIGS)
@pytest.mark.parametrize("mode", MODES)
def test_ids_do_not_depend_on_how_they_were_scheduled(
    model: LoadedModel, alone: Any, name: str, case: str, mode: str
) -> None:
    """Chunks, block size, batch mates, prefix hits and preemption: the ids of each prompt alone."""
    ids, metrics = generate(model, name, PROMPTS, CONFIGS[case], MODES[mode])
    assert ids == alone[mode]
    # The case is what its name says.
    assert (metrics.preemptions > 0) == (case in ("preempting", "swapping"))
    assert (sum(r.swaps for r in metrics.requests) > 0) == (case == "swapping")
    if case in ("one by one", "chunks of three"):
        assert metrics.prefix_hit_rate > 0.2


def test_the_margins_are_wide_enough_for_equal_ids(model: LoadedModel, alone: Any) -> None:
    """Else a greedy id could flip by float32's rounding, and the test above by chance."""
    backend = loaded(model, "numpy", num_blocks=20)
    for prompt, output in zip(PROMPTS, alone["greedy"], strict=True):
        known = [*prompt, *output]
        for end in range(len(prompt), len(known)):
            logits = np.sort(backend.logits(plan_of([Chunk(known[:end], list(range(1, 15)))], 4))[0])
            assert logits[-1] - logits[-2] > 1e-4


def test_a_model_that_is_bundled_runs_in_float32_everywhere(tmp_path: Path) -> None:
    import torch

    from minillm.backends.torch_backend import _choose_dtype

    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert _choose_dtype("auto", cuda, bundled=True) == torch.float32
    assert _choose_dtype("auto", cuda, bundled=False) == torch.bfloat16
    assert _choose_dtype("auto", cpu, bundled=False) == torch.float32


def test_the_browsers_way_to_multiply_gives_the_same_logits(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a BLAS: einsum, and matrices stored column by column. Everything else is the same code."""
    plans = [plan_of([Chunk(IDS, [1, 2, 3], 0, 7)], 4), plan_of([Chunk(IDS, [1, 2, 3], 7), Chunk([4], [5])], 4)]
    backend = loaded(model, "numpy")
    wanted = [backend.logits(plan) for plan in plans]
    monkeypatch.setattr(numpy_ops, "_HAS_BLAS", False)
    monkeypatch.setattr(numpy_ops, "MATRIX_ORDER", "F")
    backend = loaded(model, "numpy")
    for plan, logits in zip(plans, wanted, strict=True):
        np.testing.assert_allclose(backend.logits(plan), logits, atol=1e-5)


@BOTH
def test_a_draw_after_every_token_of_a_chunk(model: LoadedModel, name: str) -> None:
    """As for drafts to be verified, or a prompt's log-probabilities: each sees what is before it."""
    plan = plan_of([Chunk(IDS, [1, 2, 3]), Chunk([4, 4], [5])], 4)
    count = len(IDS)
    plan.logits_indices = [*range(count), count + 1]
    plan.sampling = [SamplingParams(temperature=0)] * (count + 1)
    plan.uniforms = [0.0] * (count + 1)
    plan.transforms = {2: Transform(allowed=0b10)}
    plan.logprobs = {0: 3, count - 1: 0, count: 1}
    plan.targets = {0: IDS[1]}
    backend = loaded(model, name)
    logits = backend.logits(plan)
    for end in range(1, count + 1):
        alone = loaded(model, name).logits(plan_of([Chunk(IDS[:end], [1, 2, 3])], 4))[0]
        np.testing.assert_allclose(logits[end - 1], alone, atol=1e-5)
    result = backend.run(plan)
    best = logits.argmax(axis=1).tolist()
    assert result.token_ids == [*best[:2], 1, *best[3:]]
    assert list(result.logprobs) == [0, count - 1, count]
    for draw, found in result.logprobs.items():
        wanted = token_logprobs(logits[draw].tolist(), plan.targets.get(draw, best[draw]), plan.logprobs[draw])
        assert (found.token_id, found.rank) == (wanted.token_id, wanted.rank)
        assert found.logprob == pytest.approx(wanted.logprob, abs=1e-5)
        assert [i for i, _ in found.top] == [i for i, _ in wanted.top]


@BOTH
def test_a_draw_after_no_token_is_an_error(model: LoadedModel, name: str) -> None:
    plan = plan_of([Chunk(IDS, [1, 2, 3])], 4)
    plan.logits_indices = [len(IDS)]
    with pytest.raises(ValueError, match="logits_indices holds 11, the backend takes 0 to 10"):
        loaded(model, name).run(plan)
