"""The names that a formula may use: the catalogue, the cost functions, and the figures' values."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from minillm import catalog, costs
from visualizers.site.figures import Figures
from visualizers.site.limits import WithinLimit
from visualizers.site.units import Dimension, parse_unit
from visualizers.site.values import Entry, FormulaError, Function, Namespace, Value, wrap

_FLOP: Dimension = {"flop": 1}
_FLOP_PER_S: Dimension = {"flop": 1, "s": -1}
_INTENSITY: Dimension = {"flop": 1, "byte": -1}

# What the names of the cost functions do not say; a name that ends in its unit needs no entry here.
_COSTS: Mapping[str, Dimension] = {
    "attainable_flops": _FLOP_PER_S,
    "ridge_flops_per_byte": _INTENSITY,
    "matmul_intensity": _INTENSITY,
    "attention_flops": _FLOP,
    "linear_flops": _FLOP,
    "padding_waste": {},
    "bandwidth_utilization": {},
    "attention_pairs": {},
    "expected_experts": {},
    "swap_copies": {},
    "speculative_speedup": {},
}


def names(figures: Figures) -> Namespace:
    """Everything that a checked number of the handbook may name."""
    found: dict[str, Value | Entry | Function] = {
        name: Function(name, function, _COSTS.get(name))
        for name in costs.__all__
        if inspect.isfunction(function := getattr(costs, name))
    }
    for name, entry in catalog.names().items():
        target = WithinLimit(name, entry) if isinstance(entry, catalog.Model) else entry
        found[name] = Entry(name, target, catalog.DIMENSIONS)
    found["figure"] = Function("figure", lambda name: _figure(figures, name))
    return found


def _figure(figures: Figures, name: Any) -> Entry:
    """The values of a figure at its defaults, in base units."""
    if name not in figures.names():
        raise FormulaError(f"there is no figure {name!r}: there are {', '.join(figures.names())}")
    values, units = figures.values(name)
    wrapped = {}
    for key, value in values.items():
        try:
            scale, dimension = parse_unit(units.get(key, ""))
        except KeyError:
            scale, dimension = 1.0, {}  # a unit of the figure's own, such as "queued requests": a count
        number = value if isinstance(value, str | bool) or value is None else value * scale
        wrapped[key] = wrap(number, key, dimension) if number is not None else None
    return Entry(f'figure("{name}")', SimpleNamespace(**wrapped), {})
