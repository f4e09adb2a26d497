"""The two ways to verify a draft, enumerated exactly over a vocabulary of five tokens (I28)."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from enumeration import PARTS, VOCAB, check_certain, check_rule, outcomes
from hypothesis import given
from hypothesis import strategies as st

from minillm.core.sampling import SamplingParams, distribution, uniform
from minillm.speculate.accept import accepted_path, draws_that_count
from minillm.speculate.draft import NO_DRAFT, Draft
from minillm.speculate.rejection import Proposal, coin, draft_seed, draw_against
from minillm.speculate.tree import ROOT


@st.composite
def distributions(draw: st.DrawFn) -> list[int]:
    """``[V]`` parts of 1 / PARTS each."""
    cuts = sorted(draw(st.lists(st.integers(0, PARTS), min_size=VOCAB - 1, max_size=VOCAB - 1)))
    return [b - a for a, b in zip([0, *cuts], [*cuts, PARTS], strict=True)]


@given(distributions(), distributions())
def test_the_rejection_rule_yields_the_target_distribution(p: list[int], q: list[int]) -> None:
    check_rule(p, q)


@given(distributions(), st.integers(0, VOCAB - 1))
def test_a_draft_without_probabilities_is_a_proposal_that_is_certain(p: list[int], drafted: int) -> None:
    check_certain(p, drafted)


def test_the_residual_is_scaled_to_one() -> None:
    """p = (1, 2, 1) / 4 against q = (3, 1, 0) / 4: a drafted 0 is kept once in 3, else (0, 1, 1) / 2 is left."""
    found = outcomes([1, 2, 1, 0, 0], 0, [3 / 4, 1 / 4, 0.0, 0.0, 0.0])
    assert found == {0: Fraction(1, 3), 1: Fraction(1, 3), 2: Fraction(1, 3), 3: Fraction(0), 4: Fraction(0)}


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=3),
        SamplingParams(temperature=1.3, top_p=0.8),
        SamplingParams(temperature=1.0, top_k=4, top_p=0.9, min_p=0.1),
        SamplingParams(temperature=0.0),
    ],
)
def test_with_transforms_on_both_sides(params: SamplingParams) -> None:
    """The rule in closed form: the two numbers' shares of [0, 1) are found by bisection, not by a grid."""
    target = distribution([0.3, 1.9, -0.4, 1.1, 0.2], params)
    proposed = dict(distribution([1.2, 0.1, 0.4, 1.0, -2.0], params))
    row = [proposed.get(i, 0.0) for i in range(VOCAB)]
    total = dict.fromkeys(range(VOCAB), 0.0)
    for drafted, chance in proposed.items():
        kept = _share(lambda number, d=drafted: draw_against(target, Proposal(d, row, number), 0.5) == d)  # type: ignore[misc]
        total[drafted] += chance * kept
        if kept < 1:
            reached = 0.0
            for token_id in range(VOCAB):
                below = _share(
                    lambda draw, d=drafted, t=token_id: (  # type: ignore[misc]
                        draw_against(target, Proposal(d, row, math.nextafter(1.0, 0.0)), draw) <= t
                    )
                )
                total[token_id] += chance * (1 - kept) * (below - reached)
                reached = below
    assert total == pytest.approx({i: dict(target).get(i, 0.0) for i in range(VOCAB)}, abs=1e-9)


def _share(is_below: object) -> float:
    """The x in [0, 1] up to which ``is_below`` holds."""
    low, high = 0.0, 1.0
    assert callable(is_below)
    if is_below(math.nextafter(1.0, 0.0)):
        return 1.0
    if not is_below(0.0):
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low


def test_equal_distributions_never_reject_and_rounding_yields_no_banned_token() -> None:
    almost_one = math.nextafter(1.0, 0.0)
    target = [(0, 0.75), (1, 0.25)]
    for drafted in (0, 1):
        assert draw_against(target, Proposal(drafted, [0.75, 0.25, 0.0], almost_one), almost_one) == drafted
    # The drafter's row gives token 2 what rounding left over: the target bans it, and the residual is empty.
    assert draw_against(target, Proposal(2, [0.75, 0.25, 1e-17], 0.5), 0.5) == 0


def test_the_three_numbers_of_an_output_differ() -> None:
    seen = {uniform(s, i) for s in (7, draft_seed(7)) for i in range(100)} | {coin(7, i) for i in range(100)}
    assert len(seen) == 300


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_a_chain_is_accepted_up_to_the_first_difference(drafted: list[int], draws: list[int]) -> None:
    draws = draws[: len(drafted) + 1]
    equal = next((i for i, token in enumerate(drafted) if token != draws[i]), len(drafted))
    for draft in (Draft(drafted), Draft(drafted, list(range(ROOT, len(drafted) - 1)))):
        path = accepted_path(draft, draws)
        assert path == list(range(equal))
        assert [draws[i] for i in draws_that_count(path)] == draws[: equal + 1]
    assert draws_that_count(accepted_path(NO_DRAFT, [5])) == [0]


@given(st.data())
def test_a_tree_is_walked_as_its_paths_are(data: st.DataObject) -> None:
    """A target that is a function of the prefix: what comes out of the walk is what it says, token by token."""
    size = data.draw(st.integers(0, 8))
    parents = [data.draw(st.integers(ROOT, node - 1)) for node in range(size)]
    draft = Draft([data.draw(st.integers(0, 1)) for _ in range(size)], parents)
    table = {}

    def target(prefix: tuple[int, ...]) -> int:
        if prefix not in table:
            table[prefix] = data.draw(st.integers(0, 1))
        return table[prefix]

    prefixes: list[tuple[int, ...]] = []
    for node, parent in enumerate(parents):
        prefixes.append((*(prefixes[parent] if parent != ROOT else ()), draft.token_ids[node]))
    draws = [target(()), *(target(prefix) for prefix in prefixes)]
    path = accepted_path(draft, draws)
    tokens = [draws[i] for i in draws_that_count(path)]
    assert [tokens[i] for i in range(len(path))] == [draft.token_ids[node] for node in path]
    for i, token in enumerate(tokens):
        assert token == target(tuple(tokens[:i]))
    # No longer path was there to be accepted, but for one behind the twin of a accepted token.
    if len(set(zip(parents, draft.token_ids, strict=True))) == size:
        assert tuple(tokens) not in prefixes
