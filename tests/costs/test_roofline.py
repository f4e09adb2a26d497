"""FLOPs, weights, number formats and the roofline: known values, properties, and the expression form."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cost_expressions import parameters, value_of
from hypothesis import given
from hypothesis import strategies as st

from minillm import catalog
from minillm.costs import (
    FORMATS,
    CostError,
    attainable_flops,
    attention_flops,
    attention_pairs,
    attention_parameters,
    bandwidth_utilization,
    bits_per_value,
    decode_attention_output_bytes,
    decode_attention_read_bytes,
    decode_ceiling_tokens_per_s,
    expected_experts,
    gated_mlp_parameters,
    inter_token_latency_s,
    linear_flops,
    matmul_intensity,
    padding_waste,
    ridge_flops_per_byte,
    size_bytes,
    step_time_s,
)
from minillm.costs import arithmetic as ar

LLAMA = catalog.model("llama-3.1-8b")
H100 = catalog.accelerator("h100-sxm")


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("bf16", 16),
        ("q8_0", 8.5),
        ("q6_k", 6.5625),
        ("q5_k", 5.5),
        ("q4_k", 4.5),
        ("q4_0", 4.5),
        ("mxfp4", 4.25),
        ("nvfp4", 4.5),
        ("int4_g128", 4.15625),
    ],
)
def test_bits_per_value(dtype: str, bits: float) -> None:
    assert bits_per_value(dtype) == bits
    assert size_bytes(2**20, dtype) == 2**20 * bits / 8


def test_block_formats_equal_the_readers_sizes() -> None:
    """The GGUF package, which reads and writes these blocks, has the same sizes."""
    constants = pytest.importorskip("gguf.constants")
    sizes = {t.name.lower(): size for t, size in constants.GGML_QUANT_SIZES.items()}
    names = {"fp32": "f32", "fp16": "f16"}
    compared = [name for name in FORMATS if names.get(name, name) in sizes]
    assert {"bf16", "q8_0", "q6_k", "q5_k", "q4_k", "q4_1", "q4_0", "mxfp4"} <= set(compared)
    for name in compared:
        found = FORMATS[name]
        values, size = sizes[names.get(name, name)]
        assert found.block_bytes * values == size * found.block_values, name


def test_whole_bytes_stay_whole_numbers() -> None:
    assert isinstance(size_bytes(3, "bf16"), int)


def test_gpt_oss_120b_in_mxfp4() -> None:
    assert size_bytes(116.8e9, "mxfp4") / 1e9 == pytest.approx(62, abs=0.1)


@pytest.mark.parametrize(
    ("slug", "rate"), [("h100-sxm", 208.6), ("h200-sxm", 298.9), ("a100-80gb-sxm", 127), ("b200", 498)]
)
def test_ceiling_of_one_sequence(slug: str, rate: float) -> None:
    bandwidth = catalog.accelerator(slug).memory_bandwidth
    assert decode_ceiling_tokens_per_s(LLAMA.weight_bytes("bf16"), bandwidth) == pytest.approx(rate, rel=1e-3)


def test_ceiling_of_70b() -> None:
    model = catalog.model("llama-3-70b")
    # With 140 GB for the weights the quotient is 23.9; they have 141.1.
    assert decode_ceiling_tokens_per_s(140e9, 3.35e12) == pytest.approx(23.9, abs=0.05)
    assert decode_ceiling_tokens_per_s(model.weight_bytes("bf16"), 3.35e12) == pytest.approx(23.7, abs=0.05)


@pytest.mark.parametrize(("batch", "ms"), [(1, 4.87), (8, 5.44), (32, 7.36), (64, 9.92), (128, 15.05)])
def test_inter_token_latency_on_h100(batch: int, ms: float) -> None:
    weights, kv = LLAMA.weight_bytes("bf16"), LLAMA.kv_bytes_per_token("bf16")
    found = inter_token_latency_s(weights, batch, 2048, kv, H100.memory_bandwidth)
    assert found * 1e3 == pytest.approx(ms, abs=0.005)
    # That counts a table of which a step reads a row: the bound is lower by its bytes.
    table = LLAMA.vocab_size * LLAMA.hidden_size * 2
    assert LLAMA.decode_bytes(2048, batch) / H100.memory_bandwidth == pytest.approx(found - table / 3.35e12)


def test_the_bound_bounds() -> None:
    """gpt-oss 20B at 2,048 tokens on an H100: 460 tokens/s in bf16, more as it is shipped; 397 counts the table."""
    model = catalog.model("gpt-oss-20b")
    assert H100.memory_bandwidth / model.decode_bytes(2048, 1, "bf16") == pytest.approx(460, abs=1)
    table = model.vocab_size * model.hidden_size * 2
    assert H100.memory_bandwidth / (model.decode_bytes(2048, 1, "bf16") + table) == pytest.approx(397, abs=1)
    assert H100.memory_bandwidth / model.decode_bytes(2048) > 800
    tied = catalog.model("smollm2-135m")  # one table for both: the head reads it all
    assert tied.read_bytes("bf16") == tied.weight_bytes("bf16")


@pytest.mark.parametrize(("batch", "intensity"), [(8, 7.97), (32, 31.5), (128, 120.5), (256, 227.6)])
def test_intensity_of_a_skinny_matmul(batch: int, intensity: float) -> None:
    assert matmul_intensity(batch, 4096, 4096) == pytest.approx(intensity, abs=0.05)
    assert matmul_intensity(batch, 4096, 4096) == pytest.approx(batch / (1 + 2 * batch / 4096))


def test_roofline_bends_at_the_ridge() -> None:
    peak, bandwidth = H100.flops("bf16"), H100.memory_bandwidth
    ridge = ridge_flops_per_byte(peak, bandwidth)
    assert round(ridge) == 295
    assert attainable_flops(ridge / 2, peak, bandwidth) == pytest.approx(peak / 2)
    assert attainable_flops(ridge * 2, peak, bandwidth) == peak


def test_prefill_of_8b() -> None:
    layers = linear_flops(LLAMA.geometry.matmul_parameters(), 2048)
    assert LLAMA.geometry.matmul_parameters() / 1e9 == pytest.approx(6.979, abs=5e-4)
    assert layers / 1e12 == pytest.approx(28.6, abs=0.05)
    assert (layers + LLAMA.geometry.head_flops(2048)) / 1e12 == pytest.approx(30.7, abs=0.05)
    assert LLAMA.geometry.attention_flops([2048], [0]) / 1e12 == pytest.approx(1.1, abs=0.005)
    total = layers + LLAMA.geometry.attention_flops([2048], [0]) + LLAMA.geometry.head_flops(1)
    assert LLAMA.prefill_flops(2048) == total


@pytest.mark.parametrize(("context", "share"), [(2048, 3.7), (8192, 13.3), (131_072, 71)])
def test_attention_share_of_prefill(context: int, share: float) -> None:
    attention = LLAMA.geometry.attention_flops([context], [0])
    layers = linear_flops(LLAMA.geometry.matmul_parameters(), context)
    assert 100 * attention / (attention + layers) == pytest.approx(share, abs=0.5 if share > 50 else 0.05)


def test_decode_attention_reads_kv_heads_and_writes_one_row() -> None:
    assert decode_attention_read_bytes(1, 8192, 32, 128) == 4 * decode_attention_read_bytes(1, 8192, 8, 128)
    assert 32 * decode_attention_read_bytes(1, 8192, 8, 128) == LLAMA.kv_bytes(8192, "bf16")
    assert decode_attention_output_bytes(16, 32, 128) == 16 * 32 * 128 * 2  # no context in it


def test_8b_by_parts() -> None:
    attention = 32 * attention_parameters(4096, 32, 8, 128)
    mlp = 32 * gated_mlp_parameters(4096, 14336)
    assert (attention * 2 / 1e9, mlp * 2 / 1e9) == (pytest.approx(2.68, abs=5e-3), pytest.approx(11.27, abs=5e-3))


def test_expert_of_deepseek_v3() -> None:
    assert gated_mlp_parameters(7168, 2048) / 1e6 == pytest.approx(44.0, abs=0.05)


def test_experts_read_by_a_batch() -> None:
    """Against 400 draws of experts at random, seeded; their mean is within 2 % of the expectation."""
    rng = random.Random(7)
    for tokens in (1, 8, 32, 128):
        drawn = [len({e for _ in range(tokens) for e in rng.sample(range(256), 8)}) for _ in range(400)]
        assert expected_experts(256, 8, tokens) == pytest.approx(sum(drawn) / len(drawn), rel=0.02)
    assert expected_experts(256, 8, 1) == pytest.approx(8)


def test_step_of_experts_reads_only_those_chosen() -> None:
    model = catalog.model("deepseek-v3")
    table = model.vocab_size * model.hidden_size
    assert model.read_bytes("q8_0", 1) == pytest.approx(34 / 32 * (model.active_parameters - table), rel=1e-9)
    assert model.read_bytes("q8_0", 10_000) == pytest.approx(34 / 32 * (model.parameters - table), rel=1e-9)
    assert LLAMA.read_bytes("bf16") == LLAMA.weight_bytes("bf16") - 2 * LLAMA.vocab_size * LLAMA.hidden_size


def test_utilization_of_the_bound_is_one() -> None:
    read = LLAMA.decode_bytes(2048)
    assert bandwidth_utilization(read, read / H100.memory_bandwidth, H100.memory_bandwidth) == pytest.approx(1)


def test_padding_waste() -> None:
    assert padding_waste([100, 50, 50]) == pytest.approx(1 / 3)
    assert padding_waste([7, 7]) == 0
    with pytest.raises(CostError, match="lengths is empty"):
        padding_waste([])


def test_step_of_a_serving_engine() -> None:
    """Decodes are bound by bytes, a prefill by arithmetic; a mixed step costs less than its parts."""
    decodes = LLAMA.step_time_s(H100, [1] * 32, [2047] * 32)
    assert decodes == LLAMA.decode_bytes(2048, 32) / H100.memory_bandwidth
    prefill = LLAMA.step_time_s(H100, [2048], [0])
    assert prefill == pytest.approx(LLAMA.prefill_flops(2048) / H100.flops("bf16"))
    mixed = LLAMA.step_time_s(H100, [1] * 32 + [2048], [2047] * 32 + [0])
    assert max(decodes, prefill) < mixed < decodes + prefill
    with pytest.raises(CostError, match="2 sequences have new tokens and 1 have cached ones"):
        LLAMA.step_time_s(H100, [1, 1], [3])


def test_a_hit_saves_work_until_the_weights_are_the_limit() -> None:
    assert LLAMA.prefill_time_s(H100, 8192) == pytest.approx(LLAMA.prefill_flops(8192) / H100.flops("bf16"))
    half = LLAMA.prefill_flops(8192) - LLAMA.prefill_flops(4096)
    assert LLAMA.prefill_time_s(H100, 8192, 4096) == pytest.approx(half / H100.flops("bf16"), rel=1e-4)  # but the head
    assert LLAMA.prefill_time_s(H100, 8192, 8191) == LLAMA.decode_bytes(8192) / H100.memory_bandwidth
    with pytest.raises(CostError, match="8192 of 8192 prompt tokens are cached: at least one is left"):
        LLAMA.prefill_time_s(H100, 8192, 8192)


def test_a_prompt_in_chunks_does_the_work_of_the_whole_one() -> None:
    """Without others: chunks bound by arithmetic take the whole prompt's time, chunks of one token read it all anew."""
    whole = LLAMA.prefill_flops(8192) / H100.flops("bf16")
    assert LLAMA.chunk_times_s(H100, 8192, 8192) == [pytest.approx(whole)]
    assert LLAMA.chunked_ttft_s(H100, 8192, 2048) == pytest.approx(whole)
    alone = LLAMA.chunk_times_s(H100, 100, 1)
    assert sum(alone) == pytest.approx(sum(LLAMA.decode_bytes(n) for n in range(1, 101)) / H100.memory_bandwidth)


@given(prompt=st.integers(1, 5000), budget=st.integers(2, 600), decoding=st.integers(0, 64))
def test_chunks_beside_decoding_sequences(prompt: int, budget: int, decoding: int) -> None:
    if decoding >= budget:
        with pytest.raises(CostError, match=f"a budget of {budget} tokens is all taken by {decoding} decoding"):
            LLAMA.chunk_times_s(H100, prompt, budget, decoding, 2048)
        return
    times = LLAMA.chunk_times_s(H100, prompt, budget, decoding, 2048)
    assert len(times) == -(-prompt // (budget - decoding))
    # No step is shorter than a decode without the prompt, none longer than all its reads and then all its work.
    decode = LLAMA.decode_bytes(2048, decoding) if decoding else LLAMA.decode_bytes(1)
    chunk = min(budget - decoding, prompt)
    work = LLAMA.decode_flops(2048, decoding) if decoding else 0
    work += linear_flops(LLAMA.parameters, chunk)
    work += attention_flops(attention_pairs(chunk, prompt - chunk), LLAMA.heads, LLAMA.head_dim) * LLAMA.layers
    assert min(times) >= decode / H100.memory_bandwidth
    assert max(times) <= (decode + LLAMA.kv_bytes(prompt, "bf16")) / H100.memory_bandwidth + work / H100.flops("bf16")
    assert LLAMA.longest_chunk_s(H100, prompt, budget, decoding, 2048) == max(times)
    assert LLAMA.chunked_ttft_s(H100, prompt, budget, decoding, 2048) == sum(times)


def test_large_batches_are_bound_by_arithmetic() -> None:
    def bound_by_arithmetic(batch: int) -> bool:
        read, work = (
            LLAMA.decode_bytes(64, batch) / H100.memory_bandwidth,
            LLAMA.decode_flops(64, batch) / H100.flops("bf16"),
        )
        return work > read

    assert [bound_by_arithmetic(b) for b in (1, 64, 256, 1024)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step_time_s(1, 1, 0, 1), "bandwidth is 0"),
        (lambda: step_time_s(-1, 1, 1, 1), "bytes_moved is -1"),
        (lambda: ridge_flops_per_byte(math.nan, 1), "peak_flops is nan"),
        (lambda: attention_pairs(-1, 0), "new_tokens is -1"),
        (lambda: expected_experts(8, 0, 1), "experts_per_token is 0"),
        (lambda: size_bytes(1, "Q4_K"), r"dtype 'Q4_K' is unknown: did you mean q4_k\?"),
    ],
)
def test_bad_values_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(CostError, match=message):
        call()


@given(st.integers(0, 300), st.integers(0, 300), st.none() | st.integers(1, 400))
def test_pairs_are_those_of_the_mask(new: int, cached: int, window: int | None) -> None:
    keys = [cached + i + 1 for i in range(new)]
    assert attention_pairs(new, cached, window) == sum(k if window is None else min(k, window) for k in keys)


@given(st.integers(1, 200), st.integers(0, 200), st.integers(1, 199))
def test_chunks_of_a_prefill_add_up(new: int, cached: int, chunk: int) -> None:
    first = min(chunk, new)
    parts = attention_pairs(first, cached) + attention_pairs(new - first, cached + first)
    assert parts == attention_pairs(new, cached)


numbers = st.integers(1, 10**6)


@given(numbers, numbers, st.integers(1, 400), st.integers(1, 256), st.integers(1, 256))
def test_the_expression_is_the_number(a: int, b: int, window: int, batch: int, dim: int) -> None:
    values = {"a": a, "b": b, "w": window, "n": batch, "d": dim}
    p = parameters(**values)

    def same(symbolic: Any, number: Any) -> None:
        assert value_of(symbolic, **values) == pytest.approx(number, rel=1e-9)

    same(attention_pairs(p["a"], p["b"], p["w"]), attention_pairs(a, b, window))
    same(
        attention_flops(attention_pairs(p["a"], p["b"]), p["n"], p["d"]),
        attention_flops(attention_pairs(a, b), batch, dim),
    )
    same(step_time_s(p["a"], p["b"], p["n"], p["d"]), step_time_s(a, b, batch, dim))
    same(attainable_flops(p["a"], p["b"], p["n"]), attainable_flops(a, b, batch))
    same(matmul_intensity(p["n"], p["a"], p["d"]), matmul_intensity(batch, a, dim))
    same(expected_experts(256, 8, p["n"]), expected_experts(256, 8, batch))
    for slug in ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3"):
        model = catalog.model(slug)
        same(model.decode_bytes(p["a"], p["n"]), model.decode_bytes(a, batch))
        same(model.decode_flops(p["a"], p["n"]), model.decode_flops(a, batch))


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**4))
def test_arithmetic_is_the_same_three_ways(a: int, b: int) -> None:
    p = parameters(a=a, b=b)
    arrays = np.array([a, a]), np.array([b, b])
    for name in ("minimum", "maximum", "floordiv", "ceildiv"):
        function = getattr(ar, name)
        number = function(a, b)
        assert value_of(function(p["a"], p["b"]), a=a, b=b) == number, name
        assert function(*arrays).tolist() == [number, number], name
    assert ar.floordiv(a, b) * b <= a < (ar.floordiv(a, b) + 1) * b
    assert ar.ceildiv(a, b) == math.ceil(a / b)
    assert value_of(ar.where(p["a"] > 0, p["b"], 0), a=a, b=b) == (b if a > 0 else 0)
    assert ar.where(arrays[0] > 0, arrays[1], 0).tolist() == [b if a > 0 else 0] * 2
    for name in ("sqrt", "log", "log2", "log10"):
        function = getattr(ar, name)
        assert value_of(function(p["b"]), a=a, b=b) == pytest.approx(function(b))
        assert function(arrays[1])[0] == pytest.approx(function(b))


def test_neither_altair_nor_numpy_is_imported(run_isolated: Callable[[str], str]) -> None:
    code = (
        "import sys; from minillm import catalog; m = catalog.model('gemma-3-27b'); m.kv_bytes(8192, 'bf16');"
        "print(sorted({'altair', 'numpy'} & set(sys.modules)))"
    )
    assert run_isolated(code) == "[]"


@pytest.fixture
def run_isolated() -> Callable[[str], str]:
    import subprocess
    import sys

    def run(code: str) -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    return run
