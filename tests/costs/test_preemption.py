"""Swapping against computing again: known values, the crossover as where the two are equal, the expression form."""

from __future__ import annotations

import pytest
from cost_expressions import parameters, value_of
from hypothesis import given
from hypothesis import strategies as st

from minillm import catalog
from minillm.costs import (
    CostError,
    attention_flops,
    attention_pairs,
    linear_flops,
    pcie_bytes_per_s,
    recompute_crossover_tokens,
    recompute_time_s,
    swap_copies,
    swap_time_s,
)


def test_the_link_is_that_of_the_specification() -> None:
    # 16 lanes of 32 GT/s carry 128 bits of data in 130.
    assert pcie_bytes_per_s(5) == pytest.approx(63.015e9, rel=1e-4)
    assert pcie_bytes_per_s(4) == pcie_bytes_per_s(5) / 2
    assert pcie_bytes_per_s(3, 4) == pytest.approx(3.938e9, rel=1e-3)
    with pytest.raises(CostError, match=r"generation is 6: choose from 3, 4, 5"):
        pcie_bytes_per_s(6)


def test_out_and_back() -> None:
    # 640 MB over 64 GB/s are 10 ms, and a swap goes both ways.
    assert swap_time_s(640e6, 64e9) == pytest.approx(20e-3)
    assert swap_time_s(640e6, 64e9, 1000, 2e-6) == pytest.approx(24e-3)
    assert swap_copies(4096, 16, 32) == 256 * 32 * 2
    assert swap_copies(1, 16, 32) == 64
    assert swap_copies(17, 16, 61, 1) == 2 * 61


def test_again_is_the_arithmetic_of_a_prefill() -> None:
    model, machine = catalog.model("llama-3.1-8b"), catalog.accelerator("h100-sxm")
    # 32 layers of 218.1 M parameters, causal attention of 32 heads of 128, and one row of logits.
    matrices = 2 * 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) * 4096
    flops = matrices + 32 * 4 * 4096 * (4096 * 4097 / 2) + 2 * 128_256 * 4096
    assert recompute_time_s(model.prefill_flops(4096), machine.flops("bf16")) == pytest.approx(flops / 989.4e12)


@given(
    swap=st.floats(1e-8, 1e-3),
    parameters_=st.floats(1e6, 1e12),
    heads=st.integers(1, 128),
    peak=st.floats(1e11, 1e16),
)
def test_at_the_crossover_both_take_as_long(swap: float, parameters_: float, heads: int, peak: float) -> None:
    linear, pair = linear_flops(parameters_, 1), attention_flops(1, heads, 128)

    def again(tokens: float) -> float:
        work = linear * tokens + pair * attention_pairs(tokens, 0)
        return float(recompute_time_s(work, peak))

    crossover = recompute_crossover_tokens(swap, linear, pair, peak)
    if crossover > 0:
        assert again(crossover) == pytest.approx(swap * crossover, rel=1e-6)
        assert again(2 * crossover) > swap * 2 * crossover
        assert again(crossover / 2) < swap * crossover / 2
    else:
        assert all(again(n) >= swap * n for n in (1, 100, 1e6))


def test_as_a_browser_expression() -> None:
    values = {"tokens": 1000.0, "link": 50e9, "overhead": 1e-6, "block": 16.0}
    p = parameters(**values)
    copies = swap_copies(p["tokens"], p["block"], 32)
    swap = swap_time_s(p["tokens"] * 131_072, p["link"], copies, p["overhead"])
    assert value_of(swap, **values) == pytest.approx(swap_time_s(1000 * 131_072, 50e9, 63 * 64, 1e-6))
    crossing = recompute_crossover_tokens(2 * 131_072 / p["link"], 14e9, 524_288, 989e12)
    assert value_of(crossing, **values) == recompute_crossover_tokens(2 * 131_072 / 50e9, 14e9, 524_288, 989e12)


@pytest.mark.parametrize("bad", [0, -1, float("nan")])
def test_what_has_no_meaning_is_refused(bad: float) -> None:
    with pytest.raises(CostError, match="link_bandwidth"):
        swap_time_s(1, bad)
    with pytest.raises(CostError, match="peak_flops"):
        recompute_time_s(1, bad)
    with pytest.raises(CostError, match="block_size"):
        swap_copies(1, bad, 1)
    with pytest.raises(CostError, match="attention_flops_per_pair"):
        recompute_crossover_tokens(1, 1, bad, 1)
