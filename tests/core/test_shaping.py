"""The reference of transforms and log-probabilities, by numbers worked out by hand."""

import math

import pytest

from minillm.core.sampling import SamplingParams, distribution
from minillm.core.sampling.logprobs import token_logprobs
from minillm.core.sampling.shaping import Transform, shaped


def test_the_repetition_penalty_divides_above_zero_and_multiplies_below_once_for_prompt_and_output() -> None:
    transform = Transform(repetition_penalty=2.0, prompt_ids={0, 1}, output_counts={1: 7, 2: 1})
    assert shaped([4.0, -4.0, 1.0, 3.0], transform) == [2.0, -8.0, 0.5, 3.0]


def test_frequency_counts_and_presence_does_not_both_of_the_output_alone() -> None:
    transform = Transform(frequency_penalty=0.5, presence_penalty=0.25, prompt_ids={0}, output_counts={1: 3, 2: 1})
    assert shaped([1.0, 1.0, 1.0, 1.0], transform) == [1.0, -0.75, 0.25, 1.0]


def test_penalties_come_before_the_bias_and_bans_come_last() -> None:
    transform = Transform(
        repetition_penalty=2.0,
        output_counts={0: 1, 1: 1},
        presence_penalty=1.0,
        bias={0: 10.0, 1: 100.0, 2: -1.0},
        banned={1},
        allowed=0b0111,
    )
    assert shaped([8.0, 0.0, 0.0, 50.0], transform) == [13.0, -math.inf, -1.0, -math.inf]


def test_a_mask_has_the_lowest_id_in_its_lowest_bit() -> None:
    kept = shaped([0.0] * 10, Transform(allowed=0b10_1000_0001))
    assert [i for i, x in enumerate(kept) if x == 0] == [0, 7, 9]
    with pytest.raises(ValueError, match="a mask allows id 10, the vocabulary has 10 ids"):
        shaped([0.0] * 10, Transform(allowed=1 << 10))


def test_the_transform_comes_before_the_temperature() -> None:
    found = dict(distribution([0.0, 0.0], SamplingParams(temperature=2.0), Transform(bias={0: 2.0})))
    assert found[0] / found[1] == pytest.approx(math.e)


def test_log_probabilities_are_of_the_raw_logits() -> None:
    logits = [math.log(p) for p in (0.2, 0.5, 0.2, 0.1)]
    found = token_logprobs(logits, 2, 3)
    assert (found.token_id, found.rank) == (2, 3)  # of the two with 0.2 the lower id comes first
    assert found.logprob == pytest.approx(math.log(0.2))
    assert [i for i, _ in found.top] == [1, 0, 2]
    assert math.exp(found.top[0][1]) == pytest.approx(0.5)
    assert token_logprobs([0.0, -math.inf], 1, 2) == (1, -math.inf, 2, ((0, 0.0),))
