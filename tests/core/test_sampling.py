"""The reference sampler against brute force, and the pitfalls of samplers (rows 56, 59, 60, 65, 66)."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling_reference import brute_force, random_samplings

from minillm.core.sampling import SamplingParams, derived_seed, distribution, sample, uniform

LOGITS = st.lists(st.floats(-8, 8, allow_nan=False) | st.sampled_from([0.0, 1.0, -math.inf]), min_size=1, max_size=8)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, 9),
    top_p=st.sampled_from([1e-9, 0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    typical_p=st.sampled_from([1.0, 1.0, 0.87, 0.21]),
)


def usable(logits: list[float]) -> bool:
    return max(logits) > -math.inf


@given(LOGITS.filter(usable), PARAMS)
def test_distribution_equals_brute_force(logits, params):
    got = distribution(logits, params)
    assert dict(got) == pytest.approx(brute_force(logits, params), rel=1e-9)
    assert got == sorted(got, key=lambda e: (-e[1], e[0]))
    assert math.fsum(p for _, p in got) == pytest.approx(1)


def test_shaped_logits_and_cuts_equal_their_definitions():
    random_samplings(range(500))


def test_row_56_nucleus_keeps_the_first_token_even_above_top_p():
    assert distribution([5.0, 0.0, 0.0], SamplingParams(top_p=0.1)) == [(0, 1.0)]


def test_row_56_nucleus_sums_probabilities_not_logarithms():
    logits = [math.log(p) for p in (0.5, 0.25, 0.125, 0.125)]
    assert [i for i, _ in distribution(logits, SamplingParams(top_p=0.6))] == [0, 1]


def test_row_59_top_p_acts_on_what_top_k_left_renormalized():
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    # After top_k=2 the head has 4/7 = 0.571: enough for 0.55, which it is not of the whole vocabulary.
    assert [i for i, _ in distribution(logits, SamplingParams(top_k=2, top_p=0.55))] == [0]


def test_row_59_min_p_acts_on_tempered_probabilities():
    logits = [math.log(0.8), math.log(0.2)]
    assert len(distribution(logits, SamplingParams(min_p=0.3))) == 1
    assert len(distribution(logits, SamplingParams(min_p=0.3, temperature=2.0))) == 2


def test_typical_sampling_may_drop_the_most_likely_token():
    """Meister et al., 2023: a token far more certain than the entropy says is not typical."""
    logits = [math.log(p) for p in (0.4, 0.15, 0.15, 0.15, 0.15)]
    entropy = -0.4 * math.log(0.4) - 0.6 * math.log(0.15)
    assert abs(-math.log(0.4) - entropy) > abs(-math.log(0.15) - entropy)
    assert dict(distribution(logits, SamplingParams(typical_p=0.5))) == pytest.approx(dict.fromkeys((1, 2, 3, 4), 0.25))
    assert [i for i, _ in distribution(logits, SamplingParams(typical_p=0.1))] == [1]


def test_typical_comes_after_every_other_cut():
    logits = [math.log(p) for p in (0.5, 0.25, 0.125, 0.125)]
    # Of what top-k leaves, (2/3, 1/3), the first is nearer to the entropy of 0.637; of all four it is the second.
    assert [i for i, _ in distribution(logits, SamplingParams(top_k=2, typical_p=0.2))] == [0]
    assert [i for i, _ in distribution(logits, SamplingParams(typical_p=0.2))] == [1]


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
def test_row_60_temperature_zero_and_nearly_zero_are_argmax_with_the_lowest_id(u):
    assert sample([1.0, 3.0, 3.0], SamplingParams(temperature=0), u) == 1
    assert sample([1.0, 3.0, 2.0], SamplingParams(temperature=5e-324), u) == 1


def test_row_65_different_requests_draw_differently():
    assert len({sample([0.0] * 8, SamplingParams(), uniform(seed, 0)) for seed in range(16)}) > 1


def test_row_66_draws_of_one_seed_differ_and_depend_on_nothing_else():
    draws = [uniform(7, i) for i in range(1000)]
    assert len(set(draws)) == 1000
    assert draws == [uniform(7, i) for i in range(1000)]


def test_uniform_is_uniform_over_indices_and_over_seeds():
    for draws in ([uniform(3, i) for i in range(20_000)], [uniform(i, 3) for i in range(20_000)]):
        counts = Counter(int(u * 16) for u in draws)
        # Chi-square with 15 degrees of freedom: 44.3 is passed once in 10,000 draws; these are fixed.
        assert sum((counts[b] - 1250) ** 2 / 1250 for b in range(16)) < 44.3
        assert all(0 <= u < 1 for u in draws)


def test_neighbouring_seeds_do_not_share_a_shifted_stream():
    streams = [[uniform(seed, i) for i in range(64)] for seed in range(32)]
    assert len({u for stream in streams for u in stream}) == 32 * 64


@given(LOGITS.filter(usable), PARAMS, st.floats(0, 1, exclude_max=True))
def test_sample_inverts_the_running_sum(logits, params, u):
    entries = distribution(logits, params)
    chosen = sample(logits, params, u)
    before = sum(p for i, p in entries[: [i for i, _ in entries].index(chosen)])
    assert before <= u + 1e-12
    assert u < before + dict(entries)[chosen] + 1e-12


def test_rounding_leaves_no_gap_at_the_end() -> None:
    """Ten probabilities of 0.1 add up to less than the largest number below 1."""
    last = 1 - 2**-53
    assert sum([0.1] * 10) <= last
    assert sample([0.0] * 10, SamplingParams(), last) == 9
    # Seven of 1/7 stay further below, so the running sum never reaches this top_p: all are kept.
    assert sum([1 / 7] * 7) < last
    assert len(distribution([0.0] * 7, SamplingParams(top_p=last))) == 7


@pytest.mark.parametrize("logits", [[math.nan, 0.0], [0.0, math.nan], [math.inf, 0.0], [-math.inf], []])
def test_broken_logits_are_an_error(logits):
    with pytest.raises(ValueError, match="NaN"):
        distribution(logits, SamplingParams())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": -0.1}, ["temperature", "-0.1", "at least 0", "greedy"]),
        ({"temperature": math.nan}, ["temperature", "nan", "finite"]),
        ({"temperature": math.inf}, ["temperature", "inf"]),
        ({"temperature": True}, ["temperature", "True"]),
        ({"temperature": "1"}, ["temperature", "'1'"]),
        ({"top_p": 0.0}, ["top_p", "above 0"]),
        ({"top_p": 1.01}, ["top_p", "1.01", "0 to 1"]),
        ({"min_p": -1.0}, ["min_p", "-1"]),
        ({"top_k": -1}, ["top_k", "-1", "at least 0"]),
        ({"top_k": 2.5}, ["top_k", "2.5"]),
        ({"typical_p": 0}, ["typical_p", "above 0"]),
        ({"typical_p": 2.0}, ["typical_p", "2.0", "0 to 1"]),
        ({"repetition_penalty": 0.0}, ["repetition_penalty", "from 0.01 to 100", "use 1"]),
        ({"repetition_penalty": 1e-308}, ["repetition_penalty", "1e-308", "from 0.01 to 100"]),
        ({"repetition_penalty": 1e308}, ["repetition_penalty", "1e+308", "from 0.01 to 100"]),
        ({"repetition_penalty": -1.0}, ["repetition_penalty", "-1"]),
        ({"presence_penalty": 2.5}, ["presence_penalty", "2.5", "-2 to 2"]),
        ({"frequency_penalty": -3}, ["frequency_penalty", "-3", "-2 to 2"]),
        ({"logit_bias": {5: 101.0}}, ["logit_bias of 5", "101", "-100 to 100"]),
        ({"logit_bias": {-5: 1.0}}, ["logit_bias id", "-5"]),
        ({"logit_bias": {5: "x"}}, ["logit_bias of 5", "'x'"]),
        ({"logit_bias": ((5, 1.0), (5, 2.0))}, ["logit_bias", "5 twice"]),
        ({"logit_bias": (5, 6)}, ["logit_bias", "mapping"]),
        ({"logit_bias": "5"}, ["logit_bias", "tuple"]),
        ({"bad_words": "x"}, ["bad_words", "tuple"]),
        ({"bad_words": (5,)}, ["bad_words", "tuple of token ids"]),
        ({"bad_words": ("",)}, ["bad_words", "''"]),
        ({"bad_words": ((),)}, ["bad_words", "()"]),
        ({"bad_words": ((-1,),)}, ["bad_words id", "-1"]),
        ({"logprobs": -1}, ["logprobs", "-1", "at least 0", "None"]),
        ({"prompt_logprobs": 1.5}, ["prompt_logprobs", "1.5"]),
        ({"n": 0}, ["n", "0", "at least one output"]),
        ({"n": 3, "best_of": 2}, ["best_of", "2", "n 3"]),
        ({"n": 2, "temperature": 0}, ["2 samples at temperature 0", "beam_width"]),
        ({"beam_width": 0, "temperature": 0}, ["beam_width", "0", "at least 1"]),
        ({"beam_width": 2, "n": 3, "temperature": 0}, ["n is 3", "beam_width 2"]),
        ({"beam_width": 2}, ["temperature", "1.0", "set it to 0"]),
        ({"beam_width": 2, "temperature": 0, "top_k": 5}, ["top_k", "5", "leave it out"]),
        ({"beam_width": 2, "temperature": 0, "stop": ("x",)}, ["stop", "beam search"]),
        ({"beam_width": 2, "temperature": 0, "best_of": 2}, ["best_of", "beam search"]),
        ({"length_penalty": 2.0}, ["length_penalty", "2.0", "beam_width"]),
        ({"length_penalty": 300.0, "beam_width": 2, "temperature": 0}, ["length_penalty", "300", "-10 to 10"]),
        ({"length_penalty": math.nan, "beam_width": 2, "temperature": 0}, ["length_penalty", "nan", "finite"]),
        ({"max_tokens": 0}, ["max_tokens", "0", "at least 1"]),
        ({"max_tokens": False}, ["max_tokens", "False"]),
        ({"min_tokens": 17}, ["min_tokens", "17", "16"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"seed": 2**64}, ["seed", "2**64"]),
        ({"stop": "x"}, ["stop", "tuple"]),
        ({"stop": ("",)}, ["stop", "at least one character"]),
        ({"stop": (3,)}, ["stop", "3"]),
        ({"stop_token_ids": (-1,)}, ["stop_token_ids", "-1"]),
        ({"stop_token_ids": "12"}, ["stop_token_ids", "tuple"]),
        ({"ignore_eos": 1}, ["ignore_eos", "1"]),
    ],
)
def test_invalid_parameters_name_value_limit_and_way_out(fields, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        SamplingParams(**fields)
    assert all(word in str(caught.value) for word in words)


def test_lists_and_mappings_become_tuples():
    given = SamplingParams(stop=["a"], stop_token_ids=[1], logit_bias={3: -1.0}, bad_words=["x", [1, 2]])
    kept = SamplingParams(stop=("a",), stop_token_ids=(1,), logit_bias=((3, -1.0),), bad_words=("x", (1, 2)))
    assert given == kept
    assert hash(given) == hash(kept)


def test_parameters_are_plain_unless_they_shape_or_want_something():
    cuts = {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.5, "seed": 1, "stop": ("x",)}
    assert SamplingParams(**cuts, stop_token_ids=(1,), max_tokens=9, ignore_eos=True, n=2).is_plain
    for fields in (
        *({"min_tokens": 1}, {"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": 0.1}),
        *({"logit_bias": {1: 1.0}}, {"bad_words": ("x",)}, {"logprobs": 0}, {"prompt_logprobs": 0}),
        *({"best_of": 2}, {"beam_width": 1, "temperature": 0}),
    ):
        assert not SamplingParams(**fields).is_plain, fields


def test_the_first_of_several_samples_draws_as_if_alone():
    assert derived_seed(7, 0) == 7
    seeds = {derived_seed(seed, sample) for seed in range(100) for sample in range(100)}
    assert len(seeds) == 10_000
    streams = [[uniform(derived_seed(7, sample), i) for i in range(64)] for sample in range(32)]
    assert len({u for stream in streams for u in stream}) == 32 * 64
