"""The tests of a file as cases of a killer: those without fixtures, each parameter set a case, and always the same."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from mutants.registry import Killer

ROOT = Path(__file__).parents[2]


def suite(path: str) -> Killer:
    """A killer whose cases are the tests of ``path``, relative to the repository."""

    def check(case: int) -> None:
        cases_of(path)[case][1]()

    return Killer(path, check, len(cases_of(path)), tuple(name for name, _ in cases_of(path)))


@cache
def cases_of(path: str) -> list[tuple[str, Callable[[], object]]]:
    spec = importlib.util.spec_from_file_location(f"suite_{Path(path).stem}", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The same examples each time, and the first that fails as it is.
    settings.register_profile(
        "mutants", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False
    )
    before = settings.get_current_profile_name()
    settings.load_profile("mutants")
    try:
        spec.loader.exec_module(module)
    finally:
        settings.load_profile(before)
    tests = [(name, f) for name, f in vars(module).items() if name.startswith("test_") and inspect.isfunction(f)]
    tests.sort(key=lambda entry: hasattr(entry[1], "hypothesis"))  # what takes longest comes last
    return [(name, call) for name, test in tests for call in _calls(test)]


def _calls(test: Callable[..., object]) -> list[Callable[[], object]]:
    marks = getattr(test, "pytestmark", [])
    sets = [_parameters(*mark.args[:2]) for mark in marks if mark.name == "parametrize"]
    choices = [{k: v for one in chosen for k, v in one.items()} for chosen in product(*sets)]
    if any(mark.name == "slow" for mark in marks):
        return []
    if any(set(inspect.signature(test).parameters) != set(choice) for choice in choices):
        return []
    return [lambda choice=choice: test(**choice) for choice in choices]  # type: ignore[misc]


def _parameters(names: str | list[str], values: Any) -> list[dict[str, Any]]:
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    rows = [value.values if isinstance(value, type(pytest.param())) else value for value in values]
    return [dict(zip(split, row if len(split) > 1 else [row], strict=True)) for row in rows]
