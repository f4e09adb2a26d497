"""Functions that mean the same for a number, a NumPy array and an Altair parameter.

A cost formula written with these runs as plain arithmetic, and, called with Altair parameters,
yields the Vega expression of itself, so a browser figure needs no second copy of the formula.
Neither Altair nor NumPy is imported here: an argument can only be theirs once its owner is loaded.

Operators (``+ - * / ** <`` ...) need no wrapper. Not to be used on a value that may be a parameter:
``//`` (use :func:`floordiv`), ``and``/``or``/``if``/``max``/``min`` (they ask for a truth value,
which a parameter does not have: use :func:`where`, :func:`minimum`, :func:`maximum`).
"""

from __future__ import annotations

import math
import sys
from typing import Any

_PLAIN = (int, float)


def is_expression(value: object) -> bool:
    """Whether ``value`` is an Altair parameter or an expression made from one."""
    if type(value) in _PLAIN:  # asked for every argument of every formula
        return False
    core = sys.modules.get("altair.expr.core")
    return core is not None and isinstance(value, core.OperatorMixin)


def _is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _call(name: str, *args: Any) -> Any:
    """The Vega expression ``name(args...)``."""
    return sys.modules["altair.expr.core"].FunctionExpression(name, args)


def _dispatch(vega: str, numpy_name: str, plain: Any, *args: Any) -> Any:
    if any(is_expression(a) for a in args):
        return _call(vega, *args)
    if any(_is_array(a) for a in args):
        return getattr(sys.modules["numpy"], numpy_name)(*args)
    return plain(*args)


def minimum(a: Any, b: Any, *more: Any) -> Any:
    """The smallest of the arguments."""
    for value in (b, *more):
        a = _dispatch("min", "minimum", min, a, value)
    return a


def maximum(a: Any, b: Any, *more: Any) -> Any:
    """The largest of the arguments."""
    for value in (b, *more):
        a = _dispatch("max", "maximum", max, a, value)
    return a


def ceil(x: Any) -> Any:
    """The least whole number that is not below ``x``: an ``int`` for a plain number."""
    return _dispatch("ceil", "ceil", math.ceil, x)


def floor(x: Any) -> Any:
    """The greatest whole number that is not above ``x``: an ``int`` for a plain number."""
    return _dispatch("floor", "floor", math.floor, x)


def floordiv(a: Any, b: Any) -> Any:
    """``a // b``. In an expression it is ``floor(a / b)``: the same for whole numbers below 2**53."""
    if is_expression(a) or is_expression(b):
        return _call("floor", a / b)
    return a // b


def ceildiv(a: Any, b: Any) -> Any:
    """``a / b`` rounded up, exact for plain whole numbers of any size: pages that hold ``a`` tokens, say."""
    if is_expression(a) or is_expression(b):
        return _call("ceil", a / b)
    return -(-a // b)


def sqrt(x: Any) -> Any:
    """The square root."""
    return _dispatch("sqrt", "sqrt", math.sqrt, x)


def exp(x: Any) -> Any:
    """e to the power of ``x``."""
    return _dispatch("exp", "exp", math.exp, x)


def log(x: Any) -> Any:
    """The natural logarithm."""
    return _dispatch("log", "log", math.log, x)


def log2(x: Any) -> Any:
    """The logarithm to base 2. Vega has none: the figures' script gives it one (exact at powers of two)."""
    return _dispatch("log2", "log2", math.log2, x)


def log10(x: Any) -> Any:
    """The logarithm to base 10. Vega has none: the figures' script gives it one (exact at powers of ten)."""
    return _dispatch("log10", "log10", math.log10, x)


def absolute(x: Any) -> Any:
    """The value without its sign."""
    return _dispatch("abs", "abs", abs, x)


def clip(x: Any, low: Any, high: Any) -> Any:
    """``x`` held between ``low`` and ``high``."""
    return minimum(maximum(x, low), high)


def where(test: Any, a: Any, b: Any) -> Any:
    """``a`` where ``test`` holds, else ``b``. Both are computed: neither may fail where it is not taken."""
    if any(is_expression(v) for v in (test, a, b)):
        return _call("if", test, a, b)
    if _is_array(test):
        return sys.modules["numpy"].where(test, a, b)
    return a if test else b


def both(a: Any, b: Any) -> Any:
    """``a and b`` for two tests."""
    if is_expression(a) or is_expression(b):
        return _call("if", a, b, False)
    return a & b if _is_array(a) or _is_array(b) else bool(a) and bool(b)


def either(a: Any, b: Any) -> Any:
    """``a or b`` for two tests."""
    if is_expression(a) or is_expression(b):
        return _call("if", a, True, b)
    return a | b if _is_array(a) or _is_array(b) else bool(a) or bool(b)
