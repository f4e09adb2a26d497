"""An engine without a KV cache, for comparison: its steps read nothing that an earlier step computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minillm.core.backend import Backend, Capacity
from minillm.core.plan import StepPlan, StepResult


class Uncached:
    """Runs each plan of the engine as one in which every token of its requests is new.

    Blocks and slots stay as the engine planned them, so an output is the same; only the work differs. For plans
    without token trees.
    """

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._tokens: dict[int, int] = {}  # the token whose keys and values a slot holds
        self._block_size = 1

    def load(self, *, block_size: int, num_blocks: int | None, num_host_blocks: int = 0) -> None:
        self._block_size = block_size
        self._inner.load(block_size=block_size, num_blocks=num_blocks, num_host_blocks=num_host_blocks)

    def capacity(self) -> Capacity:
        return self._inner.capacity()

    def run(self, plan: StepPlan) -> StepResult:
        self._tokens.update(zip(plan.slot_mapping, plan.token_ids, strict=True))
        return self._inner.run(self.whole(plan))

    def whole(self, plan: StepPlan) -> StepPlan:
        """The plan with every token of its requests from the first one on, and the same draws."""
        size, every = plan.block_size, replace(plan, positions=[], slot_mapping=[], query_start_loc=[0])
        for table, length in zip(plan.block_tables, plan.seq_lens, strict=True):
            every.positions += range(length)
            every.slot_mapping += [table[p // size] * size + p % size for p in range(length)]
            every.query_start_loc.append(len(every.slot_mapping))
        every.token_ids = [self._tokens[slot] for slot in every.slot_mapping]
        every.logits_indices = [self._moved(token, plan, every) for token in plan.logits_indices]
        return every

    def _moved(self, token: int, plan: StepPlan, every: StepPlan) -> int:
        """Where a flat token stands in the longer plan: as far from the end of its request as before."""
        ends = zip(plan.query_start_loc[1:], every.query_start_loc[1:], strict=True)
        return next(there - (here - token) for here, there in ends if token < here)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        size = self._block_size
        self._copy([(a * size + i, b * size + i) for a, b in pairs for i in range(size)])
        self._inner.copy_blocks(pairs)

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._copy(pairs)
        self._inner.copy_slots(pairs)

    def _copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        found: dict[int, Any] = {target: self._tokens.get(source) for source, target in pairs}
        self._tokens.update({slot: token for slot, token in found.items() if token is not None})

    def close(self) -> None:
        self._inner.close()
