"""Evaluates a Vega expression made from Altair parameters, independently of the site's own evaluator."""

from __future__ import annotations

import math
import re
from typing import Any

import altair as alt

_FUNCTIONS = {
    "min": min,
    "max": max,
    "ceil": math.ceil,
    "floor": math.floor,
    "pow": pow,
    "abs": abs,
    "sqrt": math.sqrt,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "exp": math.exp,
    "if_": lambda test, a, b: a if test else b,
}


def parameters(**values: float) -> dict[str, Any]:
    """An Altair parameter for each name."""
    return {name: alt.param(name=name, value=value) for name, value in values.items()}


def value_of(expression: Any, **values: float) -> Any:
    """What the browser would compute: the expression's text, read as Python where both languages agree."""
    found = expression.to_dict()
    text = found["expr"] if isinstance(found, dict) else str(found)
    text = re.sub(r"\bif\(", "if_(", text).replace("===", "==")
    assert not re.search(r"&&|\|\||!|\?", text), f"no Python for {text}"
    return eval(text, {"__builtins__": {}}, {**_FUNCTIONS, **values})  # noqa: S307 - text made by this test
