"""The exercise at the end of a notebook: the reader answers, the engine checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import marimo as mo

from visualizers.desk.asks import Ask
from visualizers.desk.recipe import Recipe
from visualizers.desk.record import Record
from visualizers.desk.session import Session
from visualizers.desk.setup import Setup
from visualizers.desk.side import Replacements
from visualizers.formats import with_unit

_MOST_SLICES = 100_000


def ask(question: str) -> Any:
    """The question with a field for a number: the last line of a cell whose name is handed to :func:`check`."""
    return mo.ui.number(label=f"**Exercise.** {question}", full_width=True).form(
        submit_button_label="Let the engine check", show_clear_button=False
    )


def check(form: Any, unit: str, solve: Callable[[], float], why: str, *, within: float = 0.0) -> Any:
    """What the engine says to the answer of ``form``: ``solve`` runs it, ``within`` is a relative tolerance."""
    if form.value is None:
        return mo.md("")
    right = solve()
    close = math.isclose(float(form.value), right, rel_tol=within, abs_tol=1e-9)
    said = f"The engine: {with_unit(right, unit, '')}." if close else f"The engine finds {with_unit(right, unit, '')}."
    return mo.callout(
        mo.md(f"{'Right. ' if close else 'Not quite. '}{said} {why}"), kind="success" if close else "warn"
    )


def record(requests: tuple[Ask, ...], setup: Setup | None = None) -> Record:
    """What one engine does with the requests, in modelled time: the same on every machine."""
    recipe = Recipe(a=setup or Setup(), requests=requests, clock="modelled/h100-sxm", model="llama-3.1-8b")
    return play(recipe).sides[0].record


def play(recipe: Recipe, replace: Replacements | None = None) -> Session:
    """A whole run without a page, as fast as it goes."""
    session = Session(recipe, replace=replace)
    session.handle({"cmd": "speed", "value": 100})
    for _ in range(_MOST_SLICES):
        if session.rests:
            break
        session.advance(0.05)
    return session
