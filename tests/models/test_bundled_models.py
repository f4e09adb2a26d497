"""The two models that ship: complete, small enough for a page, and as good as when they were measured."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minillm.backends import create_backend
from minillm.backends.plans import Chunk, plan_of
from minillm.hub import BUNDLED
from minillm.models.chat_template import load_chat_template
from minillm.models.load import load_model
from minillm.models.tokenizer import ByteLevelBPE, load_tokenizer

HELD_OUT = Path(__file__).parent.parent / "data" / "held_out.txt"
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "MODEL_CARD.md",
}
PAGE_LIMIT_BYTES = 5_000_000
BLOCK_SIZE = 16


@cache
def excerpts() -> list[list[int]]:
    """Three pieces of addresses of 1849, 1929 and 1992 that no model was trained on, as ids."""
    tokenizer = load_tokenizer(BUNDLED / "tiny")
    return [[0, *tokenizer.encode(piece)] for piece in HELD_OUT.read_text(encoding="utf-8").split("\n\n----\n\n")]


@cache
def log_probabilities(name: str) -> list[Any]:
    """For each excerpt, the model's log-probabilities `[tokens, vocabulary]` of what follows each token."""
    backend: Any = create_backend(load_model(BUNDLED / name), backend="numpy", dtype="float32")
    backend.load(block_size=BLOCK_SIZE, num_blocks=66)
    found = []
    for ids in excerpts():
        blocks = range(1, 66)
        # One row for each position, all in one step: each writes its K/V before any of them reads.
        rows = [Chunk(ids, blocks, at, at + 1) for at in range(len(ids))]
        logits = backend.logits(plan_of(rows, BLOCK_SIZE)).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        found.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    return found


@pytest.mark.parametrize(("name", "low", "high"), [("tiny", 3_000_000, 4_000_000), ("tiny-draft", 270_000, 330_000)])
def test_files_sizes_and_parameters(name: str, low: int, high: int) -> None:
    folder = BUNDLED / name
    assert {path.name for path in folder.iterdir()} == FILES
    model = load_model(folder)
    assert low <= model.weights.parameters <= high
    # One byte a parameter, and the scales and norms.
    stored_bytes = sum(model.weights.source.info(name).nbytes for name in model.weights.source)
    assert model.weights.parameters <= stored_bytes <= 1.12 * model.weights.parameters
    assert model.spec.max_positions == 1024
    assert load_tokenizer(folder).eos_ids == frozenset({0, 2})


def test_both_models_together_fit_a_page() -> None:
    sizes = {str(path): path.stat().st_size for name in ("tiny", "tiny-draft") for path in (BUNDLED / name).iterdir()}
    assert sum(sizes.values()) <= PAGE_LIMIT_BYTES, sizes


def test_both_models_have_one_vocabulary() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (BUNDLED / "tiny" / name).read_bytes() == (BUNDLED / "tiny-draft" / name).read_bytes()
    tokenizer = load_tokenizer(BUNDLED / "tiny")
    assert isinstance(tokenizer, ByteLevelBPE)
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (4096, 0, frozenset({0, 2}))
    assert not tokenizer.adds_bos


def test_the_template_writes_what_the_models_were_trained_on() -> None:
    template = load_chat_template(BUNDLED / "tiny")
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert template.render(messages) == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
    assert template.render(messages[:1], add_generation_prompt=True).endswith("<|im_start|>assistant\n")


def test_the_card_says_where_text_and_weights_come_from() -> None:
    for name in ("tiny", "tiny-draft"):
        card = (BUNDLED / name / "MODEL_CARD.md").read_text(encoding="utf-8")
        assert f"{load_model(BUNDLED / name).weights.parameters:,}" in card
        for word in ("public domain", "MIT", "tools/train_tiny.py", "held-out loss", "seed"):
            assert word in card


def test_the_config_is_what_other_readers_expect() -> None:
    config = json.loads((BUNDLED / "tiny" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["head_dim"] * config["num_attention_heads"] == config["hidden_size"]
    assert config["quantization_config"]["format"] == "int-quantized"


# Measured when the weights were made; the margin leaves room for other processors' rounding only,
# so a wrong scale, a transposed matrix or another rotation of the heads cannot hide in it.
@pytest.mark.parametrize(("name", "measured"), [("tiny", 3.8050), ("tiny-draft", 4.5456)])
def test_loss_on_text_that_was_held_out(name: str, measured: float) -> None:
    """Nats per token. Random weights would give ln 4096 = 8.3."""
    total, count = 0.0, 0
    for ids, log_p in zip(excerpts(), log_probabilities(name), strict=True):
        total -= log_p[np.arange(len(ids) - 1), ids[1:]].sum()
        count += len(ids) - 1
    assert total / count == pytest.approx(measured, abs=0.01)


def test_the_target_keeps_enough_of_what_the_draft_proposes() -> None:
    """The mean of sum(min(p, q)): the chance that speculative sampling keeps one drafted token."""
    kept = [
        np.minimum(np.exp(p), np.exp(q)).sum(axis=1)
        for p, q in zip(log_probabilities("tiny"), log_probabilities("tiny-draft"), strict=True)
    ]
    assert np.concatenate(kept).mean() == pytest.approx(0.5563, abs=0.01)
