"""Reads a ``figure`` block of a page: the visualizer's name on the first line, then ``input: value`` lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from visualizers.site.scan import Token


class BlockError(ValueError):
    """A figure block that cannot be read; the message says what it should look like."""


@dataclass(frozen=True)
class FigureBlock:
    """One figure on a page: the visualizer's name as written, and the raw state that the page sets."""

    name: str
    state: Mapping[str, str] = field(default_factory=dict)


def is_figure(token: Token) -> bool:
    return token.kind == "fence" and token.argument == "figure"


def is_map(token: Token) -> bool:
    """The block ``map`` stands for the map of what depends on what."""
    return token.kind == "fence" and token.argument == "map"


def is_picture(token: Token) -> bool:
    return token.kind == "fence" and token.argument == "picture"


@dataclass(frozen=True)
class Picture:
    """A drawing of the book: its name, and the sentence that says what it shows."""

    name: str
    caption: str

    def file(self, handbook: Path) -> Path:
        return handbook / "assets" / "pictures" / f"{self.name}.svg"


def picture(token: Token, handbook: Path) -> Picture:
    """The drawing that ``token`` asks for. Raises :class:`BlockError` where there is none, or no caption."""
    lines = [line.strip() for line in token.text.split("\n") if line.strip()]
    if len(lines) < 2:
        raise BlockError("a picture block has the drawing's name on its first line and what it shows below")
    found = Picture(lines[0], " ".join(lines[1:]))
    if not found.file(handbook).is_file():
        raise BlockError(f"there is no drawing {found.name!r} in handbook/assets/pictures")
    return found


def is_begin(token: Token) -> bool:
    """The block ``begin`` stands for the way to the first chapter."""
    return token.kind == "fence" and token.argument == "begin"


def parse(token: Token, before: Sequence[FigureBlock] = ()) -> FigureBlock:
    """The figure that ``token`` asks for, after those ``before`` it on the page. Raises :class:`BlockError`."""
    lines = [line.strip() for line in token.text.split("\n") if line.strip()]
    if not lines:
        raise BlockError("the figure block is empty: its first line is a visualizer's name, such as block-manager")
    if token.indent:
        raise BlockError(f"the figure block of {lines[0]} is indented: a figure stands by itself, at the margin")
    state: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip():
            raise BlockError(f"{line!r} in the figure block of {lines[0]} is not `input: value`")
        if name.strip() in state:
            raise BlockError(f"the figure block of {lines[0]} sets {name.strip()} twice")
        state[name.strip()] = value.strip()
    block = FigureBlock(lines[0], state)
    if block in before:
        raise BlockError(
            f"the figure of {block.name} stands here twice in the same state: show it once, or set an input"
        )
    return block


def figures(pieces: Sequence[Token]) -> Iterator[tuple[Token, FigureBlock]]:
    """The readable figure blocks of a page, in order; the others are found by the checks."""
    for token in pieces:
        if is_figure(token):
            try:
                yield token, parse(token)
            except BlockError:
                continue
