"""A figure's values at every state that is computed, as one plain JSON object for programs that cannot ask."""

from __future__ import annotations

import itertools
from typing import Any

from visualizers.levels import describe, schema
from visualizers.levels.snapshot import Snapshot


def grid(snapshot: Snapshot) -> dict[str, Any]:
    """The figure at its defaults, whole, and a row of inputs and values for each combination of grid inputs.

    The inputs that no grid has stand at their defaults in all rows.
    """
    visualizer, stops = snapshot.visualizer, [i.grid() for i in snapshot.grid_inputs]
    names = [i.name for i in snapshot.grid_inputs]
    rows = []
    for combination in itertools.product(*stops):
        values = snapshot.at(dict(zip(names, combination, strict=True))).data.values
        rows.append([*combination, *(values[name] for name in visualizer.units)])
    found = describe.record(snapshot, snapshot.default) | {"recorded_at": snapshot.recorded_at(snapshot.default)}
    return {
        **schema.entry(visualizer),
        "default": found,
        "columns": [*names, *visualizer.units],
        "rows": rows,
    }
