"""Checked numbers: what prose may say, what formulas may do, and which numbers say nothing."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visualizers.site.formulas import evaluate
from visualizers.site.numbers import disagreement, unmarked
from visualizers.site.quantities import find
from visualizers.site.scan import tokens
from visualizers.site.units import NAMED_UNITS, UNITS, parse_unit, show_value
from visualizers.site.values import Entry, FormulaError, Function, unit_of_name

BYTE, RATE = {"byte": 1}, {"byte": 1, "s": -1}
NAMES = {
    "h100_sxm": Entry(
        "h100_sxm",
        SimpleNamespace(memory_bandwidth=3.35e12, memory_bytes=80e9, _secret=1, name="H100"),
        {"memory_bandwidth": RATE},
    ),
    "llama_3_70b": Entry("llama_3_70b", SimpleNamespace(weight_bytes=lambda dtype: 141_107_412_992, layers=80), {}),
    "kv_bytes_per_token": Function(
        "kv_bytes_per_token", lambda layers, heads, dim, size: 2 * layers * heads * dim * size, BYTE
    ),
    "speedup": Function("speedup", lambda a: a),
}


def agrees(text: str, formula: str) -> bool:
    return disagreement(text, evaluate(formula, NAMES)) == ""


@pytest.mark.parametrize(
    ("text", "values", "dimension"),
    [
        ("128 KiB", (131072,), BYTE),
        ("3.35 TB/s", (3.35e12,), RATE),
        ("23.9 tokens/s", (23.9,), {"s": -1}),
        ("131,072 bytes per token", (131072,), BYTE),
        ("4 to 8 GiB", (4 * 2**30, 8 * 2**30), BYTE),
        ("4.87–15.05 ms", (0.00487, 0.01505), {"s": 1}),
        ("3.7 %", (0.037,), {}),
        ("3.7%", (0.037,), {}),
        ("7.03×", (7.03,), {}),
        ("4x", (4,), {}),
        ("$0.347 per million tokens", (0.347e-6,), {"usd": 1}),
        ("$2.50/h", (2.5 / 3600,), {"usd": 1, "s": -1}),
        ("295 FLOP/byte", (295,), {"flop": 1, "byte": -1}),
        ("989 TFLOPS", (989e12,), {"flop": 1, "s": -1}),
        ("1.6 million tokens", (1.6e6,), {}),
        ("10 tokens a second", (10,), {"s": -1}),
        ("−5 ms", (-0.005,), {"s": 1}),
        ("5\ntokens", (5,), {}),
        ("4-bit", (4,), {"bit": 1}),
    ],
)
def test_prose_is_read(text: str, values: tuple[float, ...], dimension: dict[str, int]) -> None:
    (quantity,) = find(text)
    assert quantity.values == pytest.approx(values)
    assert dict(quantity.dimension) == dimension


@pytest.mark.parametrize("text", ["H100", "int8", "version 3.11.2", "arXiv 2309.06180v1", "v2", "x86_64"])
def test_names_are_no_numbers_with_units(text: str) -> None:
    assert [q.unit for q in find(text) if q.unit] == []


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("24 tokens/s", 'h100_sxm.memory_bandwidth / llama_3_70b.weight_bytes("bf16")'),
        ("23.7 tokens/s", 'h100_sxm.memory_bandwidth / llama_3_70b.weight_bytes("bf16")'),
        ("141.1 GB", 'llama_3_70b.weight_bytes("bf16")'),
        ("about 140 GB", 'llama_3_70b.weight_bytes("bf16")'),
        ("128 KiB", "kv_bytes_per_token(32, 8, 128, 2)"),
        ("128 KiB/token", "kv_bytes_per_token(32, 8, 128, 2)"),
        ("131,072 B", "kv_bytes_per_token(32, 8, 128, 2)"),
        ("8.5%", "700 / 8192"),
        ("4 to 8 ms", "(4 * ms, 8 * ms)"),
        ("20% to 26%", "(0.2, 0.26)"),
        ("512", "8192 / 16"),
        ("16 tokens", "(32 - 1) // 16 * 16"),
        ("80 layers", "llama_3_70b.layers"),
        ("16-token", "16"),
        ("0.5", "0.45"),  # half-way may round up
        ("0.4", "0.45"),  # or down
        ("7 FLOP/byte", "7 * FLOP / B"),
        ("3 times", "speedup(3)"),  # a result without a known dimension is compared as a number
        ("59 sequences", "floor(64 * GB / (1 * GiB))"),
    ],
)
def test_text_that_agrees(text: str, formula: str) -> None:
    assert agrees(text, formula)


@pytest.mark.parametrize(
    ("text", "formula", "why"),
    [
        ("25 tokens/s", 'h100_sxm.memory_bandwidth / llama_3_70b.weight_bytes("bf16")', "says 25"),
        ("23.9 tokens/s", 'h100_sxm.memory_bandwidth / llama_3_70b.weight_bytes("bf16")', "gives 23.74"),
        ("128 KB", "kv_bytes_per_token(32, 8, 128, 2)", "gives 128 KiB"),
        ("140 GB", 'llama_3_70b.weight_bytes("bf16")', "says 140 GB"),
        ("131,072 tokens", "kv_bytes_per_token(32, 8, 128, 2)", "mind the unit"),
        ("131,072", "kv_bytes_per_token(32, 8, 128, 2)", "mind the unit"),
        ("512 bytes", "8192 / 16", "mind the unit"),
        ("24 GB", "h100_sxm.memory_bandwidth", "mind the unit"),
        ("many", "3", "no number"),
        ("3 of 4 blocks", "3", "2 values"),
        ("4 ms", "(4 * ms, 8 * ms)", "one value"),
        ("0.5", "0.4499", "says 0.5"),
    ],
)
def test_text_that_disagrees(text: str, formula: str, why: str) -> None:
    assert why in disagreement(text, evaluate(formula, NAMES))


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        ("__import__('os').system('true')", "unknown"),
        ("h100_sxm.__class__", "has no `__class__`"),
        ("h100_sxm._secret", "has no `_secret`"),
        ("h100_sxm.speed", "it has memory_bandwidth, memory_bytes, name"),
        ("h100_sxm.name", "a text"),
        ("h100_sxm", "a group of values"),
        ("speedup", "a function"),
        ("speedup(*[1])", "uses \\*"),
        ("speedup()", "failed"),
        ("[x for x in (1, 2)]", "not allowed"),
        ("(lambda: 1)()", "not allowed"),
        ("1 if 1 else 2", "not allowed"),
        ("'a' + 'b'", "not a number"),
        ("9**9**9", "exponent"),
        ("(-1) ** 0.5", "not a finite number"),
        ("1 / 0", "divides by zero"),
        ("1e308 * 10", "not a finite number"),
        ("2 ** 900 * 1.5 ** 900", "too large|finite"),
        ("1 + 2 * ms", "give both one unit"),
        ("max(1, 2 * B)", "mixes"),
        ("sqrt(4 * B)", "plain number"),
        ("1 +", "no formula"),
        ("", "no formula"),
        ("1" * 401, "the limit is 400"),
        ("6 & 3", "operator"),
        ("nope", "no catalogue slug"),
    ],
)
def test_formulas_that_are_refused(formula: str, why: str) -> None:
    with pytest.raises(FormulaError, match=why):
        evaluate(formula, NAMES)


def test_a_formula_is_shown_with_its_values() -> None:
    result = evaluate('h100_sxm.memory_bandwidth / llama_3_70b.weight_bytes("bf16")', NAMES)
    assert result.with_values == "3.35 TB/s ÷ 141.1 GB"
    assert evaluate("floor(64 * GB / h100_sxm.memory_bytes)", NAMES).with_values == "floor(64 GB ÷ 80 GB)"


@pytest.mark.parametrize(
    ("formula", "given"),
    [
        ("64 * GB", True),
        ("16", True),
        ("10 * tokens / s", True),
        ("700 / 8192", False),
        ("-12", True),
        ("1 * 12", True),
        ("12 * 1 + 0", True),
        ("round(12) / 1", True),
        ("GB * 64", True),
        ("2 * 3", False),
        ("llama_3_70b.layers", False),
    ],
)
def test_a_formula_that_only_says_a_number_again_is_known(formula: str, given: bool) -> None:
    assert evaluate(formula, NAMES).given is given


@given(st.floats(1e-3, 1e6), st.integers(0, 3), st.sampled_from(["GiB", "TB/s", "ms", "tokens/s", "TFLOP/s", "%", ""]))
def test_a_printed_value_agrees_with_itself_and_not_with_its_neighbour(value: float, digits: int, unit: str) -> None:
    text = f"{value:,.{digits}f} {unit}".strip()
    scale, dimension = parse_unit(unit)
    place = 10.0**-digits
    names = {
        "x": Entry(
            "x", SimpleNamespace(y=value * scale, z=(value + 1.01 * place) * scale), {"y": dimension, "z": dimension}
        )
    }
    assert disagreement(text, evaluate("x.y", names)) == ""
    assert disagreement(text, evaluate("x.z", names)) != ""


@given(st.floats(1e-9, 1e15), st.sampled_from([{}, BYTE, RATE, {"s": 1}, {"flop": 1, "s": -1}, {"usd": 1}, {"s": -1}]))
def test_values_are_shown_to_four_digits(value: float, dimension: dict[str, int]) -> None:
    shown = show_value(value, dimension)
    (quantity,) = find(shown.replace("1/s", "tokens/s"))
    assert math.isclose(quantity.values[0], value, rel_tol=6e-4)
    assert dict(quantity.dimension) == dimension


@pytest.mark.parametrize(
    ("name", "scale", "dimension"),
    [
        ("weight_bytes", 1, BYTE),
        ("kv_bytes_per_token", 1, BYTE),
        ("ttft_ms", 1e-3, {"s": 1}),
        ("total_gib", 2**30, BYTE),
        ("tokens_per_s", 1, {"s": -1}),
        ("bytes_per_s", 1, RATE),
    ],
)
def test_names_say_their_units(name: str, scale: float, dimension: dict[str, int]) -> None:
    unit = unit_of_name(name)
    assert unit is not None
    assert (unit.scale, dict(unit.dimension)) == (scale, dimension)


def test_a_name_without_a_unit_says_none() -> None:
    assert unit_of_name("memory_bandwidth") is None
    assert unit_of_name("efficiency") is None


def test_named_units_are_units() -> None:
    assert set(NAMED_UNITS) - {"percent", "usd"} <= set(UNITS)
    for name in ("B", "KB", "KiB", "MB", "MiB", "GB", "GiB", "TB", "s", "ms", "us", "tokens", "FLOP", "TFLOP"):
        assert name in NAMED_UNITS


FLAGGED = [
    "It reads 16 GB.",
    "It takes 3.5 ms a step.",
    "About 40% are lost.",
    "It is 4x as fast, or 4× or 10-fold.",
    "At $2.50 an hour.",
    "They measured 30,517 blocks.",
    "A rate of 24 tokens/s.",
    "| a | 80 GB |",
    "- 1.5 TB/s in a list",
    "> 3 seconds in a quote",
    "wrapped 16\nGB over a line",
    "It has 60 layers and 8 KV heads.",
    "It is three times as fast, or twice as fast.",
    "It takes two gigabytes, or 2 gigabytes.",
    "It takes three milliseconds, ten percent.",
    "It must print 131027.",
    "It must print 1,073,741,825 and 1234.",
]
EXEMPT = [
    "In 2023, on 2026-11-29 and in section 5.4.",
    "`16 GB` in code and $16\\,\\text{GB}$ in mathematics.",
    "```\n16 GB\n```",
    "# A heading of 16 GB",
    "[16 GB](https://example.org/16GB) and <https://example.org/4x>",
    "Llama 3 8B on an H100 with CUDA 12.4 and Python 3.11.",
    "Blocks of 16 tokens, 2,048 requests, two requests, three users, 700 tokens.",
    "Twice the work, half of it, two of three, 8192 of them, 12,000 of them.",
    "[16 GB]{= 16 * GB}, [16 GB]{~}, [16 GB]{~ a small card} and [4x]{@ key}.",
    "Run 3 tests; see figure 2.",
    "$$\n16 GB\n$$",
    "<!-- 16 GB -->",
]


@pytest.mark.parametrize("text", FLAGGED)
def test_a_bare_quantity_is_found(text: str) -> None:
    assert list(unmarked(tokens(text)))


@pytest.mark.parametrize("text", EXEMPT)
def test_what_is_no_quantity_of_the_prose_is_exempt(text: str) -> None:
    assert list(unmarked(tokens(text))) == []


def test_a_bare_quantity_is_found_on_its_line() -> None:
    ((line, quantity),) = unmarked(tokens("one\n\ntwo\nand 16 GB\n", 10))
    assert (line, quantity.text) == (13, "16 GB")
