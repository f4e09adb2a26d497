"""The controls of a figure: which form control an input becomes, the positions of its slider, its value as text.

The page draws these at build and the browser moves them, so what a slider can stand on is computed
here once and shipped with the figure.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any

from visualizers.contract import Choice, Input, Number, Text
from visualizers.formats import with_unit

RADIO_OPTIONS = 3  # a choice of at most so many short options is shown whole
RADIO_LETTERS = 36
PLAY_STEP_MS = 700  # between two states of a grid: each is to be read
PLAY_RUN_MS = 12_000  # of an input that moves evenly: it is to be watched
LINEAR_POSITIONS = 400  # a linear slider with more steps than this would move less than a pixel a step


def stops(number: Number) -> tuple[float, ...]:
    """The values on which a number's slider can stand: its grid, or for a long range a readable series.

    On a logarithmic slider between powers of two an octave has four of them, else a decade has 24 of two
    significant digits. The default is always one; a formula input takes any value by the address.
    """
    if number.instant == "grid" or number.stops:
        return number.grid()
    if number.log and number.low > 0:
        found = _octaves(number) if _power_of_two(number.low, number.high) else _decades(number)
    elif (number.high - number.low) / number.step > LINEAR_POSITIONS:
        width = (number.high - number.low) / LINEAR_POSITIONS
        step = math.ceil(width / number.step) * number.step
        found = {number.low + i * step for i in range(LINEAR_POSITIONS + 1)}
    else:
        found = set(number.grid())
    found = {v for v in found if number.low <= v <= number.high} | {number.low, number.high, number.default}
    return tuple(sorted(int(v) if number.integer else v for v in found))


def value_text(given: Input, value: Any) -> str:
    """What the reader sees and hears beside the control: ``8,192 tokens``, or the name of the option."""
    if isinstance(given, Choice):
        return given.options[value]
    if isinstance(given, Text):
        return str(value)
    return given.words.get(value) or with_unit(value, given.unit)


def takes(given: Input) -> str:
    """What an input takes, in the reader's words."""
    return ", ".join(given.options.values()) if isinstance(given, Choice) else given.range_text()


def control_html(given: Input, value: Any, figure_id: str, end: float | None = None) -> str:
    """One control with its label, its help and, for a number, the value in words. A slider goes to ``end``."""
    control_id = f"{figure_id}-{given.name}"
    help_id = f"{control_id}-help"
    common = f'data-input="{given.name}" aria-describedby="{help_id}"'
    if isinstance(given, Choice) and _fits_radio(given):
        return (
            f'<fieldset class="hbf-control hbf-radio" {common}><legend>{escape(given.label)}</legend>'
            f'<div class="hbf-segments">{_radios(given, value, control_id)}</div>{_help(given, help_id)}</fieldset>'
        )
    shown = ""
    if isinstance(given, Choice):
        options = "".join(
            f'<option value="{escape(key)}"{" selected" if key == value else ""}>{escape(text)}</option>'
            for key, text in given.options.items()
        )
        field = f'<select id="{control_id}" {common}>{options}</select>'
    elif isinstance(given, Number):
        positions = tuple(v for v in stops(given) if end is None or v <= end)
        text = escape(value_text(given, value))
        field = (
            f'<input type="range" id="{control_id}" {common} min="0" max="{len(positions) - 1}" step="1" '
            f'value="{nearest(positions, value)}" aria-valuetext="{text}">'
        )
        if given.play:
            pace = PLAY_STEP_MS if given.instant == "grid" else PLAY_RUN_MS // len(positions)
            play = (
                f'<button type="button" class="hbf-play" data-play="{pace}" aria-label="Play {escape(given.label)}" '
                "disabled></button>"
            )
            field = f'<div class="hbf-playable">{play}{field}</div>'
        widest = max((value_text(given, v) for v in (*positions, given.high)), key=len)
        shown = f'<output for="{control_id}" style="--hbf-letters:{len(widest)}">{text}</output>'
    else:
        field = (
            f'<input type="text" id="{control_id}" {common} '
            f'value="{escape(str(value))}" autocomplete="off" spellcheck="false">'
        )
    kind = "text" if isinstance(given, Text) else "number" if isinstance(given, Number) else "choice"
    return (
        f'<div class="hbf-control hbf-{kind}"><label for="{control_id}">{escape(given.label)}</label>'
        f"{shown}{field}{_help(given, help_id)}</div>"
    )


def nearest(positions: tuple[float, ...], value: float) -> int:
    """The index of the position that is closest to ``value``."""
    return min(range(len(positions)), key=lambda i: abs(positions[i] - value))


def _help(given: Input, help_id: str) -> str:
    live = " Moves with “Run live”." if given.instant == "live" else ""
    return f'<span class="hbf-help" id="{help_id}">{escape(given.help)}{live}</span>'


def _radios(given: Choice, value: str, control_id: str) -> str:
    return "".join(
        f'<label><input type="radio" name="{control_id}" value="{escape(key)}"'
        f"{' checked' if key == value else ''}><span>{escape(text)}</span></label>"
        for key, text in given.options.items()
    )


def _fits_radio(given: Choice) -> bool:
    return len(given.options) <= RADIO_OPTIONS and sum(map(len, given.options.values())) <= RADIO_LETTERS


def _power_of_two(*values: float) -> bool:
    return all(v > 0 and math.log2(v).is_integer() for v in values)


def _octaves(number: Number) -> set[float]:
    low, high = round(math.log2(number.low)), round(math.log2(number.high))
    every = {2.0**k * (4 + quarter) / 4 for k in range(low, high + 1) for quarter in range(4)}
    return {v for v in every if not number.integer or v == int(v)}


def _decades(number: Number) -> set[float]:
    first, last = math.floor(math.log10(number.low) * 24), math.ceil(math.log10(number.high) * 24)
    every = {float(f"{10 ** (k / 24):.1e}") for k in range(first, last + 1)}
    return {round(v) for v in every} if number.integer else every
