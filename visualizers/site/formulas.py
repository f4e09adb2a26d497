"""Evaluates the formula of a checked number: arithmetic over named values, and nothing else.

A formula is parsed by ``ast`` and walked; no name leads to anything but the namespace handed in, no
attribute starts with an underscore, no call reaches a function that the namespace does not list.
A value carries its dimension where it is known (units, catalogue entries, figures' values, names that end in
their unit), and None where it is not: a known dimension is checked, an unknown one never guessed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from visualizers.site.units import NAMED_UNITS, Dimension, combine, show_dimension, show_value
from visualizers.site.values import Entry, FormulaError, Function, Namespace, Value, plain, what, wrap

_MAX_LENGTH = 400  # characters: longer belongs into minillm.costs, with a name and a test
_MAX_EXPONENT = 1000


@dataclass(frozen=True)
class Result:
    """What a formula gives (several values where it is a tuple), and how it reads with its values put in."""

    values: tuple[Value, ...]
    formula: str
    with_values: str
    given: bool  # one literal with a unit, which says a number again and computes nothing


_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}

# Functions of numbers that keep the dimension of their arguments.
_BUILTINS: Mapping[str, Callable[..., Any]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "abs": abs,
    "min": min,
    "max": max,
}
_PLAIN_BUILTINS: Mapping[str, Callable[..., Any]] = {
    "sqrt": math.sqrt,
    "log": math.log,
    "log2": math.log2,
    "exp": math.exp,
}

# "140 × GB", as a formula must write it, is read as "140 GB".
_UNIT_PRODUCT = re.compile(rf"([\d.,]+) × ({'|'.join(sorted(NAMED_UNITS, key=len, reverse=True))})(?!\w)")


def evaluate(formula: str, namespace: Namespace) -> Result:
    """The value of ``formula``. Raises :class:`FormulaError` with the way out for whatever is not allowed."""
    if len(formula) > _MAX_LENGTH:
        raise FormulaError(
            f"the formula has {len(formula)} characters, the limit is {_MAX_LENGTH}: "
            "make it a function of minillm.costs"
        )
    try:
        tree = ast.parse(formula, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise FormulaError(f"`{formula}` is no formula: {getattr(error, 'msg', error)}") from None
    walker = _Walker(namespace)
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    values = tuple(walker.number(part) for part in parts)
    given = all(_is_given(part) for part in parts)
    return Result(values, formula, walker.with_values(tree), given)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that is too large for a float
        return False


def _is_given(node: ast.expr) -> bool:
    """Whether a formula only states a number: ``16``, ``64 * GB``, ``10 * tokens / s``, ``1 * 12 + 0``."""
    match node:
        case ast.Constant():
            return True
        case ast.UnaryOp(operand=operand):
            return _is_given(operand)
        case ast.Call(func=ast.Name(id=name), args=[only]) if name in _BUILTINS:
            return _is_given(only)
        case ast.BinOp(left=ast.Name(id=name), op=ast.Mult(), right=right):
            return name in NAMED_UNITS and _is_given(right)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=ast.Name(id=name)):
            return name in NAMED_UNITS and _is_given(left)
        case ast.BinOp(left=left, op=op, right=ast.Constant(value=neutral)) if _leaves(op, neutral):
            return _is_given(left)
        case ast.BinOp(left=ast.Constant(value=neutral), op=ast.Mult() | ast.Add() as op, right=right):
            return _leaves(op, neutral) and _is_given(right)
    return False


def _leaves(op: ast.operator, neutral: object) -> bool:
    """Whether an operation with this number changes nothing."""
    return neutral == (0 if isinstance(op, (ast.Add, ast.Sub)) else 1)


class _Walker:
    """Evaluates one tree, and notes the value of every leaf for the reader."""

    def __init__(self, namespace: Namespace) -> None:
        self._names = namespace
        self._shown: dict[ast.AST, str] = {}

    def number(self, node: ast.expr) -> Value:
        value = self._visit(node)
        if not isinstance(value, Value):
            raise FormulaError(f"`{ast.unparse(node)}` is {what(value)}, not a number: name one of its values")
        if not _is_finite(value.number):
            raise FormulaError(f"`{ast.unparse(node)}` is not a finite number")
        return value

    def with_values(self, tree: ast.expr) -> str:
        """The formula with every leaf replaced by its value, in the signs that a reader expects."""
        shown = self._shown

        class Substitute(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> ast.AST:
                if node in shown:
                    return ast.Name(id=shown[node])
                return self.generic_visit(node)

        # The tree is parsed anew nowhere, so replacing nodes in place is safe.
        text = ast.unparse(Substitute().visit(tree))
        for sign, shown_sign in ((" * ", " × "), (" / ", " ÷ "), (" - ", " − ")):
            text = text.replace(sign, shown_sign)
        return _UNIT_PRODUCT.sub(r"\1 \2", text)

    def _visit(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | str()):
                return node.value
            case ast.Constant(value=int() | float() as literal):
                return Value(literal, {})
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                value = self.number(operand)
                return Value(-value.number if isinstance(node.op, ast.USub) else value.number, value.dimension)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(ast.unparse(node), op, self.number(left), self.number(right))
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Attribute():
                return self._leaf(node, self._attribute(node))
            case ast.Call(func=ast.Name(id=name)) if name in _BUILTINS or name in _PLAIN_BUILTINS:
                return self._builtin(node, name)
            case ast.Call():
                return self._leaf(node, self._call(node))
        raise FormulaError(
            f"`{ast.unparse(node)}` is not allowed in a formula: use numbers, + - * / // % **, units, "
            "catalogue entries, functions of minillm.costs and figure(...)"
        )

    def _leaf(self, node: ast.expr, value: Any) -> Any:
        if isinstance(value, Value):
            self._shown[node] = show_value(value.number, value.dimension)
        return value

    def _name(self, node: ast.expr, name: str) -> Any:
        if name in self._names:
            return self._names[name]
        if name in NAMED_UNITS:
            unit = NAMED_UNITS[name]
            return Value(unit.scale, unit.dimension)
        raise FormulaError(
            f"`{name}` is unknown: it is no catalogue slug (with underscores), no function of minillm.costs and no unit"
        )

    def _binary(self, text: str, op: ast.operator, left: Value, right: Value) -> Value:
        function = _OPERATORS.get(type(op))
        if function is None:
            raise FormulaError(f"`{text}` uses an operator that is not allowed: use + - * / // % **")
        dimension = _binary_dimension(text, op, left, right)
        if isinstance(op, ast.Pow) and abs(right.number) > _MAX_EXPONENT:
            raise FormulaError(f"`{text}` has an exponent of {right.number:g}, the limit is {_MAX_EXPONENT}")
        try:
            number = function(left.number, right.number)
        except ZeroDivisionError:
            raise FormulaError(f"`{text}` divides by zero") from None
        except OverflowError:
            raise FormulaError(f"`{text}` is too large a number") from None
        if isinstance(number, complex) or not _is_finite(number):
            raise FormulaError(f"`{text}` is not a finite number")
        return Value(number, dimension)

    def _attribute(self, node: ast.Attribute) -> Any:
        owner = self._visit(node.value)
        if not isinstance(owner, Entry):
            raise FormulaError(f"`{ast.unparse(node.value)}` is {what(owner)} and has no `.{node.attr}`")
        public = sorted(name for name in dir(owner.target) if not name.startswith("_"))
        if node.attr not in public:
            raise FormulaError(f"`{owner.name}` has no `{node.attr}`: it has {', '.join(public)}")
        return wrap(getattr(owner.target, node.attr), node.attr, owner.dimensions.get(node.attr))

    def _builtin(self, node: ast.Call, name: str) -> Value:
        arguments = [self.number(argument) for argument in node.args]
        if not arguments or node.keywords:
            raise FormulaError(f"`{ast.unparse(node)}`: {name} takes one or more numbers and no names")
        known = [a.dimension for a in arguments if a.dimension is not None]
        if any(dimension != known[0] for dimension in known):
            raise FormulaError(f"`{ast.unparse(node)}` mixes {', '.join(show_dimension(d) for d in known)}")
        dimension = known[0] if len(known) == len(arguments) else None
        if name in _PLAIN_BUILTINS and dimension:
            raise FormulaError(f"`{ast.unparse(node)}`: {name} takes a plain number, not {show_dimension(dimension)}")
        function = _BUILTINS.get(name) or _PLAIN_BUILTINS[name]
        try:
            return Value(function(*(a.number for a in arguments)), dimension)
        except (TypeError, ValueError, OverflowError) as error:
            raise FormulaError(f"`{ast.unparse(node)}` failed: {error}") from error

    def _call(self, node: ast.Call) -> Any:
        function = self._visit(node.func)
        if not isinstance(function, Function):
            raise FormulaError(f"`{ast.unparse(node.func)}` is {what(function)} and cannot be called")
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            raise FormulaError(f"`{ast.unparse(node)}` uses *: write the arguments out")
        positional = [plain(self._visit(argument)) for argument in node.args]
        named = {k.arg: plain(self._visit(k.value)) for k in node.keywords if k.arg is not None}
        try:
            result = function.call(*positional, **named)
        except FormulaError:
            raise
        except Exception as error:
            raise FormulaError(f"`{ast.unparse(node)}` failed: {error}") from error
        return wrap(result, function.name, function.dimension)


def _binary_dimension(text: str, op: ast.operator, left: Value, right: Value) -> Dimension | None:
    if isinstance(op, ast.Pow):
        if left.dimension is None or right.dimension:
            return None if left.dimension is None else {}
        if left.dimension and right.number != int(right.number):
            return None
        return {name: int(exponent * right.number) for name, exponent in left.dimension.items()}
    if left.dimension is None or right.dimension is None:
        return None
    if isinstance(op, (ast.Mult, ast.Div, ast.FloorDiv)):
        return combine(left.dimension, right.dimension, 1 if isinstance(op, ast.Mult) else -1)
    if left.dimension != right.dimension:
        verb = {ast.Add: "adds", ast.Sub: "subtracts"}.get(type(op), "takes the rest of")
        raise FormulaError(
            f"`{text}` {verb} {show_dimension(left.dimension)} and {show_dimension(right.dimension)}: "
            "give both one unit"
        )
    return left.dimension
