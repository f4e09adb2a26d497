"""What a mutant is, what kills it, and how that is found out.

A killer is a check of one case, made from a number: the random callers, workloads and definitions that the
property tests use, without hypothesis, so that a kill takes the same case each time. Only a violated
invariant, a wrong result or an error of the code's own counts as a kill, and only if the unchanged code passes
the very case that killed the mutant.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import pytest
from mutation import Edit, mutate

from minillm.backends.hash_model import WrongReadError
from minillm.core.blocks import PoolError
from minillm.core.engine import EngineError
from minillm.router import RouterError

# A NameError or a TypeError would be a fault of the mutant, not one that a check has found.
KILLS = (
    *(AssertionError, pytest.fail.Exception, PoolError, EngineError, WrongReadError, RouterError),
    *(IndexError, KeyError, ValueError, ZeroDivisionError),
)


class Killer(NamedTuple):
    """A check that raises on a case that shows a fault."""

    test: str  # the property test, by its id, that makes the same check on cases of its own; or a file of tests
    check: Callable[[int], None]
    num_cases: int
    names: tuple[str, ...] = ()  # of a file's tests, case by case

    def named(self, case: int) -> str:
        """What found a mutant."""
        return f"{self.test}::{self.names[case]}" if self.names else f"{self.test}, case {case}"


class Mutant(NamedTuple):
    """One fault, planted by edits of the code's source."""

    fault: str
    edits: list[Edit]
    killer: Killer


class Kill(NamedTuple):
    """The first case that finds a mutant."""

    case: int
    error: str
    seconds: float


class SurvivedError(AssertionError):
    """No case finds the fault, or the check fails without it as well."""


def kill(mutant: Mutant) -> Kill:
    """Plant the fault and check case after case until one finds it; ``SurvivedError`` if none does."""
    started = time.perf_counter()
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch, mutant.edits)
        case, found = _first_failure(mutant.killer)
    if found is None:
        raise SurvivedError(f"{mutant.fault}: {mutant.killer.num_cases:,} cases of {mutant.killer.test} find nothing")
    try:
        mutant.killer.check(case)
    except KILLS as error:
        raise SurvivedError(f"case {case} of {mutant.killer.test} fails without {mutant.fault}: {error}") from error
    return Kill(case, f"{type(found).__name__}: {found}", time.perf_counter() - started)


def _first_failure(killer: Killer) -> tuple[int, BaseException | None]:
    for case in range(killer.num_cases):
        try:
            killer.check(case)
        except KILLS as error:
            return case, error
    return killer.num_cases, None
