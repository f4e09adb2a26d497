"""Expressions of formula inputs: made from Altair parameters, evaluated here, written for the browser.

The evaluation in Python exists to check a figure at build: an expression must give what ``compute``
gives for plain numbers. A compute function that asks a parameter for a truth value (``if``, ``max``)
would otherwise go wrong unseen, since every parameter counts as true.

Hundreds of states share most of their arithmetic, so all expressions of a figure live in one
:class:`Graph`, in which equal parts are one node: checked once, shipped once.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import altair as alt
from altair.expr import core
from altair.utils.schemapi import debug_mode

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

_SHORTEST_SHARED = 9  # a part with a shorter text costs no more where it stands than by reference


def parameter(name: str) -> Any:
    """The Altair expression that stands for a formula input: its bare name."""
    return core.ConstExpression(name)


def quickly() -> AbstractContextManager[None]:
    """While it lasts, Altair does not write down every expression at each step of arithmetic to check it."""
    return debug_mode(False)


def text(expression: Any) -> str:
    """The expression in Vega's language, in which parameters are named as the inputs are."""
    graph = Graph()
    return graph.text(graph.add(expression))


def evaluate(expression: Any, env: Mapping[str, Any]) -> Any:
    """The value of an expression where the inputs are ``env``; what is no expression is its own value."""
    graph = Graph()
    return graph.function(graph.add(expression))(env) if is_expression(expression) else expression


class Graph:
    """Expressions as nodes of ``(kind, name, children)``; a node's children have lower numbers."""

    def __init__(self) -> None:
        self._nodes: list[tuple[str, Any, tuple[int, ...]]] = []
        self._numbers: dict[tuple[str, str, tuple[int, ...]], int] = {}
        self._seen: dict[int, tuple[Any, int]] = {}  # by identity; holds the object, so that it stays its own
        self._functions: list[Function] = []

    def add(self, value: Any) -> int:
        """The number of the node that is worth ``value``, an expression or what may stand in one."""
        if id(value) in self._seen:
            return self._seen[id(value)][1]
        number = self._number(*self._simpler(*self._parts(value)))
        self._seen[id(value)] = (value, number)
        return number

    def function(self, number: int) -> Function:
        """A function of the inputs that gives the node's value."""
        return self._functions[number]

    def text(self, number: int, names: Mapping[int, str] | None = None) -> str:
        """The node in Vega's language, with the parts that have ``names`` by name."""
        kind, name, children = self._nodes[number]
        parts = [(names or {}).get(c) or self.text(c, names) for c in children]
        if kind == "binary":
            return f"({parts[0]}{name}{parts[1]})"
        if kind == "unary":
            return f"({name}{parts[0]})"
        return f"{name}({','.join(parts)})" if kind == "call" else _literal(name) if kind == "constant" else str(name)

    def shared(self, roots: Iterable[int]) -> list[int]:
        """The nodes worth a name of their own: used more than once by ``roots`` or below them, children first."""
        uses = Counter(roots)
        below = sorted(uses, reverse=True)
        reached: set[int] = set()
        while below:
            number = below.pop()
            if number not in reached:
                reached.add(number)
                children = self._nodes[number][2]
                uses.update(children)
                below.extend(children)
        often = [n for n in sorted(reached) if uses[n] > 1 and self._nodes[n][2]]
        return [n for n in often if len(self.text(n)) >= _SHORTEST_SHARED]

    def _parts(self, value: Any) -> tuple[str, Any, tuple[int, ...]]:
        if isinstance(value, alt.Parameter):  # it answers any attribute with an expression: ask its name alone
            return "input", str(value.name), ()
        node = getattr(value, "expr", value) if is_expression(value) else value
        if isinstance(node, core.ConstExpression):
            return "input", str(node.name), ()
        if isinstance(node, core.BinaryExpression) and node.op in _BINARY:
            return "binary", node.op, (self.add(node.lhs), self.add(node.rhs))
        if isinstance(node, core.UnaryExpression) and node.op in _UNARY:
            return "unary", node.op, (self.add(node.val),)
        if isinstance(node, core.FunctionExpression) and node.name in _FUNCTIONS:
            return "call", node.name, tuple(self.add(a) for a in node.args)
        if value is None or isinstance(value, bool | int | float | str):
            return "constant", value, ()
        raise ValueError(
            f"the expression {node!r} uses what figures do not take: write it with minillm.costs.arithmetic"
        )

    def _simpler(self, kind: str, name: Any, children: tuple[int, ...]) -> tuple[str, Any, tuple[int, ...]]:
        """The same node without a sum with nothing or a product with one, which general formulas are full of."""
        if kind == "binary":
            for constant, other, operators in ((0, 1, "+*"), (1, 0, "+-*/")):
                number, neutral = children[constant], 0 if name in "+-" else 1
                if name in operators and self._nodes[number][0] == "constant" and self._is(number, neutral):
                    return self._nodes[children[other]]
        return kind, name, children

    def _is(self, number: int, value: int) -> bool:
        constant = self._nodes[number][1]
        return isinstance(constant, int | float) and not isinstance(constant, bool) and constant == value

    def _number(self, kind: str, name: Any, children: tuple[int, ...]) -> int:
        key = (kind, repr(name), children)  # 1, 1.0 and True are equal but not the same
        if key not in self._numbers:
            self._numbers[key] = len(self._nodes)
            self._nodes.append((kind, name, children))
            self._functions.append(self._made(kind, name, [self._functions[c] for c in children]))
        return self._numbers[key]

    @staticmethod
    def _made(kind: str, name: Any, parts: list[Function]) -> Function:
        if kind == "binary":
            binary, (left, right) = _BINARY[name], parts
            return lambda env: binary(left(env), right(env))
        if kind == "unary":
            unary, (operand,) = _UNARY[name], parts
            return lambda env: unary(operand(env))
        if kind == "call":
            function = _FUNCTIONS[name]
            return lambda env: function(*(part(env) for part in parts))
        return (lambda env: env[name]) if kind == "input" else (lambda _: name)


def _literal(value: Any) -> str:
    """A constant in Vega's language, numbers in their shortest form."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    whole = isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < 1e21)
    plain = str(int(value)) if whole else repr(value)
    digits = plain.rstrip("0")
    zeros = len(plain) - len(digits)
    return f"{digits}e{zeros}" if whole and zeros > 2 and digits.strip("-") else plain
