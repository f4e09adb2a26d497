"""What pages and the README quote to be typed runs; whether it exists at all is a finding of ``handbook check``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from minillm import cli
from visualizers.levels.computed import ComputedFigures
from visualizers.site.commands import BIN, _command

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES = [
    (file.name, line.strip())
    for file in [ROOT / "README.md", *sorted((ROOT / "handbook").rglob("*.md"))]
    for block in FENCE.findall(file.read_text(encoding="utf-8"))
    for line in block.split("\n")
    if line.strip()
]
# The bundled model needs no download; the others are parsed by the check, as are figures.
GENERATED = [line for _, line in LINES if line.startswith(f"{BIN}minillm generate") and "--model smollm2" not in line]


def test_pages_quote_commands() -> None:
    assert len(LINES) > 20
    assert GENERATED


@pytest.mark.parametrize(("file", "line"), LINES)
def test_it_is_a_command_of_the_readmes_environment(file: str, line: str) -> None:
    assert _command(line, ROOT, ComputedFigures(), fenced=True) == [], file


@pytest.mark.parametrize("line", GENERATED)
def test_it_runs(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    code = cli.main(shlex.split(line)[1:])
    said = capsys.readouterr()
    # The one that asks for the impossible is quoted to show the refusal.
    assert code == (2 if "[a-z ]*!" in line else 0), said.err
