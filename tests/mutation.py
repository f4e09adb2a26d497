"""Mutants of the code under test: an edit of one function's source, in place while a test runs."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any, NamedTuple

import pytest


class Edit(NamedTuple):
    """In the source of one method, ``old`` becomes ``new``: a mutant of today's code, never of a copy.

    For a function, ``owner`` is the module that calls it.
    """

    owner: Any
    method: str
    old: str
    new: str


def mutate(monkeypatch: pytest.MonkeyPatch, edits: list[Edit]) -> None:
    for owner, method in dict.fromkeys((edit.owner, edit.method) for edit in edits):
        function = getattr(owner, method)
        source = textwrap.dedent(inspect.getsource(function))
        for edit in edits:
            if (edit.owner, edit.method) == (owner, method):
                assert source.count(edit.old) == 1, f"{method} has {source.count(edit.old)} times {edit.old!r}"
                source = source.replace(edit.old, edit.new)
        scope: dict[str, Any] = dict(vars(sys.modules[function.__module__]))
        exec("from __future__ import annotations\n" + source, scope)  # noqa: S102
        monkeypatch.setattr(owner, method, scope[method])
