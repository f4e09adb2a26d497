"""Both vectorized samplers against the plain-Python reference of `minillm.core.sampling`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.core.sampling import SamplingParams, distribution
from minillm.core.sampling import sample as reference
from minillm.ops import numpy_sampling, torch_sampling

# Below this distance from a boundary, rounding in another order of summation may decide.
EDGE = 1e-9


def by_numpy(logits: Any, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    return numpy_sampling.sample(logits, params, uniforms)


def by_torch(logits: Any, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    return torch_sampling.sample(torch.from_numpy(logits), params, uniforms)


TWINS = pytest.mark.parametrize("twin", [by_numpy, by_torch])

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 3.0, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 64, 300, 10_000]),
    top_p=st.sampled_from([1.0, 0.999999, 0.95, 0.5, 1e-9]),
    min_p=st.sampled_from([0.0, 1e-6, 0.05, 0.3, 1.0]),
    typical_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.1]),
)


def on_an_edge(logits: Any, params: SamplingParams, uniform: float) -> bool:
    """Whether a cut or the draw falls within rounding of a running sum, min-p's floor, or of typicality."""
    if params.temperature == 0:
        return False
    plain = SamplingParams(temperature=params.temperature, top_k=params.top_k)
    ranked = np.array([p for _, p in distribution(logits.tolist(), plain)])
    final = np.cumsum([p for _, p in distribution(logits.tolist(), params)])
    near_p = np.abs(np.cumsum(ranked) - params.top_p).min() < EDGE and params.top_p < 1
    near_floor = params.min_p > 0 and (np.abs(ranked / ranked[0] - params.min_p)[1:] < EDGE).any()
    if params.typical_p < 1 and near_typical(logits, params):
        return True
    near_draw = np.abs(final[:-1] - uniform).min(initial=1) < EDGE
    return bool(near_p or near_floor or near_draw)


def near_typical(logits: Any, params: SamplingParams) -> bool:
    before = np.array([p for _, p in distribution(logits.tolist(), replace(params, typical_p=1.0))])
    distance = np.abs(-np.log(before) + before @ np.log(before))
    order = np.argsort(distance, kind="stable")
    # Equal probabilities are equally far exactly; unequal ones, on both sides of the entropy, by rounding only.
    tied = (np.diff(distance[order]) < EDGE) & (np.diff(before[order]) != 0)
    return bool(tied.any() or np.abs(np.cumsum(before[order]) - params.typical_p).min() < EDGE)


@TWINS
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_mixed_batch_equals_the_reference(twin: Any, data: st.DataObject) -> None:
    vocab = data.draw(st.sampled_from([1, 2, 7, 64, 65, 257, 1000]), "vocab")
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    spread = data.draw(st.sampled_from([0.0, 0.01, 1.0, 10.0]), "spread")
    params = data.draw(st.lists(PARAMS, min_size=1, max_size=4), "params")
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (len(params), vocab)).astype(np.float32)
    if data.draw(st.booleans(), "ties"):
        logits = np.round(logits)
    if data.draw(st.booleans(), "bans") and vocab > 1:
        logits[:, rng.integers(0, vocab, vocab // 2)] = -np.inf
        logits[:, rng.integers(0, vocab)] = 0
    uniforms = [float(u) for u in rng.random(len(params))]
    found = twin(logits, params, uniforms)
    for row, (p, u) in enumerate(zip(params, uniforms, strict=True)):
        if not on_an_edge(logits[row], p, u):
            assert found[row] == reference(logits[row].tolist(), p, u), (row, p, u)


@TWINS
@pytest.mark.parametrize("top_k", [0, 1, 63, 64, 65, 255, 256, 257, 600, 1500])
def test_every_cut_around_the_ranked_heads(twin: Any, top_k: int) -> None:
    """The first heads hold 64 and 256 tokens: a cut before, at and behind their ends."""
    logits = np.random.default_rng(0).normal(0, 1, (1, 1000)).astype(np.float32)
    for top_p in (1.0, 0.9, 0.5):
        for min_p in (0.0, 0.02):
            params = SamplingParams(temperature=0.9, top_k=top_k, top_p=top_p, min_p=min_p)
            wanted = distribution(logits[0].tolist(), params)
            for u in (0.0, 0.33, 0.66, 0.9999):
                assert not on_an_edge(logits[0], params, u)
                assert twin(logits, [params], [u]) == [reference(logits[0].tolist(), params, u)], (params, u)
            assert twin(logits, [params], [1 - 1e-12]) == [wanted[-1][0]]


@TWINS
@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_uniform(twin: Any, uniform: float) -> None:
    logits = np.array([[0.0, 3.0, 1.0, -np.inf, 2.0]], np.float32)
    for params in (SamplingParams(), SamplingParams(top_k=2), SamplingParams(top_p=0.7), SamplingParams(min_p=0.2)):
        assert twin(logits, [params], [uniform]) == [reference(logits[0].tolist(), params, uniform)]


@TWINS
def test_greedy_takes_the_lowest_id_on_a_tie(twin: Any) -> None:
    logits = np.zeros((2, 600), np.float32)
    logits[1, [599, 7, 300]] = 1
    assert twin(logits, [SamplingParams(temperature=0)] * 2, [0.9, 0.9]) == [0, 7]


@TWINS
def test_one_token_above_top_p_is_kept(twin: Any) -> None:
    """A nucleus that sums log-probabilities, or cuts the token that crosses, keeps nothing (tiny-llm, 32)."""
    logits = np.array([[0.0, 20.0, 0.0]], np.float32)
    assert twin(logits, [SamplingParams(top_p=0.5)], [0.999]) == [1]


@TWINS
def test_samples_of_one_row_differ(twin: Any) -> None:
    """One first token, drawn once and copied to all samples, was a bug elsewhere."""
    logits = np.zeros((16, 50), np.float32)
    assert len(set(twin(logits, [SamplingParams()] * 16, [i / 16 for i in range(16)]))) == 16


@TWINS
def test_frequencies_are_the_distribution(twin: Any) -> None:
    """A grid of 2,000 uniforms hits each token as often as its probability says, to within one."""
    rng = np.random.default_rng(3)
    row = rng.normal(0, 2, 40).astype(np.float32)
    params = SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.01)
    count = 2000
    found = twin(np.tile(row, (count, 1)), [params] * count, [(i + 0.5) / count for i in range(count)])
    wanted = dict(distribution(row.tolist(), params))
    assert set(found) <= set(wanted)
    for token, probability in wanted.items():
        assert abs(found.count(token) - probability * count) <= 1


@TWINS
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_an_error_that_names_the_row(twin: Any, bad: float, temperature: float) -> None:
    logits = np.zeros((3, 10), np.float32)
    logits[1, 4] = bad
    with pytest.raises(ValueError, match="row 1: logits hold NaN"):
        twin(logits, [SamplingParams(temperature=temperature)] * 3, [0.5] * 3)


@TWINS
def test_a_row_that_bans_everything_is_an_error(twin: Any) -> None:
    with pytest.raises(ValueError, match="ban every token"):
        twin(np.full((1, 5), -np.inf, np.float32), [SamplingParams()], [0.5])


def test_a_greedy_batch_is_never_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a greedy row needs no order")

    for module, names in ((np, ("sort", "argsort", "partition")), (torch, ("sort", "topk", "argsort"))):
        for name in names:
            monkeypatch.setattr(module, name, forbidden)
    logits = np.random.default_rng(0).normal(size=(4, 1000)).astype(np.float32)
    greedy = [SamplingParams(temperature=0)] * 4
    assert by_numpy(logits, greedy, [0.0] * 4) == by_torch(logits, greedy, [0.0] * 4)


def test_a_peaked_row_sorts_only_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw at 0.5 lies in the first tokens: ranking all 50,000 would be waste."""
    longest = 0
    argsort, torch_sort = np.argsort, torch.sort

    def watched_argsort(values: Any, **options: Any) -> Any:
        nonlocal longest
        longest = max(longest, len(values))
        return argsort(values, **options)

    def watched_sort(values: Any, **options: Any) -> Any:
        nonlocal longest
        longest = max(longest, values.shape[1])
        return torch_sort(values, **options)

    monkeypatch.setattr(np, "argsort", watched_argsort)
    monkeypatch.setattr(torch, "sort", watched_sort)
    logits = np.random.default_rng(0).normal(0, 4, (1, 50_000)).astype(np.float32)
    for twin in (by_numpy, by_torch):
        twin(logits, [SamplingParams(top_p=0.9, temperature=0.7)], [0.5])
    assert 0 < longest <= 256
