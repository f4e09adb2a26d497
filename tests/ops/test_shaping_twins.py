"""Transforms and log-probabilities of both libraries against the plain-Python reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.core.sampling import SamplingParams, sample
from minillm.core.sampling.logprobs import token_logprobs
from minillm.core.sampling.shaping import Transform
from minillm.ops import numpy_sampling, torch_sampling

LIBRARIES = pytest.mark.parametrize("library", [numpy_sampling, torch_sampling])


def as_array(library: Any, logits: np.ndarray) -> Any:
    return torch.from_numpy(logits.copy()) if library is torch_sampling else logits.copy()


@st.composite
def transforms(draw: st.DrawFn, vocab: int) -> Transform:
    ids = st.integers(0, vocab - 1)
    allowed = draw(st.none() | st.frozensets(ids, min_size=1))
    return Transform(
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 1.3, 3.0])),
        prompt_ids=draw(st.frozensets(ids)),
        output_counts=draw(st.dictionaries(ids, st.integers(1, 5))),
        frequency_penalty=draw(st.sampled_from([0.0, -1.0, 0.7])),
        presence_penalty=draw(st.sampled_from([0.0, -2.0, 1.5])),
        bias=draw(st.dictionaries(ids, st.floats(-100, 100))),
        banned=draw(st.frozensets(ids, max_size=vocab // 2)),
        allowed=None if allowed is None else sum(1 << i for i in allowed),
    )


@LIBRARIES
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_shaped_rows_draw_as_the_reference(library: Any, data: st.DataObject) -> None:
    vocab = data.draw(st.sampled_from([1, 3, 8, 9, 300]), "vocab")
    rows = data.draw(st.integers(1, 4), "rows")
    by_row = data.draw(st.dictionaries(st.integers(0, rows - 1), transforms(vocab)), "transforms")
    params = [SamplingParams(temperature=data.draw(st.sampled_from([0.0, 0.9]))) for _ in range(rows)]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    logits = rng.normal(0, 2, (rows, vocab)).astype(np.float32)
    uniforms = [float(u) for u in rng.random(rows)]
    try:
        wanted = [sample(logits[r].tolist(), params[r], uniforms[r], by_row.get(r)) for r in range(rows)]
    except ValueError:  # a row of which nothing may be drawn
        with pytest.raises(ValueError, match="ban every token"):
            library.sample(as_array(library, logits), params, uniforms, by_row)
        return
    given_logits = as_array(library, logits)
    assert library.sample(given_logits, params, uniforms, by_row) == wanted
    assert np.array_equal(np.asarray(given_logits), logits), "the logits themselves are not changed"


@LIBRARIES
def test_a_mask_of_ids_outside_the_vocabulary_is_refused(library: Any) -> None:
    logits = as_array(library, np.zeros((1, 17), np.float32))
    with pytest.raises(ValueError, match="a mask allows id 17, the vocabulary has 17 ids"):
        library.sample(logits, [SamplingParams()], [0.5], {0: Transform(allowed=1 << 17)})


@LIBRARIES
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_log_probabilities_equal_the_reference(library: Any, data: st.DataObject) -> None:
    vocab = data.draw(st.sampled_from([1, 5, 300]), "vocab")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    count = data.draw(st.sampled_from([5, 70]), "rows of logits")
    logits = rng.normal(0, 3, (count, vocab)).astype(np.float32)
    if data.draw(st.booleans(), "ties"):
        logits = np.round(logits)
    if data.draw(st.booleans(), "impossible"):
        logits[:, 1::2] = -np.inf
    rows = rng.permutation(count)[: data.draw(st.integers(1, count), "wanted")].tolist()
    tokens = rng.integers(0, vocab, len(rows)).tolist()
    num_top = rng.integers(0, vocab + 2, len(rows)).tolist()
    found = library.logprobs(as_array(library, logits), rows, tokens, num_top)
    for row, token, k, one in zip(rows, tokens, num_top, found, strict=True):
        wanted = token_logprobs(logits[row].tolist(), token, k)
        assert (one.token_id, one.rank) == (token, wanted.rank)
        assert one.logprob == pytest.approx(wanted.logprob, rel=1e-12, abs=1e-12)
        assert [i for i, _ in one.top] == [i for i, _ in wanted.top]
        assert [p for _, p in one.top] == pytest.approx([p for _, p in wanted.top], rel=1e-12, abs=1e-12)
        assert all(type(x) is int for x in (one.token_id, one.rank, *(i for i, _ in one.top)))
