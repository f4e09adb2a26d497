"""What is wrong with a page, said as ``file:line: message``, and the error that stops a build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Problem:
    """One finding about one place. ``line`` counts from 1; 0 means the file as a whole."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


class SiteError(Exception):
    """The build cannot go on. Its text is shown to the author as it is."""


class PageError(SiteError):
    """A build that stops because of what pages say; ``problems`` lists every finding, not just the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(set(problems))
        super().__init__("\n".join(str(p) for p in self.problems))


def shown_path(path: Path, root: Path) -> str:
    """``path`` relative to the project where it lies inside it, so that a terminal can open it."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
