"""Expressions of formula inputs: made from Altair parameters, written for the browser, evaluated here.

The evaluation in Python exists to check a figure at build: an expression must give what ``compute``
gives for plain numbers. A compute function that asks a parameter for a truth value (``if``, ``max``)
would otherwise go wrong unseen, since every parameter counts as true.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
from altair.expr import core

from minillm.costs.arithmetic import is_expression

Function = Callable[[Mapping[str, Any]], Any]

_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": math.fmod,  # the sign of the dividend, as in JavaScript
    "==": operator.eq,
    "===": operator.eq,
    "!=": operator.ne,
    "!==": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "&&": lambda a, b: a and b,
    "||": lambda a, b: a or b,
}

_UNARY: Mapping[str, Callable[[Any], Any]] = {"-": operator.neg, "+": operator.pos, "!": operator.not_}

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "exp": math.exp,
    "floor": math.floor,
    "if": lambda test, a, b: a if test else b,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "max": max,
    "min": min,
    "pow": pow,
    "sqrt": math.sqrt,
}


def parameter(name: str, value: float) -> Any:
    """The Altair parameter that stands for a formula input."""
    return alt.param(name=name, value=value)


def text(expression: Any) -> str:
    """The expression in Vega's language, in which parameters are named as the inputs are."""
    node = _node(expression)
    return str(node.name) if isinstance(node, alt.Parameter) else repr(node)


class Compiler:
    """Makes functions of the inputs from expressions; equal expressions share one."""

    def __init__(self) -> None:
        self._made: dict[str, Function] = {}

    def __call__(self, cell: Any) -> Function:
        """A function that gives a cell's value at some inputs. What is no expression is its own value."""
        if not is_expression(cell):
            return lambda _: cell
        key = text(cell)
        if key not in self._made:
            self._made[key] = _function(_node(cell))
        return self._made[key]


def evaluate(expression: Any, env: Mapping[str, Any]) -> Any:
    """The value of an expression where the inputs are ``env``; what is no expression is its own value."""
    return Compiler()(expression)(env)


def _function(node: Any) -> Function:
    if not is_expression(node):
        return lambda _: node
    if isinstance(node, alt.Parameter):
        name = str(node.name)
        return lambda env: env[name]
    if isinstance(node, core.BinaryExpression):
        binary, left, right = _BINARY[node.op], _function(_node(node.lhs)), _function(_node(node.rhs))
        return lambda env: binary(left(env), right(env))
    if isinstance(node, core.UnaryExpression):
        unary, operand = _UNARY[node.op], _function(_node(node.val))
        return lambda env: unary(operand(env))
    if isinstance(node, core.FunctionExpression) and node.name in _FUNCTIONS:
        function, arguments = _FUNCTIONS[node.name], [_function(_node(a)) for a in node.args]
        return lambda env: function(*(a(env) for a in arguments))
    raise ValueError(f"the expression {node!r} uses what figures do not take: write it with visualizers.arithmetic")


def _node(expression: Any) -> Any:
    """The expression under Altair's wrapper; a parameter is its own."""
    if isinstance(expression, alt.Parameter):  # it answers any attribute with an expression: ask nothing
        return expression
    return getattr(expression, "expr", expression)
