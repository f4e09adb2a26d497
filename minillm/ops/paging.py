"""Which slots each query of a step reads: the index work that both libraries share, done once a step.

Requests with one query (decodes) of similar context become one padded group, so that one operation
serves them all; longer chunks stand alone. Where the blocks of a request follow each other, its slots
are a slice, and reading them copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minillm.core.plan import StepPlan

# Contexts up to this are one group; above it a group spans a factor of two, so padding at most doubles reads.
_SMALL_CONTEXT = 64


@dataclass(slots=True)
class Decodes:
    """R requests with one query each. Padding of ``slots`` points at a slot that holds zeros."""

    tokens: Any  # [R] flat query tokens; None when they are the whole batch, in order
    slots: Any  # [R, C] int64, or a slice of C slots for a single request
    lengths: Any  # [R] int64, keys of each
    width: int  # C, the longest
    ragged: bool  # whether some request has fewer keys than C
    masks: dict[int | None, Any] = field(default_factory=dict)  # by window, filled by torch when first used


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

    decodes: list[Decodes]
    chunks: list[Chunk]


def reads_of(plan: StepPlan, padding_slot: int) -> Reads:
    """The reads of a plan, as NumPy arrays."""
    requests = len(plan.context_lengths)
    starts = plan.query_starts
    groups: dict[int, list[int]] = {}
    chunks = []
    for r, context in enumerate(plan.context_lengths):
        if starts[r + 1] - starts[r] == 1:
            groups.setdefault(max(context - 1, _SMALL_CONTEXT - 1).bit_length(), []).append(r)
        else:
            chunks.append(Chunk(starts[r], starts[r + 1], context, _slots_of(plan, r)))
    decodes = [_decodes(plan, rows, len(rows) == requests, padding_slot) for rows in groups.values()]
    return Reads(decodes, chunks)


def _slots_of(plan: StepPlan, r: int) -> slice | NDArray[np.int64]:
    """The slots of one request's keys, in order."""
    context, block = plan.context_lengths[r], plan.block_size
    table = np.asarray(plan.block_tables[r][: -(-context // block)], dtype=np.int64)
    first = int(table[0])
    if np.array_equal(table, np.arange(first, first + len(table))):
        return slice(first * block, first * block + context)
    return (table[:, None] * block + np.arange(block)).ravel()[:context]


def _decodes(plan: StepPlan, rows: Sequence[int], whole: bool, padding_slot: int) -> Decodes:
    lengths = np.asarray([plan.context_lengths[r] for r in rows], dtype=np.int64)
    width, block = int(lengths.max()), plan.block_size
    tokens = None if whole else np.asarray([plan.query_starts[r] for r in rows], dtype=np.int64)
    ragged = bool((lengths < width).any())
    if len(rows) == 1:
        slots = _slots_of(plan, rows[0])
        return Decodes(tokens, slots if isinstance(slots, slice) else slots[None], lengths, width, ragged)
    tables = np.zeros((len(rows), -(-width // block)), dtype=np.int64)
    for i, r in enumerate(rows):
        table = plan.block_tables[r][: tables.shape[1]]
        tables[i, : len(table)] = table
    padded = (tables[:, :, None] * block + np.arange(block)).reshape(len(rows), -1)[:, :width]
    if ragged:
        padded = np.where(np.arange(width) < lengths[:, None], padded, padding_slot)
    return Decodes(tokens, padded, lengths, width, ragged)
