"""Search, penalties, bans and cuts against transformers' own, on a small model with random weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from random_models import transformers_model

from minillm.backends import create_backend
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.outputs.group import outputs
from minillm.core.sampling import SamplingParams, distribution
from minillm.models.load import LoadedModel, load_model

PROMPTS = [[5, 17, 40, 3], [41, 9], [7, 7, 7, 60, 12, 33, 2]]
MAX_TOKENS = 8
PAD = 61  # no token of the vocabulary


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LoadedModel]:
    """(transformers' model, ours of the same weights)."""
    directory = tmp_path_factory.mktemp("oracle")
    sizes = {"vocab_size": 61, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
    reference = transformers_model(directory, "LlamaForCausalLM", num_attention_heads=6, num_key_value_heads=2, **sizes)
    return reference, load_model(directory)


def theirs(reference: Any, prompt: list[int], **options: Any) -> list[list[int]]:
    """Output ids of each returned sequence, padding cut off."""
    ids = torch.tensor([prompt])
    found = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=MAX_TOKENS,
        pad_token_id=PAD,
        **options,
    )
    return [[i for i in row[ids.shape[1] :].tolist() if i != PAD] for row in found]


def ours(model: LoadedModel, prompt: list[int], eos: list[int], **options: Any) -> list[list[int]]:
    config = EngineConfig(block_size=4, num_blocks=80, debug_checks=True)
    engine = Engine(create_backend(model, "numpy", device="cpu", debug_poison=True), config, eos_ids=set(eos))
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, **options)
    request = engine.add_request(prompt, params)
    list(engine.run())
    return [one.output_ids for one in outputs(request)]


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0])
@pytest.mark.parametrize("width", [2, 4])
def test_beam_search_is_that_of_transformers(both: Any, width: int, length_penalty: float) -> None:
    reference, model = both
    # Tokens that the searches run into.
    eos, ended = [theirs(reference, prompt, num_beams=2)[0][3] for prompt in PROMPTS], 0
    for prompt in PROMPTS:
        wanted = theirs(
            reference,
            prompt,
            num_beams=width,
            num_return_sequences=width,
            early_stopping=True,
            length_penalty=length_penalty,
            eos_token_id=eos,
        )
        found = ours(model, prompt, eos, beam_width=width, n=width, length_penalty=length_penalty)
        assert found == wanted
        ended += sum(len(row) < MAX_TOKENS for row in found)
    assert ended or length_penalty > 1, "some hypotheses end early, so that the rules about ends show"


@pytest.mark.parametrize(
    ("options", "their_options"),
    [
        ({}, {}),
        ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"min_tokens": 6}, {"min_new_tokens": 6}),
        ({"bad_words": ((19,), (11, 11))}, {"bad_words_ids": [[19], [11, 11]]}),
        ({"logit_bias": {9: 4.0, 19: -7.5}}, {"sequence_bias": {(9,): 4.0, (19,): -7.5}}),
    ],
)
def test_greedy_decoding_with_penalties_and_bans_is_that_of_transformers(
    both: Any, options: dict[str, Any], their_options: dict[str, Any]
) -> None:
    reference, model = both
    eos = [theirs(reference, prompt)[0][3] for prompt in PROMPTS]
    wanted = [theirs(reference, prompt, eos_token_id=eos, **their_options)[0] for prompt in PROMPTS]
    assert [ours(model, prompt, eos, **options)[0] for prompt in PROMPTS] == wanted
    if options:
        assert wanted != [theirs(reference, prompt, eos_token_id=eos)[0] for prompt in PROMPTS], "it changes something"


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"typical_p": 0.6},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.85},
    ],
)
def test_the_cuts_and_their_order_are_those_of_transformers(fields: dict[str, Any]) -> None:
    from transformers.generation import logits_process as warpers

    classes = {
        "temperature": warpers.TemperatureLogitsWarper,
        "top_k": warpers.TopKLogitsWarper,
        "top_p": warpers.TopPLogitsWarper,
        "min_p": warpers.MinPLogitsWarper,
        "typical_p": warpers.TypicalLogitsWarper,
    }
    for seed in range(30):
        logits = np.random.default_rng(seed).normal(0, 2, 100)
        scores = torch.from_numpy(logits)[None]
        for name, value in fields.items():
            scores = classes[name](value)(None, scores)
        wanted = torch.softmax(scores, dim=1)[0].tolist()
        found = dict(distribution(logits.tolist(), SamplingParams(**fields)))
        assert found.keys() == {i for i, p in enumerate(wanted) if p > 0}
        assert all(math.isclose(found[i], wanted[i], rel_tol=1e-9) for i in found)
