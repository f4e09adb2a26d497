"""Tokens and speed-up of speculation: the values of the literature, the sum over outcomes, the expression form."""

from __future__ import annotations

import pytest
from cost_expressions import parameters, value_of
from hypothesis import given
from hypothesis import strategies as st

from minillm import catalog
from minillm.costs import CostError, speculated_tokens, speculative_speedup
from minillm.speculate.adaptive import expected_speedup, expected_tokens

H100 = catalog.accelerator("h100-sxm")


@pytest.mark.parametrize(("acceptance", "length", "tokens"), [(0.6, 5, 2.38), (0.8, 4, 3.36), (0.8, 5, 3.69)])
def test_known_values(acceptance: float, length: int, tokens: float) -> None:
    assert speculated_tokens(acceptance, length) == pytest.approx(tokens, abs=0.005)


def test_the_best_length_for_a_cost() -> None:
    # A draft model at a tenth of the target's time, 80% accepted.
    speedups = {k: speculative_speedup(0.8, k, 0.1) for k in (1, 3, 5, 8)}
    assert max(speedups, key=lambda k: speedups[k]) == 5
    assert speedups[5] == pytest.approx(2.46, abs=0.005)
    assert speculative_speedup(0.8, 4, 0.1) == pytest.approx(2.40, abs=0.005)


@given(acceptance=st.floats(0, 1), length=st.integers(0, 32), draft=st.floats(0, 1))
def test_it_is_what_the_engine_decides_by(acceptance: float, length: int, draft: float) -> None:
    """The closed form, and the sum by which the engine chooses a length."""
    # Next to 1 the closed form divides two small differences.
    assert speculated_tokens(acceptance, length) == pytest.approx(expected_tokens(acceptance, length), rel=1e-4)
    if abs(1 - acceptance) > 1e-6:
        mine = speculative_speedup(acceptance, length, draft)
        assert mine == pytest.approx(expected_speedup(acceptance, length, draft), rel=1e-6)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 1.0])
def test_as_a_browser_expression(acceptance: float) -> None:
    p = parameters(acceptance=acceptance, length=4.0, cost=0.1, batch=8.0, context=2048.0)
    model = catalog.model("llama-3.1-8b")
    verify = model.verify_cost(H100, p["length"], p["batch"], p["context"])
    found = speculative_speedup(p["acceptance"], p["length"], p["cost"], verify)
    given_values = {"acceptance": acceptance, "length": 4.0, "cost": 0.1, "batch": 8.0, "context": 2048.0}
    truth = speculative_speedup(acceptance, 4, 0.1, model.verify_cost(H100, 4, 8, 2048))
    assert value_of(found, **given_values) == pytest.approx(truth)


def test_verifying_is_free_only_while_memory_is_the_limit() -> None:
    model = catalog.model("llama-3.1-8b")
    costs = [model.verify_cost(H100, 4, batch, 512) for batch in (1, 8, 64, 256, 1024)]
    assert costs[0] == pytest.approx(1, abs=0.001)  # 4 more tokens of cache, beside the weights
    assert costs == sorted(costs)
    # Where the plain step is bound by arithmetic already, as many times as there are tokens.
    assert model.verify_cost(H100, 4, 1024, 64) == pytest.approx(5, rel=0.05)
    # Long caches keep the limit at memory, whatever the batch.
    assert model.verify_cost(H100, 4, 1024, 65536) < 1.5


def test_experts_make_verifying_dearer() -> None:
    """More tokens choose more experts, which must be read: less dear in the format in which they are shipped."""
    model = catalog.model("gpt-oss-20b")
    shipped, unpacked = model.verify_cost(H100, 4, 1, 2048), model.verify_cost(H100, 4, 1, 2048, "bf16")
    assert shipped == pytest.approx(1.97, abs=0.005)
    assert unpacked > 2.5
    assert speculative_speedup(0.7, 4, 0.1, shipped) == pytest.approx(1.17, abs=0.005)
    assert speculative_speedup(0.7, 4, 0.1, unpacked) < 1


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_a_chance_is_between_0_and_1(bad: float) -> None:
    with pytest.raises(CostError, match="acceptance"):
        speculated_tokens(bad, 4)
    with pytest.raises(CostError, match="verify_cost"):
        speculative_speedup(0.5, 4, 0, 0)
