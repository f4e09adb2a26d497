"""A step plan as checked NumPy arrays: what both numeric backends start a step with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minillm.core.plan import StepPlan

Ints = NDArray[np.int64]


def token_columns(plan: StepPlan, *, vocab_size: int, max_model_len: int) -> tuple[Ints, Ints, Ints]:
    """The plan's token ids ``[T]``, positions ``[T]`` and logits_indices ``[S]``.

    ``ValueError`` for an index that would silently read or write something else: a negative index counts from the end
    in NumPy and torch, so a placeholder such as -1 that got this far would run, and give a wrong token.
    """
    logits_indices = np.asarray(plan.logits_indices, dtype=np.int64)
    _check_range(plan.step, "logits_indices", logits_indices, plan.query_start_loc[-1])
    return (
        _column(plan, "token_ids", plan.token_ids, vocab_size),
        _column(plan, "positions", plan.positions, max_model_len),
        logits_indices,
    )


def slot_column(plan: StepPlan, *, num_slots: int) -> Ints:
    """The plan's slots ``[T]``; errors as for `token_columns`."""
    return _column(plan, "slot_mapping", plan.slot_mapping, num_slots)


def _column(plan: StepPlan, name: str, given: Sequence[int], limit: int) -> Ints:
    values: Ints = np.asarray(given, dtype=np.int64)
    if len(values) != plan.query_start_loc[-1]:
        raise ValueError(f"step {plan.step}: {len(values)} {name} for {plan.query_start_loc[-1]} tokens")
    _check_range(plan.step, name, values, limit)
    return values


def _check_range(step: int, name: str, values: Ints, limit: int) -> None:
    if len(values) and not (values.min() >= 0 and values.max() < limit):
        bad = values[(values < 0) | (values >= limit)][0]
        raise ValueError(f"step {step}: {name} holds {bad}, the backend takes 0 to {limit - 1:,}")


def stale_slots(slots: Ints, block_size: int) -> Ints:
    """Slots after the last one that this step writes in each block it touches.

    A block is filled front to back, so whatever lies there is from before: from the block's former
    owner, or from drafts that were rejected. In debug mode it is overwritten with NaN.
    """
    blocks, owner = np.unique(slots // block_size, return_inverse=True)
    last = np.zeros(len(blocks), dtype=np.int64)
    np.maximum.at(last, owner, slots % block_size)
    offsets = np.arange(block_size)
    return (blocks[:, None] * block_size + offsets)[offsets > last[:, None]]
