"""Token trees as data: the parent of each token, before its children. -1 is the last known token of the request.

A chain is the tree in which each token's parent is the one before. The tree is what attention needs to know
of a draft: a token sees the known tokens, its ancestors and itself, and stands as deep as it has ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence

ROOT = -1


def check_parents(parents: Sequence[int], num_tokens: int) -> None:
    """``ValueError`` unless each of ``num_tokens`` tokens has an earlier token, or the root, as its parent."""
    if len(parents) != num_tokens:
        raise ValueError(f"{len(parents)} parents for {num_tokens} tokens")
    for node, parent in enumerate(parents):
        if not ROOT <= parent < node:
            raise ValueError(f"token {node} has parent {parent}: it must be an earlier token, or {ROOT}")


def depths(parents: Sequence[int]) -> list[int]:
    """Ancestors of each token, the root not counted: 0 for those that follow the last known token."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent == ROOT else found[parent] + 1)
    return found


def longest_path(parents: Sequence[int]) -> int:
    """Tokens of the longest path from the root."""
    return max(depths(parents), default=-1) + 1


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The tokens from the root's child down to ``node``; none for the root."""
    path = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def visible(parents: Sequence[int]) -> list[list[bool]]:
    """``[n][n]``: whether a token (row) attends to another (column): to its ancestors and itself."""
    rows: list[list[bool]] = []
    for node, parent in enumerate(parents):
        row = list(rows[parent]) if parent != ROOT else [False] * len(parents)
        row[node] = True
        rows.append(row)
    return rows


def depth_first(parents: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """``nodes``, each child behind its parent, depth first: of siblings and their branches, the one named first.

    With the likeliest first, the likeliest path is the beginning, and needs no moving if it is accepted.
    """
    children: dict[int, list[int]] = {}
    for node in nodes:
        children.setdefault(parents[node], []).append(node)
    walk: list[int] = []
    stack = children.get(ROOT, [])[::-1]
    while stack:
        node = stack.pop()
        walk.append(node)
        stack.extend(children.get(node, [])[::-1])
    return walk
