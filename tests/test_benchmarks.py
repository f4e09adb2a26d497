"""Benchmarks: what cannot be measured is refused in one line, before anything is measured or written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{arguments[0]}.py"), *arguments[1:]]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("control_plane --steps -1", "'-1' is no whole number of at least 1"),
        ("control_plane --rounds 0", "'0' is no whole number of at least 1"),
        ("prefix_cache --blocks 8 --prompt-blocks 9", "there is no whole prompt"),
        ("prefix_cache --block-size 0", "'0' is no whole number"),
        ("speculation --tokens 1", "'1' is no whole number of at least 2"),
        ("speculation --models nobody", "none of the models is here"),
        ("speculation --record /no/such/folder/file", "name a file in a folder that is there"),
        ("grammar_mask --outputs 1", "'1' is no whole number of at least 2"),
        ("decode_speed --models nobody", "none of the models is here"),
        ("decode_speed --backends abacus", "invalid choice: 'abacus'"),
        ("decode_speed --record .", "name a file in a folder that is there"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: str, named: str) -> None:
    run = benchmark(*arguments.split())
    assert run.returncode == 2, run.stderr
    assert named in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


COMMANDS = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"options", "machine"}  # those two are shared


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_benchmark_says_what_it_measures(name: str) -> None:
    run = benchmark(name, "--help")
    assert run.returncode == 0, run.stderr
    assert f"benchmarks/{name}.py" in run.stdout


def test_a_small_run_ends_with_json() -> None:
    run = benchmark("prefix_cache", "--blocks", "8", "--prompt-blocks", "4", "--block-size", "1", "--rounds", "1")
    assert run.returncode == 0, run.stderr
    assert '"blocks": 8' in run.stdout.splitlines()[-1]
