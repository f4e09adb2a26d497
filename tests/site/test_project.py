"""The handbook itself passes its own checks, and its index is fresh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def handbook(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    code = "import sys; from visualizers.site.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_handbook_has_no_finding() -> None:
    done = handbook("check")
    assert done.stdout == ""
    assert done.returncode == 0, done.stderr
    assert "no finding" in done.stderr


def test_the_command_needs_a_project(tmp_path: Path) -> None:
    done = handbook("--root", str(tmp_path), "check")
    assert done.returncode == 1
    assert "is not inside the project" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_option_is_bad_usage() -> None:
    done = handbook("build", "--fast")
    assert done.returncode == 2
    assert "--fast" in done.stderr
