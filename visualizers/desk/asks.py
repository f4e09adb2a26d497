"""Requests as a reader gives them: typed, drawn at a rate, or pasted as a trace in JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import cycle, islice
from typing import Any

from minillm.core.sampling import uniform
from visualizers.desk.setup import DeskError

MOST_REQUESTS = 200  # of a trace or a recipe: the desk shows a lane for each
MOST_TOKENS = 100_000  # of a prompt in modelled time
MOST_SECONDS = 3_600.0
# What public traces call their columns, each with the factor to our unit.
_TIMES = {"at_s": 1.0, "arrival_s": 1.0, "arrived_at": 1.0, "timestamp": 1e-3, "timestamp_ms": 1e-3}
_PROMPTS = ("prompt_tokens", "input_length", "num_prefill_tokens", "contexttokens", "input_tokens")
_OUTPUTS = ("max_tokens", "output_length", "num_decode_tokens", "generatedtokens", "output_tokens")


@dataclass(frozen=True)
class Ask:
    """A request before it is one: when it arrives, its prompt as text or as a number of tokens, its longest answer."""

    at_s: float
    prompt: str | int
    max_tokens: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at_s) and 0 <= self.at_s <= MOST_SECONDS):
            raise DeskError(f"at_s is {self.at_s}: give seconds from 0 to {MOST_SECONDS:,.0f}")
        if isinstance(self.prompt, int) and not 1 <= self.prompt <= MOST_TOKENS:
            raise DeskError(f"a prompt of {self.prompt:,} tokens: give 1 to {MOST_TOKENS:,}")
        if isinstance(self.prompt, str) and not self.prompt.strip():
            raise DeskError("the prompt is empty: type some text")
        if not 1 <= self.max_tokens <= MOST_TOKENS:
            raise DeskError(f"max_tokens is {self.max_tokens:,}: give 1 to {MOST_TOKENS:,}")

    def record(self) -> dict[str, Any]:
        key = "prompt_tokens" if isinstance(self.prompt, int) else "prompt"
        return {"at_s": round(self.at_s, 6), key: self.prompt, "max_tokens": self.max_tokens}


def every(seconds: float, prompts: Sequence[str | int], outputs: Sequence[int], count: int) -> tuple[Ask, ...]:
    """``count`` requests, one each ``seconds``, that take prompts and lengths of answers by turns."""
    found = zip(islice(cycle(prompts), count), cycle(outputs), strict=False)
    return tuple(Ask(round(i * seconds, 6), prompt, output) for i, (prompt, output) in enumerate(found))


def poisson(
    rate: float, prompts: Sequence[str | int], outputs: Sequence[int], count: int, *, seed: int = 6
) -> tuple[Ask, ...]:
    """``count`` requests at random, ``rate`` of them a second; the same ones for the same seed."""
    asks, now_s = [], 0.0
    for i, ask in enumerate(every(0.0, prompts, outputs, count)):
        now_s += gap_s(rate, seed, i) if i else 0.0
        asks.append(Ask(round(now_s, 6), ask.prompt, ask.max_tokens))
    return tuple(asks)


def gap_s(rate: float, seed: int, index: int) -> float:
    """Seconds to the next of the arrivals that come ``rate`` to a second, at random."""
    return -math.log1p(-uniform(seed, index)) / rate


def pasted(text: str) -> tuple[Ask, ...]:
    """A trace in JSON (a list, or a line each) or CSV. Raises :class:`DeskError` with row, field and limit.

    Columns: ``at_s``, ``prompt`` or ``prompt_tokens``, ``max_tokens``; the names that public traces use for them
    are known as well. Times count from the first.
    """
    rows = _json_rows(text) if text.lstrip()[:1] in ("[", "{") else _csv_rows(text)
    if not rows:
        raise DeskError("the trace is empty: give a line for each request")
    if len(rows) > MOST_REQUESTS:
        raise DeskError(f"the trace has {len(rows):,} requests, the desk takes {MOST_REQUESTS}: cut it")
    times = [_time(number, row) for number, row in enumerate(rows, start=1)]
    first = min(times)
    asks = [_ask(n, row, at_s - first) for n, (row, at_s) in enumerate(zip(rows, times, strict=True), start=1)]
    return tuple(sorted(asks, key=lambda ask: ask.at_s))


def from_records(rows: Iterable[Mapping[str, Any]]) -> tuple[Ask, ...]:
    """Of a recipe: as :func:`pasted`, but the times stay."""
    found = list(rows)
    if len(found) > MOST_REQUESTS:
        raise DeskError(f"the recipe has {len(found):,} requests, the desk takes {MOST_REQUESTS}")
    return tuple(_ask(number, row, _time(number, row)) for number, row in enumerate(found, start=1))


def _json_rows(text: str) -> list[Mapping[str, Any]]:
    """Of a list, an object a line, or a run that was downloaded here."""
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise DeskError(f"the trace is no JSON ({error}): give a list of objects, or an object a line") from None
    if isinstance(found, dict):
        recipe = found.get("recipe", found)
        found = recipe["requests"] if isinstance(recipe, dict) and "requests" in recipe else [found]
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise DeskError("the trace is JSON, but no list of objects: give [{...}, {...}]")
    return found


def _csv_rows(text: str) -> list[Mapping[str, Any]]:
    lines = csv.DictReader(io.StringIO(text.strip()), skipinitialspace=True)
    rows: list[Mapping[str, Any]] = []
    for number, row in enumerate(lines, start=1):
        if None in row or None in row.values():
            raise DeskError(f"row {number} of the trace has not as many cells as the first line has names")
        rows.append(row)
    return rows


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name).strip().lower(): value for name, value in row.items()}


def _time(number: int, row: Mapping[str, Any]) -> float:
    cells = _cells(row)
    return next((_seconds(number, name, cells[name], f) for name, f in _TIMES.items() if name in cells), 0.0)


def _ask(number: int, row: Mapping[str, Any], at_s: float) -> Ask:
    cells = _cells(row)
    typed = cells.get("prompt")
    prompt = typed if isinstance(typed, str) else _whole(number, _PROMPTS, cells)
    try:
        return Ask(at_s, prompt, _whole(number, _OUTPUTS, cells))
    except DeskError as error:
        raise DeskError(f"row {number} of the trace: {error}") from None


def _whole(number: int, names: Sequence[str], cells: Mapping[str, Any]) -> int:
    for name in names:
        if name in cells:
            value = _number(number, name, cells[name])
            if value != int(value):
                raise DeskError(f"row {number} of the trace: {name} is {value}, and tokens are whole numbers")
            return int(value)
    raise DeskError(f"row {number} of the trace has no {names[0]}: it has {', '.join(cells) or 'nothing'}")


def _seconds(number: int, name: str, value: Any, factor: float) -> float:
    """A time as a number, or as a date with hours as in the traces that Azure publishes."""
    try:
        return datetime.fromisoformat(str(value)[:26]).timestamp()
    except ValueError:
        return _number(number, name, value) * factor


def _number(number: int, name: str, value: Any) -> float:
    try:
        found = float(str(value))
    except ValueError:
        found = math.nan
    if isinstance(value, bool) or not math.isfinite(found):
        raise DeskError(f"row {number} of the trace: {name} is {value!r}: give a number")
    return found
