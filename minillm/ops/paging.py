"""Which slots each query of a step reads: the index work that both libraries share, done once a step.

Requests with as many queries as each other (one is a decode, a few are a draft that is verified) and a similar
context become one padded group, so that one operation serves them all; longer chunks stand alone. Where the
blocks of a request follow each other, its slots are a slice, and reading them copies nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.core.blocks import NULL_BLOCK
from minillm.core.plan import StepPlan
from minillm.speculate.tree import depths, visible

# Contexts up to this are one group; above it a group spans a factor of two, so padding at most doubles reads.
_SMALL_CONTEXT = 64
# Requests with at most so many queries are grouped; with more, a single one keeps an operation busy.
_GROUPED_QUERIES = 16


@dataclass(slots=True)
class Group:
    """R requests with n queries each. Padding of ``slots`` points at a slot that holds zeros."""

    tokens: Any  # [R * n] flat query tokens, request by request; None when they are the whole batch, in order
    queries: int  # n
    slots: Any  # [R, C] int64, or a slice of C slots for a single request
    lengths: Any  # [R] int64, keys of each; its queries are the last of them
    width: int  # C, the longest
    ragged: bool  # whether some request has fewer keys than C
    trees: dict[int, Sequence[int]] = field(default_factory=dict)  # by place in the group, as in ``StepPlan``
    masks: dict[int | None, Any] = field(default_factory=dict)  # by window, filled when first used, for all layers


@dataclass(slots=True)
class Chunk:
    """One request with several queries: flat tokens ``[start, end)``, the last of its ``context`` keys."""

    start: int
    end: int
    context: int
    slots: Any  # [context] int64, or a slice


@dataclass(slots=True)
class Reads:
    """The whole step."""

    groups: list[Group]
    chunks: list[Chunk]


def reads_of(plan: StepPlan, padding_slot: int) -> Reads:
    """The reads of a plan, as NumPy arrays."""
    requests = len(plan.seq_lens)
    starts = plan.query_start_loc
    grouped: dict[tuple[int, int], list[int]] = {}
    chunks = []
    read = [_beginning_cut(plan, r) for r in range(requests)]
    for r, (context, table) in enumerate(read):
        queries = starts[r + 1] - starts[r]
        if queries <= _GROUPED_QUERIES or r in plan.trees:
            size = max(context - 1, _SMALL_CONTEXT - 1).bit_length()
            grouped.setdefault((queries, size), []).append(r)
        else:
            chunks.append(Chunk(starts[r], starts[r + 1], context, _slots_of(context, table, plan.block_size)))
    groups = [_group(plan, read, rows, n, len(rows) == requests, padding_slot) for (n, _), rows in grouped.items()]
    return Reads(groups, chunks)


def visible_keys(group: Group, window: int | None) -> NDArray[np.bool_] | None:
    """``[R, n, C]``, true where a query may look; None where all may everywhere. The group's arrays are NumPy's."""
    if group.queries == 1 and not group.ragged and window is None:
        return None
    places = np.arange(group.width)
    queries = (group.lengths - group.queries)[:, None] + np.arange(group.queries)  # [R, n], places of the queries
    seen: NDArray[np.bool_] = places <= queries[:, :, None]
    if not group.trees and window is None:
        return seen
    positions = np.broadcast_to(places, (len(queries), group.width)).copy()  # [R, C], of the keys
    for row, parents in group.trees.items():
        # The tree's tokens are the last; a token of it is as far from its root as it is deep.
        nodes = slice(group.lengths[row] - len(parents), group.lengths[row])
        positions[row, nodes] = nodes.start + np.asarray(depths(parents))
        queries[row, group.queries - len(parents) :] = positions[row, nodes]
        seen[row, group.queries - len(parents) :, nodes] = visible(parents)
    if window is not None:
        seen &= positions[:, None, :] > queries[:, :, None] - window
    return seen


def _beginning_cut(plan: StepPlan, r: int) -> tuple[int, Sequence[int]]:
    """Context and table of a request from the first block that its windows have not left behind.

    What a query may look at follows from distances alone, so the keys before need no place. ``ValueError`` for a row
    that has tokens of its own there.
    """
    context, table = plan.seq_lens[r], plan.block_tables[r]
    if table[0] != NULL_BLOCK:
        return context, table
    gone = bisect_left(table, True, key=lambda block: block != NULL_BLOCK)
    context -= gone * plan.block_size
    queries = plan.query_start_loc[r + 1] - plan.query_start_loc[r]
    if context < queries:
        raise ValueError(
            f"step {plan.step}: {queries} tokens of {plan.request_ids[r]} lie in the null block {NULL_BLOCK} of its "
            f"table, or behind it in {max(0, context)} places: tables begin with it only where a window left blocks"
        )
    return context, table[gone:]


def _slots_of(context: int, blocks: Sequence[int], block: int) -> slice | NDArray[np.int64]:
    """The slots of one request's keys, in order."""
    table = np.asarray(blocks[: -(-context // block)], dtype=np.int64)
    first = int(table[0])
    if np.array_equal(table, np.arange(first, first + len(table))):
        return slice(first * block, first * block + context)
    return (table[:, None] * block + np.arange(block)).ravel()[:context]


def _group(
    plan: StepPlan,
    read: Sequence[tuple[int, Sequence[int]]],
    rows: Sequence[int],
    queries: int,
    whole: bool,
    padding_slot: int,
) -> Group:
    lengths = np.asarray([read[r][0] for r in rows], dtype=np.int64)
    width, block = int(lengths.max()), plan.block_size
    starts = np.asarray([plan.query_start_loc[r] for r in rows], dtype=np.int64)
    tokens = None if whole else (starts[:, None] + np.arange(queries)).ravel()
    trees = {i: plan.trees[r] for i, r in enumerate(rows) if r in plan.trees}
    if len(rows) == 1:
        slots = _slots_of(*read[rows[0]], block)
        return Group(tokens, queries, slots if isinstance(slots, slice) else slots[None], lengths, width, False, trees)
    tables = np.zeros((len(rows), -(-width // block)), dtype=np.int64)
    for i, r in enumerate(rows):
        table = read[r][1][: tables.shape[1]]
        tables[i, : len(table)] = table
    padded = (tables[:, :, None] * block + np.arange(block)).reshape(len(rows), -1)[:, :width]
    ragged = bool((lengths < width).any())
    if ragged:
        padded = np.where(np.arange(width) < lengths[:, None], padded, padding_slot)
    return Group(tokens, queries, padded, lengths, width, ragged, trees)
