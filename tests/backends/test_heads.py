"""Draft heads on the numeric backends: they draft what a plain recomputation does, and ids stay what they were."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_model
from safetensors.numpy import save_file

from minillm.backends import create_backend
from minillm.backends.heads import NumericHeads
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.sampling import SamplingParams
from minillm.loaders.files import LoadError
from minillm.models.heads.files import HEAD_KINDS, HeadFiles, expected_shapes, open_heads
from minillm.models.load import LoadedModel
from minillm.models.rope import angles, inverse_frequencies
from minillm.speculate.draft import Ask, Draft
from minillm.speculate.eagle import EagleDrafter
from minillm.speculate.heads import BLOCK_TOKENS, KEPT_TOKENS
from minillm.speculate.medusa import MedusaDrafter, likeliest_tree
from minillm.speculate.mtp import MtpDrafter
from minillm.speculate.speculator import Speculation
from minillm.speculate.tree import ROOT, path_to

BOTH = pytest.mark.parametrize("name", ["numpy", "torch"])
KINDS = pytest.mark.parametrize("kind", HEAD_KINDS)
DRAFTERS: dict[str, Any] = {"medusa": MedusaDrafter, "eagle": EagleDrafter, "mtp": MtpDrafter}
DEPTH = 3
PROMPTS = [[5, 17, 80, 3, 3, 41, 96], [7, 3, 9, 9, 1, 50], [11, 4], [8], [60, 61, 62], [1, 2, 3, 4]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return random_model(tmp_path_factory.mktemp("model"), max_position_embeddings=512)


def write_heads(folder: Path, kind: Any, model: LoadedModel, config: Mapping[str, Any] | None = None) -> Path:
    """Heads of random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    tensors = {}
    for name, shape in expected_shapes(kind, 1 if kind == "eagle" else DEPTH, model.spec).items():
        tensors[name] = rng.normal(1.0 if "norm" in name else 0.0, 0.2, shape).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    (folder / "heads.json").write_text(json.dumps({"kind": kind, "target": "random", "depth": DEPTH, **(config or {})}))
    return folder


def generate(
    model: LoadedModel,
    name: str,
    params: SamplingParams,
    drafter: Callable[[Any], Any] | None = None,
    config: EngineConfig | None = None,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    may_fail: bool = False,
    **options: Any,
) -> tuple[list[list[int]], Engine]:
    backend = create_backend(model, name, device="cpu", dtype=options.pop("dtype", "float32"))
    speculation = None if drafter is None else Speculation(drafter(backend), **options)
    engine = Engine(backend, config or EngineConfig(num_blocks=80, debug_checks=True), speculation=speculation)
    requests = [engine.add_request(prompt, params) for prompt in prompts]
    for _ in engine.run():
        pass
    assert may_fail or not any(request.error for request in engine.requests.values())
    members = [r.group.members if r.group is not None else [r] for r in requests]
    return [member.output_ids for group in members for member in group], engine


def heads_of(folder: Path, kind: str, model: LoadedModel) -> Callable[[Any], Any]:
    return lambda backend: DRAFTERS[kind](NumericHeads(backend, open_heads(folder, model.spec)))


# --- ids -----------------------------------------------------------------------------------------------------

CONFIGS = {
    "roomy": EngineConfig(block_size=4, num_blocks=80, debug_checks=True),
    "block of one, overlapped": EngineConfig(block_size=1, num_blocks=300, overlap=1, debug_checks=True),
    "preempting": EngineConfig(block_size=2, num_blocks=36, max_batch_tokens=16, debug_checks=True),
}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_k": 5, "repetition_penalty": 1.3, "logprobs": 1},
    "three samples": {"temperature": 1.0, "n": 3},
}


@BOTH
@KINDS
@pytest.mark.parametrize("mode", MODES)
def test_heads_that_know_nothing_change_no_id(
    model: LoadedModel, tmp_path: Path, name: str, kind: str, mode: str
) -> None:
    params = SamplingParams(max_tokens=20, seed=7, **MODES[mode])
    plain = generate(model, name, params)[0]
    folder = write_heads(tmp_path / kind, kind, model)
    for case, config in CONFIGS.items():
        ids, engine = generate(model, name, params, heads_of(folder, kind, model), config, draft_tokens=4)
        assert ids == plain, case
        assert engine.metrics().acceptance_rate is not None
        if mode != "three samples":
            assert (engine.metrics().preemptions > 0) == (case == "preempting")


@KINDS
def test_by_rejection_heads_say_what_they_drew_from(model: LoadedModel, tmp_path: Path, kind: str) -> None:
    folder = write_heads(tmp_path / kind, kind, model)
    drafted: list[tuple[Ask, Draft]] = []
    params = SamplingParams(max_tokens=20, seed=7, temperature=1.5)
    generate(model, "numpy", params, recording(heads_of(folder, kind, model), drafted), verification="rejection")
    assert any(draft.token_ids for _, draft in drafted)
    for _, draft in drafted:
        rows = draft.probabilities or []
        assert len(rows) == len(draft.token_ids)
        assert all(sum(row) == pytest.approx(1) for row in rows)


@KINDS
def test_where_nothing_may_follow_a_draft_ends(model: LoadedModel, tmp_path: Path, kind: str) -> None:
    """Every token is banned after one that heads draft and the target never draws, then after one that it does."""
    folder = write_heads(tmp_path / kind, kind, model)
    make = heads_of(folder, kind, model)
    drafted: list[tuple[Any, Draft]] = []
    params = SamplingParams(max_tokens=16, temperature=0)
    plain, _ = generate(model, "numpy", params, recording(make, drafted))
    inner = {token for _, draft in drafted for token in draft.token_ids[:-1]}
    unseen = inner - {token for ids in plain for token in ids}
    assert unseen

    def banned(token: int) -> SamplingParams:
        return replace(params, bad_words=tuple((token, other) for other in range(97)))

    for token in (*sorted(unseen)[:3], plain[0][5]):
        ends = []
        for drafter in (None, make):
            ids, engine = generate(model, "numpy", banned(token), drafter, may_fail=True)
            ends.append((ids, [request.error for request in engine.requests.values()]))
        assert ends[0] == ends[1]
        assert any(ends[0][1]) == (token not in unseen)


# --- drafts ----------------------------------------------------------------------------------------------------


def recording(make: Callable[[Any], Any], drafted: list[tuple[Ask, Draft]]) -> Callable[[Any], Any]:
    """The same drafter, whose asks and drafts are kept, as they were then."""

    def made(backend: Any) -> Any:
        drafter = make(backend)
        propose = drafter.propose

        def audited(asks: Sequence[Ask]) -> Sequence[Draft]:
            drafts: Sequence[Draft] = propose(asks)
            for ask, draft in zip(asks, drafts, strict=True):
                drafted.append((Snapshot(ask), draft))  # type: ignore[arg-type]
            return drafts

        drafter.propose = audited
        return drafter

    return made


class Snapshot:
    """What an ask said, since its request goes on."""

    def __init__(self, ask: Ask) -> None:
        self.name, self.tokens = ask.request.request_id, list(ask.request.token_ids)
        self.hidden = [np.asarray(row, dtype=np.float64) for row in ask.hidden]
        self.wanted = min(ask.max_tokens, ask.max_depth)


class Reference:
    """The modules in plain float64, without a cache: each run recomputes keys and values of all places before."""

    def __init__(self, files: HeadFiles, model: LoadedModel) -> None:
        self.spec, self.read = model.spec, files.read
        self.embed = model.weights.read("embed").astype(np.float64)

    def norm(self, x: Any, weight: Any) -> Any:
        return x * weight / np.sqrt((x * x).mean(-1, keepdims=True) + self.spec.norm_eps)

    def rotated(self, x: Any, positions: Any) -> Any:
        turn = angles(inverse_frequencies(self.spec.ropes[0]), positions)[:, None, :]
        a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return np.concatenate([a * np.cos(turn) - b * np.sin(turn), b * np.cos(turn) + a * np.sin(turn)], -1)

    def run(self, module: int, hidden: Any, tokens: Sequence[int], positions: Sequence[int]) -> tuple[Any, Any]:
        """(what the last place's token is drawn from, its state), by the module over all the places given."""
        spec = self.spec.layers[0].mixer

        def w(name: str) -> Any:
            return self.read(f"modules_.{module}.{name}.weight").astype(np.float64)

        where = np.asarray(positions)
        given = np.concatenate(
            [self.norm(np.stack(hidden), w("hidden_norm")), self.norm(self.embed[list(tokens)], w("embed_norm"))], -1
        )
        x = given @ w("join").T
        normed = self.norm(x, w("layer.input_layernorm"))
        q = self.rotated((normed @ w("layer.self_attn.q_proj").T).reshape(len(x), spec.heads, -1), where)[-1]
        k = self.rotated((normed @ w("layer.self_attn.k_proj").T).reshape(len(x), spec.kv_heads, -1), where)
        v = (normed @ w("layer.self_attn.v_proj").T).reshape(len(x), spec.kv_heads, -1)
        mixed = []
        for head in range(spec.heads):
            kv = head * spec.kv_heads // spec.heads
            scores = k[:, kv] @ q[head] * spec.score_scale
            weights = np.exp(scores - scores.max())
            mixed.append(weights / weights.sum() @ v[:, kv])
        last = x[-1] + np.concatenate(mixed) @ w("layer.self_attn.o_proj").T
        inner = self.norm(last, w("layer.post_attention_layernorm"))
        gate, up = inner @ w("layer.mlp.gate_proj").T, inner @ w("layer.mlp.up_proj").T
        last = last + (gate / (1 + np.exp(-gate)) * up) @ w("layer.mlp.down_proj").T
        return self.norm(last, w("norm")), last

    def best(self, hidden: Any) -> int:
        return int((self.embed @ hidden).argmax())


def expected_drafts(kind: str, reference: Reference, asks: Sequence[Any]) -> list[list[int]]:
    """Of one request: what its asks are to be answered with, from hidden states and tokens alone."""
    places: list[int] = []  # positions in the module's context
    inputs: list[dict[int, Any]] = [{} for _ in range(DEPTH)]  # by module: the hidden state that it read there
    found = []
    for ask in asks:
        new = list(range(len(ask.tokens) - 1 - len(ask.hidden), len(ask.tokens) - 1))
        inputs[0].update(zip(new, ask.hidden, strict=True))
        if len(places) + len(new) + (ask.wanted if kind == "eagle" else 0) > BLOCK_TOKENS:
            places = places[-KEPT_TOKENS:]
        places += new
        tokens = list(ask.tokens)
        if kind == "eagle":
            context, states = list(places), dict(inputs[0])
            for _ in range(ask.wanted):
                hidden, following = [states[p] for p in context], [tokens[p + 1] for p in context]
                predicted, _ = reference.run(0, hidden, following, context)
                tokens.append(reference.best(predicted))
                context.append(context[-1] + 1)
                states[context[-1]] = predicted
        else:
            for module in range(DEPTH):
                again = max(0, len(places) - len(new) - (DEPTH - 1))
                for end in range(again, len(places)):  # those that are run, the last ones
                    context = places[: end + 1]
                    hidden = [inputs[module][p] for p in context]
                    following = [tokens[p + module + 1] for p in context]
                    predicted, state = reference.run(module, hidden, following, context)
                    if module + 1 < DEPTH:
                        inputs[module + 1][places[end]] = state
                tokens.append(reference.best(predicted))
        found.append(tokens[len(ask.tokens) :][: ask.wanted])
    return found


@BOTH
@pytest.mark.parametrize("kind", ["eagle", "mtp"])
@pytest.mark.parametrize("long", [False, True], ids=["six requests", "longer than the room"])
def test_chains_are_those_of_a_plain_recomputation(
    model: LoadedModel, tmp_path: Path, name: str, kind: str, long: bool
) -> None:
    folder = write_heads(tmp_path / kind, kind, model)
    drafted: list[tuple[Any, Draft]] = []
    make = recording(heads_of(folder, kind, model), drafted)
    # A temperature, so that the tokens vary; the drafter draws with top_k 1, as the reference does.
    params = SamplingParams(max_tokens=150 if long else 24, temperature=1.0, top_k=1, seed=1, frequency_penalty=0.0)
    prompts = PROMPTS[:1] if long else PROMPTS
    _, engine = generate(model, name, params, make, prompts=prompts, draft_tokens=3, dtype="float64")
    reference = Reference(open_heads(folder, model.spec), model)
    for request_id in engine.requests:
        asks = [(ask, draft) for ask, draft in drafted if ask.name == request_id]
        assert len(asks) > 10
        wanted = expected_drafts(kind, reference, [ask for ask, _ in asks])
        assert [list(draft.token_ids) for _, draft in asks] == wanted
    assert engine.speculator is not None
    contexts = engine.speculator.drafter.contexts  # type: ignore[attr-defined]
    assert sorted(contexts._free) == list(range(1, contexts._num_blocks)), "blocks of ended requests come back"


@BOTH
def test_medusa_drafts_what_its_heads_say(model: LoadedModel, tmp_path: Path, name: str) -> None:
    folder = write_heads(tmp_path / "medusa", "medusa", model)
    drafted: list[tuple[Any, Draft]] = []
    make = recording(heads_of(folder, "medusa", model), drafted)
    generate(model, name, SamplingParams(max_tokens=12, temperature=0), make, draft_tokens=5, dtype="float64")
    files = open_heads(folder, model.spec)
    embed = model.weights.read("embed").astype(np.float64)
    assert len(drafted) > 20
    for ask, draft in drafted:
        f = ask.hidden[-1]
        levels = []
        for k in range(DEPTH):
            gate = files.read(f"blocks.{k}.weight").astype(np.float64) @ f
            logits = embed @ (f + gate / (1 + np.exp(-gate)))
            chances = np.exp(logits - logits.max())
            levels.append(chances / chances.sum())
        paths = [tuple(draft.path(node)) for node in range(len(draft.token_ids))]
        scores = [np.prod([levels[i][token] for i, token in enumerate(path)]) for path in paths]
        # No path that was left out is likelier than one that was taken, of those that its four best allow.
        best = [np.argsort(-level)[:4] for level in levels[: ask.wanted]]
        others = [
            np.prod([levels[i][token] for i, token in enumerate(path)])
            for depth in range(1, len(best) + 1)
            for path in product(*best[:depth])
            if path not in paths
        ]
        assert len(set(paths)) == len(paths)
        if others:
            assert min(scores) >= max(others) * (1 - 1e-9)


@given(
    st.lists(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 12),
)
def test_a_tree_has_the_likeliest_paths(chances: list[list[float]], num_tokens: int) -> None:
    levels = [
        [(10 * depth + rank, chance) for rank, chance in enumerate(sorted(level, reverse=True))]
        for depth, level in enumerate(chances)
    ]
    draft = likeliest_tree(levels, num_tokens)
    value = {token: chance for level in levels for token, chance in level}
    paths = [draft.path(node) for node in range(len(draft.token_ids))]
    found = sorted((float(np.prod([value[token] for token in path])) for path in paths), reverse=True)
    everything = [path for depth in range(1, len(levels) + 1) for path in product(*levels[:depth])]
    wanted = sorted((float(np.prod([chance for _, chance in path])) for path in everything), reverse=True)
    assert found == pytest.approx(wanted[:num_tokens])
    assert len({tuple(path) for path in paths}) == len(paths)
    assert draft.parents is not None
    first = path_to(draft.parents, next(n for n in reversed(range(len(found))) if draft.path(n) == best_path(draft)))
    assert first == list(range(len(first))), "the first path needs no moving"
    assert draft.parents[0] == ROOT


def best_path(draft: Draft) -> list[int]:
    """Down from the root by each token's first child."""
    node, path = ROOT, []
    assert draft.parents is not None
    while node in draft.parents:
        node = draft.parents.index(node)
        path.append(draft.token_ids[node])
    return path


# --- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "hydra"}, "of kind 'hydra'"),
        ({"depth": 0}, "0 deep heads"),
        ({"depth": "3"}, "depth is '3', a value of type int"),
        ({"target": None}, "target is None"),
        ({"depth": 4}, "missing or left over: blocks.3.weight"),
        ({"kind": "eagle"}, "missing or left over"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_folder_that_does_not_fit_is_named(
    model: LoadedModel, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    folder = write_heads(tmp_path / "heads", "medusa", model, config)
    with pytest.raises(LoadError, match=message):
        open_heads(folder, model.spec)


def test_heads_of_another_size_are_refused(model: LoadedModel, tmp_path: Path) -> None:
    folder = write_heads(tmp_path / "heads", "mtp", model)
    other = random_model(tmp_path / "other", hidden_size=40)
    with pytest.raises(LoadError, match="the target's sizes need"):
        open_heads(folder, other.spec)
