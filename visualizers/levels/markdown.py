"""The figure for the Markdown twin of a page: the same facts and the same numbers, for a reader without eyes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from visualizers.contract import Choice, Input, Number, are_numbers
from visualizers.formats import heading
from visualizers.levels import controls, describe
from visualizers.levels.snapshot import Snapshot, State
from visualizers.levels.tables import markdown_table

_POINTS = 5  # points of an input that the twin lists
_DIGITS = 6  # of a number that is not whole: more than any measurement or data sheet has


def figure_markdown(snapshot: Snapshot, state: Mapping[str, object], *, page_url: str, repo_url: str = "") -> str:
    """A section of the third level about the figure at ``state``. ``page_url`` is the page's absolute address."""
    visualizer = snapshot.visualizer
    chosen = snapshot.at(state)
    provenance, table = snapshot.provenance(), chosen.table
    badge = f"*{describe.BADGES[visualizer.badge].capitalize()}.*"
    file, first, last = describe.source_line(visualizer)
    code = f"{file}, lines {first} to {last}"
    if repo_url:
        code = f"[{code}]({describe.source_url(visualizer, repo_url)})"
    parts = [
        f"### Figure: {visualizer.title}",
        visualizer.summary,
        chosen.text(),
        f"{badge} {provenance}".strip(),
        f"Formula:\n\n```text\n{visualizer.formula}\n```",
        _inputs(snapshot, chosen),
        _values(snapshot, chosen),
        "**Table**\n\n" + markdown_table(table.headings(), table.texts(), table.numeric()),
        *(_points(snapshot, chosen, i) for i in visualizer.inputs if len(points(i)) > 1),
        f"Computed by {code}. To compute it again:\n\n```sh\n{describe.command(visualizer, chosen.inputs)}\n```",
        f"[The figure, with this state]({describe.link(snapshot, chosen.inputs, page_url)})",
    ]
    return "\n\n".join(parts) + "\n"


def points(given: Input, end: float | None = None) -> tuple[Any, ...]:
    """A few values of an input, to ``end``: both ends and some between. One that needs a kernel has its default."""
    if given.instant == "live":
        return (given.default,)
    every: tuple[Any, ...] = given.grid()
    if isinstance(given, Number):
        numbers = given.grid() if given.instant == "grid" else controls.stops(given)
        every = tuple(v for v in numbers if end is None or v <= end)
    if isinstance(given, Choice) or len(every) <= _POINTS:
        return every
    picked = {every[round(i * (len(every) - 1) / (_POINTS - 1))] for i in range(_POINTS)}
    return tuple(v for v in every if v in picked or v == given.default)


def _inputs(snapshot: Snapshot, state: State) -> str:
    rows = [
        [
            f"`{i.name}`",
            i.label,
            controls.value_text(i, state.inputs[i.name]),
            _cell_text(i.default),
            i.range_text(),
            i.help,
        ]
        for i in snapshot.visualizer.inputs
    ]
    return "**Inputs**\n\n" + markdown_table(["Input", "Name", "Here", "Default", "Takes", "Meaning"], rows)


def _values(snapshot: Snapshot, state: State) -> str:
    units = snapshot.visualizer.units
    values = state.data.values
    rows = [[f"`{name}`", _cell_text(value), units[name]] for name, value in values.items()]
    numeric = {1} if are_numbers(values.values()) else set()
    return "**Values here**\n\n" + markdown_table(["Name", "Value", "Unit"], rows, numeric)


def _points(snapshot: Snapshot, state: State, given: Input) -> str:
    """The values that move with one input, at a few points of it, the others as here."""
    units = snapshot.visualizer.units
    end = snapshot.end(given, state.inputs) if isinstance(given, Number) else None
    found = {p: snapshot.at({**state.inputs, given.name: p}).data.values for p in points(given, end)}
    columns_text = {n: [_cell_text(values[n]) for values in found.values()] for n in units}
    # What only says the input again tells nothing.
    names = [n for n, texts in columns_text.items() if len(set(texts)) > 1 and texts != [_cell_text(p) for p in found]]
    title = heading(given.label, given.unit)
    if not names:
        return f"**By {title}**: no value moves with it."
    rows = [[_cell_text(p), *(_cell_text(values[n]) for n in names)] for p, values in found.items()]
    head = [title, *(heading(f"`{n}`", units[n]) for n in names)]
    columns = [list(found), *([values[n] for values in found.values()] for n in names)]
    numeric = {i for i, column in enumerate(columns) if are_numbers(column)}
    return f"**By {title}**\n\n" + markdown_table(head, rows, numeric)


def _cell_text(value: Any) -> str:
    """A value for an agent: whole numbers whole, others to ``_DIGITS``; the JSON has every digit."""
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.{_DIGITS}g}"
    return "yes" if value is True else "no" if value is False else "–" if value is None else str(value)
