"""Distributions and the rejection rule of both libraries against the plain-Python reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from enumeration import PARTS, VOCAB, midpoints, ranked
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.core.sampling import SamplingParams, distribution
from minillm.core.sampling.shaping import Transform
from minillm.ops import numpy_rejection, numpy_sampling, torch_rejection, torch_sampling
from minillm.speculate.rejection import Proposal, draw_against

SAMPLING = pytest.mark.parametrize("library", [numpy_sampling, torch_sampling])
RULE = pytest.mark.parametrize("library", [numpy_rejection, torch_rejection])


def as_array(library: Any, values: np.ndarray) -> Any:
    return torch.from_numpy(values.copy()) if library in (torch_sampling, torch_rejection) else values.copy()


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 500]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    typical_p=st.sampled_from([1.0, 0.8]),
)


@SAMPLING
@settings(max_examples=150, deadline=None)
@given(st.lists(PARAMS, min_size=1, max_size=4), st.integers(0, 2**32 - 1), st.sampled_from([1, 5, 300]), st.booleans())
def test_distributions_equal_the_reference(
    library: Any, params: list[SamplingParams], seed: int, vocab: int, ties: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (len(params), vocab)).astype(np.float32)
    logits = np.round(logits) if ties else logits
    shape = Transform(bias={0: 1.5}, banned={vocab - 1} if vocab > 1 else ())
    transforms = {0: shape}
    found = np.asarray(library.distributions(as_array(library, logits), params, transforms))
    assert found.dtype == np.float64
    for row, p in enumerate(params):
        wanted = dict(distribution(logits[row].tolist(), p, transforms.get(row)))
        np.testing.assert_allclose(found[row], [wanted.get(i, 0.0) for i in range(vocab)], atol=1e-12)


@SAMPLING
def test_a_row_without_a_distribution_is_named(library: Any) -> None:
    logits = np.zeros((3, 4), np.float32)
    logits[1, 2] = np.nan
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="row 1: logits hold NaN"):
            library.distributions(as_array(library, logits), [SamplingParams(temperature=temperature)] * 3)


@st.composite
def parts(draw: st.DrawFn) -> list[int]:
    cuts = sorted(draw(st.lists(st.integers(0, PARTS), min_size=VOCAB - 1, max_size=VOCAB - 1)))
    return [b - a for a, b in zip([0, *cuts], [*cuts, PARTS], strict=True)]


@RULE
@settings(max_examples=60, deadline=None)
@given(parts(), parts(), st.booleans())
def test_every_cell_of_the_two_numbers_draws_as_the_reference(
    library: Any, p: list[int], q: list[int], certain: bool
) -> None:
    row = None if certain else [n / PARTS for n in q]
    drafted = [i for i in range(VOCAB) if certain or q[i]]
    cases = [(d, coin, draw) for d in drafted for coin in midpoints() for draw in midpoints()]
    target = as_array(library, np.tile(np.array(p) / PARTS, (len(cases), 1)))
    found = library.draw_against(target, [Proposal(d, row, c) for d, c, _ in cases], [u for _, _, u in cases])
    assert found == [draw_against(ranked(p), Proposal(d, row, c), u) for d, c, u in cases]


@RULE
def test_rows_of_different_kinds_in_one_call(library: Any) -> None:
    rng = np.random.default_rng(0)
    target = rng.dirichlet(np.ones(300), 40)
    rows = rng.dirichlet(np.ones(300), 40)
    proposals, uniforms = [], rng.random(40).tolist()
    for i in range(40):
        kind = (None, rows[i].tolist(), rows[i])[i % 3]
        proposals.append(Proposal(int(rng.integers(300)), kind, float(rng.random())))
    found = library.draw_against(as_array(library, target), proposals, uniforms)
    for i in range(40):
        entries = sorted(enumerate(target[i].tolist()), key=lambda e: (-e[1], e[0]))
        assert found[i] == draw_against(entries, proposals[i], uniforms[i])
    kept = sum(token == p.token_id for token, p in zip(found, proposals, strict=True))
    assert 0 < kept < 40


@RULE
def test_rounding_yields_no_banned_token(library: Any) -> None:
    target = as_array(library, np.array([[0.75, 0.25, 0.0]]))
    assert library.draw_against(target, [Proposal(2, [0.75, 0.25, 1e-17], 0.5)], [0.5]) == [0]
    almost = float(np.nextafter(1.0, 0.0))
    assert library.draw_against(target, [Proposal(1, [0.75, 0.25, 0.0], almost)], [almost]) == [1]
    assert library.draw_against(target, [Proposal(0, [1.0, 0.0, 0.0], almost)], [almost]) == [1]


@RULE
@pytest.mark.parametrize("row", [[0.5, 0.1, 0.1], [1.2, -0.2, 0.0], [float("nan"), 0.5, 0.5]])
def test_what_is_no_distribution_is_refused(library: Any, row: list[float]) -> None:
    good = Proposal(0, [1.0, 0.0, 0.0], 0.5)
    target = as_array(library, np.full((2, 3), 1 / 3))
    with pytest.raises(ValueError, match="probabilities for token 1 sum to"):
        library.draw_against(target, [good, Proposal(1, row, 0.5)], [0.5, 0.5])
