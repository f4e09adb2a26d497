"""KV cache: the right values of faults that public calculators had, and what must hold for every geometry."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cost_expressions import parameters, value_of
from hypothesis import given
from hypothesis import strategies as st

from minillm import catalog
from minillm.costs import (
    CacheGroup,
    CostError,
    expanded_latent_values_per_token,
    growth_bytes_per_token,
    kv_allocated_bytes,
    kv_bytes_per_token,
    kv_logical_bytes,
    kv_values_per_token,
    latent_values_per_token,
    max_context_tokens,
)

GIB = 2**30
GPT_OSS = (CacheGroup(12, 2 * 8 * 64), CacheGroup(12, 2 * 8 * 64, window=128))


@pytest.mark.parametrize(
    ("slug", "bytes_per_token"),
    [
        ("llama-3-8b", 131_072),  # not from the hidden size, which gives 4 times as much
        ("llama-2-7b", 524_288),
        ("llama-3-70b", 327_680),  # not from 64 query heads
        ("qwen3-32b", 262_144),  # head_dim is 128, not 5120 / 64
        ("mistral-7b", 131_072),
        ("deepseek-v3", 70_272),  # 61 x (512 + 64) x 2: once, not for K and for V
        ("smollm2-135m", 23_040),
    ],
)
def test_bytes_per_token(slug: str, bytes_per_token: int) -> None:
    assert catalog.model(slug).kv_bytes_per_token("bf16") == bytes_per_token


@pytest.mark.parametrize(
    ("slug", "context", "gib"),
    [
        ("llama-3-8b", 8_192, 1.0),
        ("llama-3.1-8b", 131_072, 16.0),
        ("llama-2-7b", 32_768, 16.0),
        ("llama-3-70b", 32_768, 10.0),
        ("llama-3-70b", 131_072, 40.0),
        ("deepseek-v3", 131_072, 8.58),
        ("deepseek-v3", 163_840, 10.72),
        ("deepseek-v3", 65_536, 4.29),
        ("gemma-3-27b", 131_072, 10.41),
    ],
)
def test_total(slug: str, context: int, gib: float) -> None:
    assert catalog.model(slug).kv_bytes(context, "bf16") / GIB == pytest.approx(gib, abs=0.005)


def test_gib_is_not_gb() -> None:
    total = catalog.model("llama-3-70b").kv_bytes(32_768, "bf16")
    assert (total / GIB, round(total / 1e9, 2)) == (10.0, 10.74)


def test_hypothetical_64_kv_heads() -> None:
    assert kv_bytes_per_token(80, 64, 128, 2) * 32_768 / GIB == 80


@pytest.mark.parametrize(("context", "gib"), [(32_768, 4.5), (262_144, 36.0)])
def test_from_geometry_not_from_the_parameter_count(context: int, gib: float) -> None:
    assert kv_bytes_per_token(36, 8, 128, 2) * context / GIB == gib


def test_8b_at_8192_tokens_is_1_07_gb_whatever_the_weights_are() -> None:
    model = catalog.model("llama-3-8b")
    assert model.kv_bytes(8192, "fp16") / 1e9 == pytest.approx(1.07, abs=0.005)
    # The cache has its own dtype: no argument of it is the weights' one.
    assert model.weight_bytes("q4_0") < model.weight_bytes("bf16")
    assert model.kv_bytes(8192, "fp16") == 8192 * 131_072


@pytest.mark.parametrize(
    ("layers", "heads", "head_dim", "size"),
    [(126, 8, 128, 504 * 1024), (96, 96, 128, 4.5 * 2**20)],  # Llama 3.1 405B, GPT-3
)
def test_other_published_geometries(layers: int, heads: int, head_dim: int, size: float) -> None:
    assert kv_bytes_per_token(layers, heads, head_dim, 2) == size


def test_latent_of_deepseek_v2() -> None:
    assert 60 * latent_values_per_token(512, 64) * 2 == 67.5 * 1024


def test_runtime_that_caches_expanded_keys_and_values() -> None:
    model = catalog.model("deepseek-v3")
    assert model.kv_bytes_per_token("bf16", expanded=True) == 4_997_120
    assert model.kv_bytes(65_536, "bf16", expanded=True) / GIB == pytest.approx(305, abs=0.5)
    assert 61 * 2 * expanded_latent_values_per_token(128, 128, 64, 128) == 4_997_120


def test_kv_heads_of_latent_attention_are_refused_not_guessed() -> None:
    with pytest.raises(CostError, match="latent attention: kv_heads does not give its cache"):
        _ = catalog.model("deepseek-v3").kv_heads


def test_keys_and_values_of_different_lengths() -> None:
    assert kv_values_per_token(4, 192, 128) == 4 * 320


def test_gemma_with_all_layers_full_would_be_62_gib() -> None:
    model = catalog.model("gemma-3-27b")
    assert model.kv_bytes_per_token("bf16") * 131_072 / GIB == 62.0
    assert sorted(g.layers for g in model.geometry.cache_groups()) == [10, 52]


def test_logical_and_allocated_are_two_numbers() -> None:
    assert kv_logical_bytes(GPT_OSS, 8192, "bf16", 32) / GIB == pytest.approx(6.09, abs=0.005)
    assert kv_allocated_bytes(GPT_OSS, 8192, "bf16", 16, 32) / GIB == 12.0
    model = catalog.model("gpt-oss-20b")
    assert model.kv_bytes(8192, "bf16", 32) == kv_logical_bytes(GPT_OSS, 8192, "bf16", 32)
    assert model.kv_allocated_bytes(8192, "bf16", 16, 32) / GIB == 12.0


def test_blocks_behind_the_window_are_freed_whole() -> None:
    group = (CacheGroup(1, 1, window=10),)

    def held(context: int) -> int:
        return int(kv_allocated_bytes(group, context, "fp8", 4, frees_behind_window=True))

    # 14 tokens: 4 to 13 are needed, which start block 1 of 4 blocks. 15 tokens: 5 to 14, still block 1.
    assert [held(n) for n in (10, 13, 14, 15, 16, 17, 18)] == [12, 16, 12, 12, 12, 16, 12]


def test_block_of_paged_attention() -> None:
    model = catalog.model("llama-3-8b")
    assert model.kv_allocated_bytes(1, "bf16", 16) == 2 * 2**20
    assert model.kv_allocated_bytes(17, "bf16", 16) == 4 * 2**20
    assert model.kv_allocated_bytes(0, "bf16", 16) == 0


def test_only_attention_layers_grow() -> None:
    """Qwen3-Next: 12 of 48 layers have a cache (2 KV heads of 256); the others hold a state of fixed size."""
    state = 32 * 128 * 128 * 4
    groups = (CacheGroup(12, 2 * 2 * 256), CacheGroup(36, 0, state_bytes=state))
    assert growth_bytes_per_token(groups, "bf16") == 12 * 2 * 2 * 256 * 2
    assert kv_logical_bytes(groups, 0, "bf16", 3) == 3 * 36 * state
    assert kv_logical_bytes(groups, 100, "bf16") - kv_logical_bytes(groups, 0, "bf16") == 100 * 24_576


def test_an_encoder_has_no_cache() -> None:
    assert kv_logical_bytes((), 8192, "bf16", 32) == 0


def test_64_gb_hold_59_sequences() -> None:
    assert 64e9 / catalog.model("llama-3-8b").kv_bytes(8192, "bf16") == pytest.approx(59.6, abs=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kv_bytes_per_token(32, 0, 128, 2), "kv_heads is 0: give a finite number above 0"),
        (lambda: kv_bytes_per_token(-1, 8, 128, 2), "layers is -1"),
        (lambda: kv_bytes_per_token(32, 8, math.nan, 2), "head_dim is nan"),
        (lambda: kv_bytes_per_token(32, 8, 128, math.inf), "bytes_per_value is inf"),
        (lambda: kv_bytes_per_token(32, "8", 128, 2), "kv_heads is '8'"),
        (lambda: kv_bytes_per_token(32, True, 128, 2), "kv_heads is True"),
        (lambda: kv_bytes_per_token(32, np.array([8, 0]), 128, 2), "kv_heads is 0"),
        (lambda: CacheGroup(1, 1, window=0), "window is 0"),
        (lambda: kv_logical_bytes(GPT_OSS, -1, "bf16"), "context_tokens is -1"),
        (lambda: kv_allocated_bytes(GPT_OSS, 1, "bf16", 0), "block_size is 0"),
        (lambda: kv_logical_bytes(GPT_OSS, 1, "bf8"), "dtype 'bf8' is unknown: did you mean"),
    ],
)
def test_bad_values_are_refused(call: object, message: str) -> None:
    with pytest.raises(CostError, match=message):
        call()  # type: ignore[operator]


sizes = st.integers(1, 4096)
groups_of = st.lists(
    st.builds(CacheGroup, st.integers(1, 64), sizes, st.none() | st.integers(1, 10_000)), min_size=1, max_size=4
)
contexts = st.integers(0, 300_000)


@given(groups_of, contexts, st.integers(1, 256), st.integers(1, 64), st.booleans())
def test_allocated_is_never_below_logical(
    groups: list[CacheGroup], context: int, block: int, batch: int, frees: bool
) -> None:
    logical = kv_logical_bytes(groups, context, "bf16", batch)
    allocated = kv_allocated_bytes(groups, context, "bf16", block, batch, frees_behind_window=frees)
    whole = kv_allocated_bytes(groups, context, "bf16", block, batch)
    assert logical <= allocated <= whole
    assert kv_allocated_bytes(groups, context, "bf16", 1, batch, frees_behind_window=True) == logical


@given(sizes, sizes, sizes, contexts, contexts)
def test_linear_in_context_without_windows(layers: int, heads: int, dim: int, a: int, b: int) -> None:
    groups = (CacheGroup(layers, kv_values_per_token(heads, dim)),)
    total = [kv_logical_bytes(groups, n, "bf16") for n in (a, b, a + b)]
    assert total[0] + total[1] == total[2]
    assert total[0] == a * kv_bytes_per_token(layers, heads, dim, 2)


@given(st.integers(1, 16), st.integers(1, 16), sizes)
def test_grouping_divides_by_its_ratio(kv_heads: int, ratio: int, dim: int) -> None:
    assert kv_values_per_token(kv_heads * ratio, dim) == ratio * kv_values_per_token(kv_heads, dim)


@given(groups_of, contexts)
def test_growth_is_the_difference_of_totals(groups: list[CacheGroup], context: int) -> None:
    step = kv_logical_bytes(groups, context + 1, "bf16") - kv_logical_bytes(groups, context, "bf16")
    assert growth_bytes_per_token(groups, "bf16", context) == step


@given(groups_of, st.integers(1, 10**12), st.integers(1, 8))
def test_capacity_inverts_the_sum(groups: list[CacheGroup], budget: int, batch: int) -> None:
    longest = max_context_tokens(groups, budget, "bf16", batch)
    if longest is None:
        assert all(g.window is not None for g in groups)
        assert kv_logical_bytes(groups, 10**9, "bf16", batch) <= budget
    else:
        assert kv_logical_bytes(groups, longest, "bf16", batch) <= budget
        assert kv_logical_bytes(groups, longest + 1, "bf16", batch) > budget


def test_capacity_of_a_budget_below_the_state() -> None:
    with pytest.raises(CostError, match="the state of 2 sequences alone is larger"):
        max_context_tokens((CacheGroup(1, 0, state_bytes=100),), 150, "bf16", 2)


@given(groups_of, st.integers(0, 300_000), st.integers(1, 64), st.integers(1, 512))
def test_the_expression_is_the_number(groups: list[CacheGroup], context: int, batch: int, block: int) -> None:
    values = {"context": context, "batch": batch, "block": block}
    p = parameters(**values)
    assert value_of(kv_logical_bytes(groups, p["context"], "bf16", p["batch"]), **values) == kv_logical_bytes(
        groups, context, "bf16", batch
    )
    for frees in (False, True):
        symbolic = kv_allocated_bytes(groups, p["context"], "q8_0", p["block"], p["batch"], frees_behind_window=frees)
        number = kv_allocated_bytes(groups, context, "q8_0", block, batch, frees_behind_window=frees)
        assert value_of(symbolic, **values) == pytest.approx(number, rel=1e-12)


def test_arrays_give_the_numbers_elementwise() -> None:
    contexts = np.array([0, 1, 127, 128, 129, 8192])
    logical = kv_logical_bytes(GPT_OSS, contexts, "bf16")
    allocated = kv_allocated_bytes(GPT_OSS, contexts, "bf16", 16, frees_behind_window=True)
    for i, n in enumerate(contexts.tolist()):
        assert logical[i] == kv_logical_bytes(GPT_OSS, n, "bf16")
        assert allocated[i] == kv_allocated_bytes(GPT_OSS, n, "bf16", 16, frees_behind_window=True)
