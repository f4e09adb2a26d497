"""Jinja's immutable sandbox with bounds: what a stranger's template runs, builds and prints comes to an end.

A loop's rounds and a macro's calls are charged, and so is the time. Whatever can make something large
out of something small is checked before it is done (operators, `join`, `replace`, texts of nested
lists) or is not there: filters are a list of those that chat templates use, and the methods of texts
that pad or format are hidden. Not bounded is the comparison of two nested lists.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any

from jinja2 import Template, nodes, pass_eval_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_STEPS = 100_000  # rounds of loops and calls of macros; a message costs a template one to ten
MAX_SECONDS = 20.0  # a long conversation takes well under one
MAX_CHARACTERS = 16_000_000  # of the rendered text, and of any text or list that is built
_MAX_BITS = 4096  # of a product

# Filters that work on any value, and those that make its text first.
_PLAIN = (
    *("abs", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last", "length"),
    *("list", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "unique"),
)
_OF_TEXT = (*("capitalize", "e", "escape", "lower", "safe", "string", "title", "trim", "upper", "wordcount"),)
_GLOBALS = ("dict", "namespace", "cycler", "joiner")  # without `lipsum`, which writes as much as it is told
_PADDING = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "translate", "to_bytes"}
)


class ChatTemplateError(ValueError):
    """The template or the messages cannot be used; the text says which, and why."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    steps = 0
    deadline_s = 0.0

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], finalize=weighed)
        self.globals = {name: self.globals[name] for name in _GLOBALS} | {"range": self.bounded_range}
        self.filters = {name: FILTERS[name] for name in _PLAIN}
        self.filters |= {name: _of_text(FILTERS[name]) for name in _OF_TEXT}
        self.filters |= {"indent": _indent, "join": _join, "replace": _replace, "tojson": _to_json}

    def bounded(self, source: str) -> Template:
        """The template of ``source``. Raises Jinja's ``TemplateSyntaxError``."""
        return self.from_string(_Charged().visit(self.parse(source)))

    def begin(self) -> None:
        """Count steps and time from here."""
        self.steps, self.deadline_s = 0, time.monotonic() + MAX_SECONDS

    def charge(self, steps: int = 1) -> None:
        """Count `steps`, and end the template when there were too many, or when it takes too long."""
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise ChatTemplateError(f"the chat template was stopped after {MAX_STEPS:,} steps: does it loop?")
        if time.monotonic() > self.deadline_s:
            raise ChatTemplateError(f"the chat template was stopped after {MAX_SECONDS:g} seconds: does it loop?")

    def bounded_range(self, *bounds: int) -> range:
        """`range`, which costs as many steps as it has numbers."""
        numbers = range(*bounds)
        # Not `len`, which an absurd range has not.
        self.charge(max(0, -(-(numbers.stop - numbers.start) // numbers.step)))
        return numbers

    def concatenated(self, *parts: object) -> str:
        """The operator `~`."""
        texts = [str(weighed(part)) for part in parts]
        check_size(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that can make something large out of something small."""
        if operator == "*":
            _check_product(left, right)
        if operator == "**" and not (abs(left) <= 1e6 and abs(right) <= 64):
            raise ChatTemplateError(f"the chat template computes {left} ** {right}: at most 1,000,000 ** 64 is allowed")
        if operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            check_size(len(left) + len(right))
        if operator == "%" and isinstance(left, str | bytes):
            raise ChatTemplateError("the chat template formats text with %: use the operator ~")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Without the methods that pad or format: their result is as long as they are told."""
        if isinstance(obj, str | bytes | int) and attr in _PADDING:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Jinja would hand out `format` past `is_safe_attribute`."""

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Checks what the methods `join` and `replace` would build."""
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str | bytes) and name == "join" and args:
            args = (list(args[0]), *args[1:])
            _check_join(owner, args[0])
        elif isinstance(owner, str | bytes) and name == "replace" and len(args) >= 2:
            _check_replace(owner, args[0], args[1])
        return super().call(context, obj, *args, **kwargs)


class _Charged(NodeTransformer):
    """Rewrites a parsed template: each round of a loop and call of a macro is charged, `~` is checked.

    The rewritten nodes reach the environment directly, so no variable of the template can shadow them.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._charged(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._charged(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._charged(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("concatenated", node.nodes, node.lineno)

    def _charged(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("charge", [], node.lineno), lineno=node.lineno))
        if isinstance(node, nodes.For) and node.test is not None:
            # A round that the loop's own `if` leaves out never reaches the body.
            charged = nodes.Not(_call("charge", [], node.lineno), lineno=node.lineno)
            node.test = nodes.And(charged, node.test, lineno=node.lineno)
        return node


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    """A call of `Sandbox.method` in a template's syntax tree."""
    call = nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)
    return call.set_lineno(line)  # type: ignore[return-value]


def check_size(size: int) -> None:
    """Raise where characters or elements are too many."""
    if size > MAX_CHARACTERS:
        raise ChatTemplateError(f"the chat template was stopped: it builds more than {MAX_CHARACTERS:,} characters")


def weighed(value: Any) -> Any:
    """``value``, unless its text would be too large: a list may hold another one many times over."""
    if not isinstance(value, str | int | float):
        check_size(_weight(value, {}))
    return value


def _weight(value: Any, known: dict[int, int]) -> int:
    """At least how many characters ``str(value)`` has; each object is looked at once."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Namespace):
        raise ChatTemplateError("the chat template was stopped: it prints a namespace")
    if not isinstance(value, list | tuple | Mapping):
        return 1
    if id(value) not in known:
        parts: Iterable[Any] = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(_weight(part, known) for part in parts)
    return known[id(value)]


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_BITS:
            raise ChatTemplateError(f"the chat template was stopped: it computes a number of over {_MAX_BITS} bits")
    elif not (isinstance(left, int | float) and isinstance(right, int | float)):
        times, thing = (left, right) if isinstance(left, int) else (right, left)
        check_size(times * len(thing))


def _check_join(separator: str | bytes, parts: list[Any]) -> None:
    check_size(sum(_weight(part, {}) for part in parts) + len(separator) * len(parts))


def _check_replace(text: str | bytes, old: Any, new: Any) -> None:
    check_size(len(text) + text.count(old) * len(new))


def _of_text(filter_: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that begins with the text of its value."""
    return lambda value, *args, **kwargs: filter_(weighed(value), *args, **kwargs)


@pass_eval_context
def _join(context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    parts = list(value)
    _check_join(str(weighed(d)), parts)
    return str(FILTERS["join"](context, parts, d, attribute))


def _replace(value: Any, old: Any, new: Any, count: int = -1) -> str:
    text, old, new = (str(weighed(part)) for part in (value, old, new))
    _check_replace(text, old, new)
    return text.replace(old, new, count)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = str(weighed(value))
    step = len(width) if isinstance(width, str) else width
    check_size(len(text) + step * (text.count("\n") + 1))
    return str(FILTERS["indent"](text, width, first, blank))


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """JSON without Jinja's HTML escapes: `<` stays `<`, as models saw it in training."""
    weight = _weight(value, {})
    check_size(weight * (1 + (indent or 0)))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
