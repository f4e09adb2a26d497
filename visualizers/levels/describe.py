"""The facts of a figure that its page, its Markdown and its command line all tell, in one form each."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from visualizers.contract import Visualizer
from visualizers.levels.cache import ROOT
from visualizers.levels.snapshot import Snapshot, State

BADGES: Mapping[str, str] = {
    "computed": "computed from a formula",
    "run": "run on the real engine",
    "simulated": "simulated: the real scheduler, modelled time",
}


def overrides(visualizer: Visualizer, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that are not at their defaults."""
    return {name: value for name, value in inputs.items() if value != visualizer.defaults()[name]}


def command(visualizer: Visualizer, inputs: Mapping[str, Any]) -> str:
    """The shell command that computes the figure at ``inputs``, anew: what a build has kept is no proof."""
    options = [f"--{name} {shlex.quote(str(v))}" for name, v in overrides(visualizer, inputs).items()]
    return " ".join([".venv/bin/python -m visualizers", visualizer.name, *options, "--fresh --json"])


def figure_id(visualizer: Visualizer, inputs: Mapping[str, Any]) -> str:
    """The figure's anchor, which no heading has: its name, with a digest where a page sets a state and may show two."""
    changed = overrides(visualizer, inputs)
    mark = sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:6]
    return f"figure-{visualizer.name}-{mark}" if changed else f"figure-{visualizer.name}"


def link(snapshot: Snapshot, inputs: Mapping[str, Any], page_url: str) -> str:
    """The address of the figure in a state: ``PAGE?context=8192#figure-kv-cache-size-1a2b3c``."""
    query = urlencode(overrides(snapshot.visualizer, inputs))
    return f"{page_url}{'?' if query else ''}{query}#{figure_id(snapshot.visualizer, inputs)}"


def source_line(visualizer: Visualizer) -> tuple[str, int, int]:
    """The file in the repository, and the first and last line, of the code that computes the figure."""
    lines, first = inspect.getsourcelines(visualizer.compute)
    file = inspect.getsourcefile(visualizer.compute) or ""
    try:
        file = str(ROOT.joinpath(file).resolve().relative_to(ROOT))
    except ValueError:
        file = file.rsplit("/", 1)[-1]
    return file, first, first + len(lines) - 1


def source_url(visualizer: Visualizer, repo_url: str) -> str:
    """The address of those lines on the code host."""
    file, first, last = source_line(visualizer)
    return f"{repo_url.rstrip('/')}/blob/main/{file}#L{first}-L{last}"


def record(snapshot: Snapshot, state: State) -> dict[str, Any]:
    """A state as one flat JSON object: what ``--json`` prints and what the figure's JSON download holds."""
    visualizer = snapshot.visualizer
    found: dict[str, Any] = {
        "name": visualizer.name,
        "title": visualizer.title,
        "badge": visualizer.badge,
        "inputs": dict(state.inputs),
        **state.data.values,
        "units": dict(visualizer.units),
        "table": {
            "columns": [{"key": c.key, "label": c.label, "unit": c.unit} for c in state.table.columns],
            "rows": list(state.table.rows),
        },
        "sentence": state.text(),
    }
    if snapshot.provenance():
        found["provenance"] = snapshot.provenance()
    return found
