"""A table in Markdown: for the twin of a page, and for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: AbstractSet[int] = frozenset()) -> str:
    """The lines of a Markdown table; the columns ``numeric`` align at the right."""
    rule = ["---:" if n in numeric else "---" for n in range(len(head))]
    return "\n".join("| " + " | ".join(_escaped(c) for c in line) + " |" for line in (head, rule, *rows))


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
