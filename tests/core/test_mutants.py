"""Every mutant of the core is killed: the same list as ``make mutants``, one test for each."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from mutants import MUTANTS
from mutants.invariants import INVARIANTS
from mutants.killers import POOL
from mutants.registry import Killer, Mutant, SurvivedError, kill
from mutation import Edit

from minillm.core.blocks import BlockPool

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault)
def test_a_mutant_is_killed(mutant: Mutant) -> None:
    kill(mutant)


def test_a_fault_has_one_name() -> None:
    assert [fault for fault, count in Counter(mutant.fault for mutant in MUTANTS).items() if count > 1] == []


@pytest.mark.parametrize(
    "test", sorted({m.killer.test for m in MUTANTS} | {t for i in INVARIANTS.values() for t in i.tests})
)
def test_the_tests_that_are_named_exist(test: str) -> None:
    path, _, name = test.partition("::")
    body = ast.parse((ROOT / path).read_text()).body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    machines = {
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert name in functions | machines or not name


@pytest.mark.parametrize("name", INVARIANTS)
def test_an_invariant_has_tests_and_faults_that_break_it(name: str) -> None:
    invariant = INVARIANTS[name]
    assert invariant.tests
    assert invariant.faults
    assert set(invariant.faults) <= {mutant.fault for mutant in MUTANTS}


def test_an_edit_without_effect_is_no_mutant() -> None:
    harmless = [Edit(BlockPool, "allocate", "self.num_free -= 1", "self.num_free += -1")]
    with pytest.raises(SurvivedError, match=r"20 cases of .*TestPool find nothing"):
        kill(Mutant("harmless", harmless, POOL._replace(num_cases=20)))


def test_a_check_that_fails_without_the_fault_kills_nothing() -> None:
    def fails(case: int) -> None:
        raise AssertionError("always")

    edits = [Edit(BlockPool, "allocate", "self.num_free -= 1", "pass")]
    with pytest.raises(SurvivedError, match="fails without"):
        kill(Mutant("any", edits, Killer("none", fails, 1)))


def test_a_mutant_that_cannot_run_is_an_error_and_no_kill() -> None:
    with pytest.raises(NameError):
        kill(Mutant("broken", [Edit(BlockPool, "allocate", "self.num_free -= 1", "nothing_of_that_name")], POOL))


def test_the_command_prints_a_table_and_its_verdict() -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    command = [sys.executable, "-m", "mutants", "--of"]
    run = subprocess.run([*command, "TestPool"], env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    head, *rows, total = run.stdout.splitlines()
    assert head.split() == ["mutant", "seconds", "killed", "by"]
    assert [row.split("  ")[0] for row in rows] == [m.fault for m in MUTANTS if m.killer is POOL]
    assert total.startswith(f"{len(rows)} of {len(rows)} mutants killed in ")
    assert subprocess.run([*command, "no such word"], env=env, capture_output=True, check=False).returncode == 2
