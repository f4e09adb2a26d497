"""Arithmetic that gives numbers for numbers, arrays for arrays, and for parameters the expression of both."""

from __future__ import annotations

import math
import subprocess
import sys

import altair as alt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.costs.arithmetic import (
    absolute,
    both,
    ceil,
    ceildiv,
    clip,
    either,
    exp,
    floor,
    floordiv,
    log,
    log2,
    log10,
    maximum,
    minimum,
    sqrt,
    where,
)
from visualizers.levels import expressions

FORMULAS = {
    "operators": lambda a, b: (a + 2 * b) / b - a**2 + -b,
    "minimum": lambda a, b: minimum(a, b, 7),
    "maximum": lambda a, b: maximum(3, a, b),
    "rounding": lambda a, b: ceil(a / b) + floor(a / b) + ceildiv(a, b) + floordiv(a, b),
    "roots": lambda a, b: sqrt(a) + exp(-b) + log(a) + log2(b) + log10(a),
    "choice": lambda a, b: where(both(a > b, a < 90), where(either(a > 50, b < 3), 1, 2), clip(a, 5, 50)),
    "absolute": lambda a, b: absolute(a - b),
}


@given(a=st.integers(1, 10**6), b=st.integers(1, 10**6))
@pytest.mark.parametrize("name", FORMULAS)
def test_an_expression_is_worth_what_the_numbers_give(name, a, b):
    formula = FORMULAS[name]
    symbolic = formula(expressions.parameter("a"), expressions.parameter("b"))
    assert math.isclose(expressions.evaluate(symbolic, {"a": a, "b": b}), formula(a, b), rel_tol=1e-12)


@pytest.mark.parametrize("name", [n for n in FORMULAS if n != "roots"])
def test_an_array_gives_what_its_elements_give(name):
    a, b = np.array([1, 5, 16, 17, 70]), np.array([4, 4, 16, 3, 2])
    expected = [FORMULAS[name](int(x), int(y)) for x, y in zip(a, b, strict=True)]
    assert np.allclose(FORMULAS[name](a, b), expected)


def test_whole_numbers_stay_whole_and_exact():
    assert ceildiv(10**30 + 1, 10**15) == 10**15 + 1
    assert all(type(f(7, 2)) is int for f in (ceildiv, floordiv, minimum, maximum))
    assert type(ceil(3.2)) is int


def test_numbers_need_neither_altair_nor_numpy():
    code = (
        "import sys; from minillm.costs.arithmetic import ceil, where, maximum; "
        "assert (ceil(2.5), where(1 > 2, 3, 4), maximum(1, 2)) == (3, 4, 2); "
        "sys.exit('altair' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_figures_cannot_say_is_named():
    parameter = alt.param(name="a", value=1)
    with pytest.raises(ValueError, match=r"write it with minillm\.costs\.arithmetic"):
        expressions.evaluate(parameter.bytes, {"a": 1})
    with pytest.raises(AttributeError):
        _ = expressions.parameter("a").bytes


def test_a_parameter_of_altair_gives_the_same():
    a = alt.param(name="a", value=1)
    assert expressions.text(FORMULAS["operators"](a, 2)) == expressions.text(
        FORMULAS["operators"](expressions.parameter("a"), 2)
    )


def test_the_text_is_the_browsers():
    a, b = expressions.parameter("a"), expressions.parameter("b")
    assert expressions.text(a) == "a"
    assert expressions.text(ceildiv(a, 16) * 2**b) == "(ceil((a/16))*pow(2,b))"
    assert expressions.text(where(a <= b, "fits", "doesn't")) == r"if((a<=b),'fits','doesn\'t')"
    assert expressions.text(-(a * 8e12) + 2.5e-7) == "((-(a*8e12))+2.5e-07)"


def test_sums_with_nothing_and_products_with_one_are_left_out():
    a = expressions.parameter("a")
    assert expressions.text(0 + (1 * a + 0) / 1 - 0) == "a"
    assert expressions.text(1 - (0 - a)) == "(1-(0-a))"
    assert expressions.text(1 / a + (a - 1) * 0) == "((1/a)+((a-1)*0))"


def test_equal_parts_are_one_node_and_named_where_they_are_used_twice():
    a, b = expressions.parameter("a"), expressions.parameter("b")
    graph = expressions.Graph()
    roots = [graph.add(sqrt(a * b + 17) + 1), graph.add(sqrt(a * b + 17) + 2), graph.add(a * b + 17)]
    shared = graph.shared(roots)
    assert [graph.text(n) for n in shared] == ["((a*b)+17)", "sqrt(((a*b)+17))"]
    names = {n: f"_{i}" for i, n in enumerate(shared)}
    assert [graph.text(n, names) for n in shared] == ["((a*b)+17)", "sqrt(_0)"]
    assert [names.get(n) or graph.text(n, names) for n in roots] == ["(_1+1)", "(_1+2)", "_0"]
    assert [graph.function(n)({"a": 2, "b": 4}) for n in roots] == [6, 7, 25]
