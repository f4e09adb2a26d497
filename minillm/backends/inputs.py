"""A step plan as checked NumPy arrays: what both numeric backends start a step with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minillm.core.plan import StepPlan

Ints = NDArray[np.int64]


@dataclass(slots=True)
class StepArrays:
    """The flat columns of a plan, ``[T]`` each, and the flat tokens to sample, ``[S]``."""

    token_ids: Ints
    positions: Ints
    slot_mapping: Ints
    logits_indices: Ints


def step_arrays(plan: StepPlan, *, vocab_size: int, num_slots: int, max_model_len: int) -> StepArrays:
    """The plan's columns. ``ValueError`` for an index that would silently read or write something else.

    A negative index counts from the end in NumPy and torch, so a placeholder such as -1 that got this
    far would run, and give a wrong token.
    """
    arrays = StepArrays(
        np.asarray(plan.token_ids, dtype=np.int64),
        np.asarray(plan.positions, dtype=np.int64),
        np.asarray(plan.slot_mapping, dtype=np.int64),
        np.asarray(plan.logits_indices, dtype=np.int64),
    )
    num_tokens = plan.query_start_loc[-1]
    limits = {"token_ids": vocab_size, "positions": max_model_len, "slot_mapping": num_slots}
    for name, limit in limits.items():
        values: Ints = getattr(arrays, name)
        if len(values) != num_tokens:
            raise ValueError(f"step {plan.step}: {len(values)} {name} for {num_tokens} tokens")
        _check_range(plan.step, name, values, limit)
    _check_range(plan.step, "logits_indices", arrays.logits_indices, num_tokens)
    return arrays


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
