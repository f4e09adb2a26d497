"""What a benchmark printed on some machine, kept beside the figure that shows it: ``visualizers/figures/STEM.json``."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from visualizers.formats import format_value


@cache
def record(stem: str) -> dict[str, Any]:
    """The record of a figure, with its machine, date and command."""
    file = resources.files("visualizers.figures") / f"{stem}.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def where_and_when(stem: str) -> str:
    """On what, under which load and when it was recorded, and the command that does it again."""
    found = record(stem)
    machine = found["machine"]
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    return (
        f"{threads} of an {machine['cpu']} in {machine['clock']} (load average "
        f"{format_value(machine['load_average'], 'fixed1')}) on {found['date']}. Repeat it: {found['command']}"
    )
