"""Refuses the arguments with which a cost formula would give a wrong number instead of an error."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

from minillm.costs.arithmetic import is_expression


class CostError(ValueError):
    """A value that no formula can use. The message names it, says what is taken, and the way out."""


def positive(**values: Any) -> None:
    """Every value is a finite number above 0 (each element of an array). Chart parameters pass unseen."""
    for name, value in values.items():
        _check(name, value, "above 0", lambda x: x > 0)


def not_negative(**values: Any) -> None:
    """Every value is a finite number of at least 0 (each element of an array). Chart parameters pass unseen."""
    for name, value in values.items():
        _check(name, value, "of at least 0", lambda x: x >= 0)


def _check(name: str, value: Any, wanted: str, holds: Callable[[Any], bool]) -> None:
    if type(value) in (int, float) and math.isfinite(value) and holds(value):
        return  # the usual case, which a simulated run meets a million times
    if is_expression(value):
        return
    elements = value.ravel().tolist() if hasattr(value, "ravel") else [value]
    for element in elements:
        number = isinstance(element, numbers.Real) and not isinstance(element, bool)
        if not number or not math.isfinite(element) or not holds(element):
            raise CostError(f"{name} is {element!r}: give a finite number {wanted}")
