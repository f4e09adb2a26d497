"""A row whose numbers break ends its request, with the layer or the input that is to blame; the others go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from random_models import random_model

from minillm.backends import create_backend
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.plan import StepPlan, StepResult
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams
from minillm.models.load import LoadedModel
from minillm.ops.linear import Linear

NAN = float("nan")
BAD = 33  # a token whose embedding is damaged, and that no output has
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
KINDS = {
    "greedy": GREEDY,
    "sampled": replace(GREEDY, temperature=1.0, seed=3),
    "shaped": replace(GREEDY, repetition_penalty=1.5, logprobs=3, prompt_logprobs=2),
    "several": replace(GREEDY, temperature=1.0, n=3),
    "searched": SamplingParams(temperature=0, max_tokens=4, beam_width=2),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return random_model(tmp_path_factory.mktemp("model"), tie_word_embeddings=False)


def damaged(model: LoadedModel, name: str, damage: Callable[[Any], None], config: EngineConfig) -> Engine:
    backend = create_backend(model, name, device="cpu", dtype="float32")
    engine = Engine(backend, config)
    with torch.inference_mode():
        damage(backend.decoder.parameters)
    return engine


def broken(weight: Any, row: int | slice) -> Any:
    """A copy, for the model's own arrays are shared."""
    copied = weight.clone() if isinstance(weight, torch.Tensor) else weight.copy()
    copied[row] = NAN
    return copied


def embedding(parameters: Any) -> None:
    parameters.embed = broken(parameters.embed, BAD)


def served(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[Request]:
    requests = [engine.add_request(prompt, params) for prompt in prompts]
    list(engine.run())
    assert engine.kv.pool.num_used == 0
    return requests


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}, {"overlap": 1}], ids=["whole", "chunks", "overlap"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_broken_row_ends_and_its_mates_are_as_without_it(
    model: LoadedModel, name: str, options: dict[str, Any], kind: str
) -> None:
    config = EngineConfig(block_size=3, num_blocks=90, debug_checks=True, **options)
    prompts = [[1, 2, 3], [4, BAD, 5, 6], [9, 8]]
    with_fault = served(damaged(model, name, embedding, config), prompts, KINDS[kind])
    without = served(damaged(model, name, lambda _: None, config), prompts, KINDS[kind])
    for i, (request, expected) in enumerate(zip(with_fault, without, strict=True)):
        members = request.group.members if request.group else [request]
        if i != 1:
            assert request.output_ids == expected.output_ids
            continue
        for member in members:
            assert member.finish_reason == "error"
            assert member.output_ids == []
            assert "NaN or +inf, first seen behind " in member.error


def test_the_input_or_the_layer_is_named(model: LoadedModel) -> None:
    def layer(parameters: Any) -> None:
        output = parameters.layers[1].output
        output.weight = broken(output.weight, slice(None))

    def head(parameters: Any) -> None:
        parameters.head = Linear(broken(parameters.head.weight, 3))

    for name in ("numpy", "torch"):
        for damage, words in (
            (embedding, "behind the embedding, of token 33 at position 1:"),
            (layer, "behind layer 1 of 2, of token "),
            (head, "behind the head:"),
        ):
            engine = damaged(model, name, damage, EngineConfig(num_blocks=20))
            (request,) = served(engine, [[4, BAD, 5]], GREEDY)
            assert words in request.error, (name, request.error)


def test_bfloat16_rows_are_told_apart_as_well(model: LoadedModel) -> None:
    backend = create_backend(model, "torch", device="cpu", dtype="bfloat16")
    engine = Engine(backend, EngineConfig(num_blocks=20))
    with torch.inference_mode():
        embedding(backend.decoder.parameters)
    faulty, sound = served(engine, [[4, BAD], [1, 2]], GREEDY)
    assert (faulty.finish_reason, sound.finish_reason) == ("error", "length")


def test_a_row_that_breaks_while_it_decodes_keeps_what_was_drawn_before(model: LoadedModel) -> None:
    engine = damaged(model, "numpy", lambda _: None, EngineConfig(num_blocks=40))
    run, steps = engine.backend.run, []

    def broken_once(plan: StepPlan) -> StepResult:
        steps.append(plan.step)
        result = run(plan)
        return replace(result, faults={1: "logits hold NaN or +inf"}) if len(steps) == 3 else result

    engine.backend.run = broken_once  # type: ignore[method-assign]
    first, second, third = served(engine, [[1], [2], [3]], GREEDY)
    assert (first.num_output, second.num_output, third.num_output) == (6, 2, 6)
    assert second.error == "logits hold NaN or +inf"


def test_a_faulty_draw_behind_a_draft_counts_only_where_it_is_reached(model: LoadedModel) -> None:
    from adversaries import DRAFTERS

    from minillm.backends.hash_model import HashModel
    from minillm.speculate.speculator import Speculation

    class Faulty(HashModel):
        where = 0

        def run(self, plan: StepPlan) -> StepResult:
            result = super().run(plan)
            if len(result.token_ids) > 1:
                result.faults = {self.where: "broken"}
            return result

    for drafter, where, is_reached in (
        ("always right", 2, True),
        ("always wrong", 2, False),
        ("always wrong", 0, True),
    ):
        target = Faulty(vocab_size=5)
        target.where = where
        found: Any = DRAFTERS[drafter]()
        found.model = target
        engine = Engine(target, EngineConfig(num_blocks=20, block_size=2), speculation=Speculation(found, 3))
        (request,) = served(engine, [[1, 2, 3]], replace(GREEDY, max_tokens=12))
        assert (request.finish_reason == "error") == is_reached
        plain = Engine(HashModel(vocab_size=5), EngineConfig(num_blocks=20))
        (expected,) = served(plain, [[1, 2, 3]], replace(GREEDY, max_tokens=12))
        assert request.output_ids == expected.output_ids[: request.num_output]
