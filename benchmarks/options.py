"""Types of the benchmarks' options: what cannot be measured or written is refused before anything is measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _at_least(1, text)


def two_or_more(text: str) -> int:
    """Tokens or outputs, where the first is not counted or counted by itself."""
    return _at_least(2, text)


def record_file(text: str) -> Path:
    """Where results are written in the end."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: name a file in a folder that is there")
    return path


def those_here(models: Iterable[str], available: Callable[[str], bool], parser: argparse.ArgumentParser) -> list[str]:
    """The models that are on this machine; it says which are not, and ends if none is."""
    found = []
    for model in models:
        if available(model):
            found.append(model)
        else:
            print(f"{model} is not here and left out: minillm pull {model}", file=sys.stderr)
    if not found:
        parser.error("none of the models is here: see minillm models")
    return found


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
    return int(text)
