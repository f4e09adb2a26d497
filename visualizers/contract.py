"""The contract of a visualizer: its inputs, what it computes, and how that is drawn, listed and said.

A visualizer is one module ``visualizers/figures/<stem>.py`` that defines ``VISUALIZER = Visualizer(...)``.
Everything else is derived from it by one piece of code each: the printed figure, the instant
figure, the notebook's controls, the page's URL state, the Markdown twin, the command line, the tests.

``compute`` receives a value for each input. For an input whose ``instant`` is ``"formula"`` it may
receive an Altair parameter instead of a number; arithmetic on it then yields a browser expression,
so cells of ``Data`` may be numbers or expressions. ``minillm.costs.arithmetic`` has the functions
(minimum, ceil, where ...) that work on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from visualizers.formats import format_value, heading

Instant = Literal["grid", "formula", "live"]
Badge = Literal["computed", "run", "simulated"]

# Keys of the JSON output that a value may not shadow.
RESERVED = frozenset(["name", "title", "badge", "inputs", "units", "table", "sentence", "provenance"])


class InputError(ValueError):
    """A value that an input does not take: the message names the input, the value and what it takes."""


@dataclass(frozen=True)
class Number:
    """A number in a closed range. ``stops`` lists the values of a grid; without it, ``step`` spaces them.

    ``instant`` says how the instant level follows it: ``"formula"`` by a browser expression,
    ``"grid"`` by states computed at build for every stop, ``"live"`` only with a kernel. With ``play``
    the reader may let it run through its stops, as a moment in time does. ``words`` names values that are no
    amount: ``{0: "off"}``.
    """

    name: str
    label: str
    unit: str
    default: float
    low: float
    high: float
    help: str
    step: float = 1
    integer: bool = True
    log: bool = False
    instant: Instant = "formula"
    stops: tuple[float, ...] = ()
    play: bool = False
    words: Mapping[float, str] = field(default_factory=dict)
    more: bool = False  # stands behind "More", after the levers that matter first

    def parse(self, raw: object) -> float:
        try:
            value = float(str(raw))
        except ValueError:
            raise InputError(f"--{self.name} {raw!r} is not a number: give one from {self.range_text()}") from None
        if not self.low <= value <= self.high:
            raise InputError(f"--{self.name} {raw} is outside {self.range_text()}")
        if self.integer and value != int(value):
            raise InputError(f"--{self.name} {raw} is not a whole number: give one from {self.range_text()}")
        taken = int(value) if self.integer else value
        if self.on_grid and taken not in self.grid():
            raise InputError(f"--{self.name} {raw} has no state that is computed: choose from {self.range_text()}")
        return taken

    @property
    def on_grid(self) -> bool:
        """Whether it takes the values of its grid alone: no other state exists on any level."""
        return self.instant == "grid" or bool(self.stops)

    def range_text(self) -> str:
        """What it takes, for a reader: ``1 to 1,024 tokens``, ``32, 64 or 128 tokens``, ``0 to 2 in steps of 0.1``."""
        grid = self.grid() if self.on_grid else ()
        if self.stops and len(grid) > 1:
            *some, last = map(_number_text, grid)
            text = f"{', '.join(some)} or {last}"
        else:
            text = " to ".join(map(_number_text, self.ends()))
            if grid and not (self.integer and self.step == 1):
                text += f" in steps of {_number_text(self.step)}"
        return f"{text} {self.unit}".rstrip()

    def grid(self) -> tuple[float, ...]:
        """The values for which states are computed when ``instant`` is ``"grid"``."""
        if self.stops:
            return self.stops
        count = round((self.high - self.low) / self.step)
        values = [round(self.low + i * self.step, 12) for i in range(count + 1)]  # 0.3, not 0.30000000000000004
        return tuple(int(v) if self.integer else v for v in values)

    def ends(self) -> tuple[float, float]:
        return (self.low, self.high)


def _number_text(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,g}"


@dataclass(frozen=True)
class Choice:
    """One of a few named options: ``options`` maps the value to what the reader sees."""

    name: str
    label: str
    default: str
    options: Mapping[str, str]
    help: str
    unit: str = ""
    instant: Instant = "grid"
    more: bool = False

    def parse(self, raw: object) -> str:
        if raw not in self.options:
            raise InputError(f"--{self.name} {raw!r} is unknown: choose from {', '.join(self.options)}")
        return str(raw)

    def range_text(self) -> str:
        return ", ".join(self.options)

    def grid(self) -> tuple[str, ...]:
        return tuple(self.options)

    def ends(self) -> tuple[str, str]:
        values = tuple(self.options)
        return (values[0], values[-1])


@dataclass(frozen=True)
class Text:
    """Free text that the reader types. It needs a kernel, so the instant level shows only the default."""

    name: str
    label: str
    default: str
    max_length: int
    help: str
    unit: str = ""
    instant: Instant = "live"
    more: bool = False

    def parse(self, raw: object) -> str:
        text = str(raw)
        if not text.strip():
            raise InputError(f"--{self.name} is empty: type some text, for example {self.default!r}")
        if len(text) > self.max_length:
            raise InputError(
                f"--{self.name} has {len(text):,} characters, the limit is {self.max_length:,}: shorten it"
            )
        return text

    def range_text(self) -> str:
        return f"1 to {self.max_length:,} characters"

    def grid(self) -> tuple[str, ...]:
        return (self.default,)

    def ends(self) -> tuple[str, str]:
        return (self.default[0], (self.default * self.max_length)[: self.max_length])


Input = Number | Choice | Text


@dataclass(frozen=True)
class Data:
    """What ``compute`` returns. Each cell is a number, a string, or an expression of formula inputs.

    ``values`` are the named results, in the unit that ``Visualizer.units`` gives for them; ``rows``
    are the named datasets of the chart, lists of flat records. Between two states the numbers of records with
    the same ``key`` glide (`handbook/assets/js/tween.js`); without keys, of two equally long lists.
    """

    values: Mapping[str, Any]
    rows: Mapping[str, Sequence[Mapping[str, Any]]]


def units(plain: str = "", **by_unit: str) -> dict[str, str]:
    """The units of values, listed by unit: ``units("title limit", bytes="read needed")``; ``plain`` ones have none.

    A value's unit that is no word of Python is given as a dictionary beside it.
    """
    return {**dict.fromkeys(plain.split(), ""), **{n: unit for unit, names in by_unit.items() for n in names.split()}}


@dataclass(frozen=True)
class Column:
    """A column of the table: the record's key, heading, unit, and a format of ``visualizers.formats``."""

    key: str
    label: str
    unit: str = ""
    format: str = ""


@dataclass(frozen=True)
class Table:
    """Records and how they are listed. A row has a cell for each column's key."""

    columns: tuple[Column, ...]
    rows: Sequence[Mapping[str, Any]]

    def headings(self) -> list[str]:
        """What stands above the columns, units included."""
        return [heading(c.label, c.unit) for c in self.columns]

    def texts(self) -> list[list[str]]:
        """The cells of each row as a reader sees them."""
        return [[format_value(row[c.key], c.format) for c in self.columns] for row in self.rows]

    def numeric(self) -> frozenset[int]:
        """The positions of the columns that hold numbers, which align at the right."""
        return frozenset(n for n, c in enumerate(self.columns) if are_numbers(row[c.key] for row in self.rows))


def are_numbers(cells: Iterable[Any]) -> bool:
    """Whether a column of these cells holds numbers alone, None where there is none."""
    return all(cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool)) for cell in cells)


@dataclass(frozen=True)
class Visualizer:
    """One figure of the handbook.

    ``sentence`` returns a template whose fields ``{value|format}`` name keys of ``Data.values``, so
    the same sentence is filled at build, in the browser and for an agent.
    """

    name: str  # kebab case; the stem is the same with underscores
    title: str
    badge: Badge
    chapters: tuple[str, ...]  # outline ids, the first is where it is explained
    summary: str  # one sentence: what it shows
    formula: str  # the rule in plain text or LaTeX-free mathematics; for a run, what is run
    inputs: tuple[Input, ...]
    units: Mapping[str, str]  # unit of each of Data.values, "" for none
    compute: Callable[[Mapping[str, Any]], Data]
    figure: Callable[[Data], Any]  # -> Altair chart whose data are named as in Data.rows, or its charts.spec
    table: Callable[[Data], Table]
    sentence: Callable[[Data], str]
    provenance: Callable[[], str] | None = None  # for a run: model, machine, date; for a simulation: what is modelled
    live: bool = False  # its notebook runs the engine step by step and redraws while it does
    source: tuple[str, ...] = field(default=())  # modules whose code computes it, besides its own

    def __post_init__(self) -> None:
        names = [i.name for i in self.inputs]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.name}: two inputs share a name: {names}")
        shadowed = RESERVED & set(self.units)
        if shadowed:
            raise ValueError(f"{self.name}: values may not be called {sorted(shadowed)}: rename them")

    @property
    def stem(self) -> str:
        return self.name.replace("-", "_")

    def defaults(self) -> dict[str, Any]:
        return {i.name: i.default for i in self.inputs}

    def parse(self, raw: Mapping[str, object]) -> dict[str, Any]:
        """Defaults overlaid with ``raw``; unknown names and bad values raise ``InputError``."""
        by_name = {i.name: i for i in self.inputs}
        unknown = sorted(set(raw) - set(by_name))
        if unknown:
            raise InputError(f"{self.name} has no input {unknown[0]!r}: it takes {', '.join(by_name)}")
        return {name: by_name[name].parse(raw[name]) if name in raw else i.default for name, i in by_name.items()}
