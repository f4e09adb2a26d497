"""What speculation asks of the numeric backends: trees, slots moved, drafts rejected, and equal ids for it all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adversaries import DRAFTERS, Knowing
from random_models import random_model

from minillm.backends import create_backend
from minillm.backends.plans import Chunk, plan_of
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.plan import StepPlan
from minillm.core.sampling import SamplingParams, distribution
from minillm.models.load import LoadedModel
from minillm.speculate.rejection import Proposal, draw_against
from minillm.speculate.speculator import Speculation
from minillm.speculate.tree import depths, path_to

BOTH = pytest.mark.parametrize("name", ["numpy", "torch"])
IDS = [5, 17, 80, 3, 3, 41, 96, 0, 12, 60, 7]
#        0   1   2   3  4   5   6   7   8
TOKENS = [9, 33, 70, 9, 12, 81, 33, 44, 2]
PARENTS = [-1, -1, 0, 0, 3, 1, 5, -1, 4]


WINDOWS = {"architectures": ["MistralForCausalLM"], "sliding_window": 5}


@pytest.fixture(scope="module", params=[{}, WINDOWS], ids=["all keys", "windows"])
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return random_model(tmp_path_factory.mktemp("model"), **request.param)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Its outputs grow past the window. A request within the window still takes more blocks with each token."""
    return random_model(tmp_path_factory.mktemp("model"), **(WINDOWS | {"sliding_window": 20}))


def loaded(model: LoadedModel, name: str, num_blocks: int = 30, **options: Any) -> Any:
    backend = create_backend(model, name, device="cpu", debug_poison=True, **options)
    backend.load(block_size=4, num_blocks=num_blocks)
    return backend


def tree_plan(*rows: tuple[list[int], list[int], list[int], list[int], int]) -> StepPlan:
    """Rows of (known, drafted, parents, blocks, computed); a draw after the last known token and after each drafted."""
    plan = plan_of([Chunk([*known, *drafted], blocks, done) for known, drafted, _, blocks, done in rows], 4)
    plan.logits_indices.clear()
    plan.sampling.clear()
    plan.uniforms.clear()
    for r, (known, drafted, parents, _, _) in enumerate(rows):
        end = plan.query_start_loc[r + 1]
        draws = range(end - len(drafted) - 1, end)
        plan.logits_indices += draws
        plan.sampling += [SamplingParams(temperature=0)] * len(draws)
        plan.uniforms += [0.0] * len(draws)
        if drafted:
            plan.trees[r] = parents
            plan.positions[end - len(drafted) : end] = [len(known) + d for d in depths(parents)]
    return plan


def alone(model: LoadedModel, name: str, tokens: list[int]) -> Any:
    return loaded(model, name).logits(plan_of([Chunk(tokens, list(range(1, 9)))], 4))[0]


@BOTH
@pytest.mark.parametrize("computed", [0, 10])
def test_each_path_of_a_tree_equals_the_path_run_alone(model: LoadedModel, name: str, computed: int) -> None:
    """A batch of a tree, another tree of as many tokens in a shorter context, a decode and a prompt."""
    short, chain = IDS[4:], list(range(-1, 8))
    backend = loaded(model, name)
    if computed:
        backend.run(plan_of([Chunk(IDS, [1, 2, 3], 0, 10, params=None), Chunk(short, [9, 10], 0, 6, params=None)], 4))
    first = (IDS, TOKENS, PARENTS, [1, 2, 3, 4, 5], computed)
    second = (short, TOKENS, chain, [9, 10, 11, 12], min(computed, 6))
    found = backend.logits(tree_plan(first, (IDS[:9], [], [], [20, 21, 22], 0), second, ([7], [], [], [25], 0)))
    wanted = [alone(model, name, IDS)]
    wanted += [alone(model, name, IDS + [TOKENS[n] for n in path_to(PARENTS, node)]) for node in range(9)]
    wanted += [alone(model, name, IDS[:9]), alone(model, name, short)]
    wanted += [alone(model, name, short + TOKENS[: node + 1]) for node in range(9)]
    wanted += [alone(model, name, [7])]
    np.testing.assert_allclose(found, wanted, atol=2e-5)


@BOTH
def test_the_slots_of_an_accepted_path_are_moved_together(model: LoadedModel, name: str) -> None:
    backend = loaded(model, name)
    backend.run(tree_plan((IDS, TOKENS, PARENTS, [1, 2, 3, 4, 5], 0)))
    path = path_to(PARENTS, 8)
    assert path == [0, 3, 4, 8]
    # Position p of this table lies at slot 4 + p. Tokens 3 and 4 move left, over each other's old places.
    backend.copy_slots([(4 + 11 + node, 4 + 11 + i) for i, node in enumerate(path) if node != i])
    known = IDS + [TOKENS[n] for n in path]
    after = backend.logits(plan_of([Chunk([*known, 50], [1, 2, 3, 4], len(known))], 4))[0]
    np.testing.assert_allclose(after, alone(model, name, [*known, 50]), atol=2e-5)
    backend.copy_slots([])


@BOTH
def test_drafted_tokens_are_rejected_and_distributions_returned_as_the_reference_says(
    model: LoadedModel, name: str
) -> None:
    backend = loaded(model, name)
    plan = plan_of([Chunk(IDS, [1, 2, 3]), Chunk(IDS[:5], [4, 5]), Chunk(IDS[3:], [6, 7])], 4)
    logits = backend.logits(plan)
    params = SamplingParams(temperature=1.3, top_k=40, top_p=0.95)
    plan.sampling = [params] * 3
    plan.uniforms = [0.4, 0.7, 0.2]
    row = np.full(97, 1 / 97)
    plan.proposals = {0: Proposal(11, None, 0.999), 2: Proposal(6, row, 0.001)}
    plan.distributions = {1, 2}
    result = backend.run(plan)
    entries = [distribution([float(x) for x in row_logits], params) for row_logits in logits]
    assert result.token_ids[0] == draw_against(entries[0], plan.proposals[0], 0.4)
    assert result.token_ids[2] == draw_against(entries[2], plan.proposals[2], 0.2)
    assert set(result.distributions) == {1, 2}
    for draw, found in result.distributions.items():
        wanted = [dict(entries[draw]).get(i, 0.0) for i in range(97)]
        np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-6)


PROMPTS = [IDS, [7, 3, 9, 9, 1, 50, 66, 2, 31, 8], [11, 4]]
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_k": 5, "repetition_penalty": 1.3, "logprobs": 1},
}


class Echo(Knowing):
    """Right for a while, then wrong, from a run without speculation that it was told of."""

    def __init__(self, outputs: dict[str, list[int]]) -> None:
        self.outputs = outputs

    def right(self, ask: Any, drafted: Any) -> int:
        known = ask.request.num_output + len(drafted)
        output = self.outputs[ask.request.request_id]
        token = output[known] if known < len(output) else 0
        return token if known % 4 else (token + 1) % self.vocab_size


class EchoTree(Echo):
    """The same, behind branches that are wrong."""

    one = DRAFTERS["hidden path"]().one.__func__  # type: ignore[attr-defined]


class EchoChain(Echo):
    one = DRAFTERS["always right"]().one.__func__  # type: ignore[attr-defined]


def generate(model: LoadedModel, name: str, config: EngineConfig, params: Any, speculation: Speculation | None) -> Any:
    engine = Engine(create_backend(model, name, device="cpu", debug_poison=True), config, speculation=speculation)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(prompt, SamplingParams(max_tokens=24, seed=7, **params), request_id=str(i))
    for _ in engine.run():
        pass
    engine.check()
    return {name: request.output_ids for name, request in engine.requests.items()}, engine


@pytest.fixture(scope="module")
def plain(windowed: LoadedModel) -> dict[str, dict[str, list[int]]]:
    config = EngineConfig(block_size=16, num_blocks=40)
    return {mode: generate(windowed, "numpy", config, params, None)[0] for mode, params in MODES.items()}


CONFIGS = {
    "roomy": EngineConfig(block_size=4, num_blocks=80, debug_checks=True),
    "block of one": EngineConfig(block_size=1, num_blocks=300, debug_checks=True),
    "preempting": EngineConfig(block_size=2, num_blocks=30, max_batch_tokens=16, debug_checks=True),
}


@BOTH
@pytest.mark.parametrize("case", CONFIGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drafter", ["chain", "tree", "ngram", "random tree"])
def test_ids_are_those_without_speculation(
    windowed: LoadedModel, plain: Any, name: str, case: str, mode: str, drafter: str
) -> None:
    echoes = {"chain": EchoChain, "tree": EchoTree}
    made = echoes[drafter](plain[mode]) if drafter in echoes else DRAFTERS[drafter]()
    ids, engine = generate(windowed, name, CONFIGS[case], MODES[mode], Speculation(made, 6))
    assert ids == plain[mode]
    metrics = engine.metrics()
    assert (metrics.preemptions > 0) == (case == "preempting")
    if drafter in echoes and case != "preempting":
        assert metrics.tokens_per_step > 1.5


@BOTH
def test_sampling_by_rejection_draws_from_the_target(tmp_path: Path, name: str) -> None:
    """Chi-square over the second and third token of 1,200 requests; chance of a false alarm under 1 in 10,000."""
    small = random_model(tmp_path / "small", vocab_size=6)
    counts: dict[bool, Any] = {}
    params = SamplingParams(temperature=1.5, top_k=5, max_tokens=3)
    for speculate in (False, True):
        speculation = Speculation(DRAFTERS["from q"](), 2, verification="rejection") if speculate else None
        config = EngineConfig(block_size=4, num_blocks=400, seed=int(speculate), record_trace=False)
        engine = Engine(create_backend(small, name, device="cpu"), config, speculation=speculation)
        for _ in range(1200):
            engine.add_request([1, 2, 3], params)
        for _ in engine.run():
            pass
        found = np.zeros((6, 6))
        for request in engine.requests.values():
            found[tuple(request.output_ids[1:])] += 1
        counts[speculate] = found.ravel()
        assert (engine.metrics().acceptance_rate is not None) == speculate
    both = counts[False] + counts[True]
    used = both > 0
    # Two samples of one size: the sum of (a - b)^2 / (a + b), with as many degrees of freedom as cells less one.
    statistic = ((counts[True] - counts[False])[used] ** 2 / both[used]).sum()
    freedom = used.sum() - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom) + 8
