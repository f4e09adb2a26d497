"""A backend in modelled time: ids from an inner backend, the duration of a step from a function of its plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from minillm.core.backend import Backend, Capacity
from minillm.core.clock import VirtualClock
from minillm.core.plan import StepPlan, StepResult


class Weightless:
    """No model: nothing is computed or kept, and every sampled id is 0. For runs of which only the times matter.

    ``vocab_size`` is for prompts whose ids tell them apart, ``crossover_tokens`` what eviction by cost goes by.
    """

    def __init__(self, max_model_len: int, vocab_size: int = 1, crossover_tokens: float = math.inf) -> None:
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._crossover_tokens = crossover_tokens
        self._block_size = self._num_blocks = self._num_host_blocks = 0

    def load(self, *, block_size: int, num_blocks: int | None, num_host_blocks: int = 0) -> None:
        if num_blocks is None:
            raise ValueError("num_blocks is None: there is no memory to count, say how many blocks the run has")
        self._block_size, self._num_blocks, self._num_host_blocks = block_size, num_blocks, num_host_blocks

    def capacity(self) -> Capacity:
        return Capacity(
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            kv_bytes_per_token=0,
            weight_bytes=0,
            max_model_len=self._max_model_len,
            vocab_size=self._vocab_size,
            crossover_tokens=self._crossover_tokens,
            num_host_blocks=self._num_host_blocks,
        )

    def run(self, plan: StepPlan) -> StepResult:
        return StepResult([0] * len(plan.logits_indices), 0.0)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        pass

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        pass

    def close(self) -> None:
        pass


class SimulatedBackend:
    """Runs ``inner`` and then moves ``clock`` by ``step_time(plan)`` seconds, or ``copy_time(pairs)``.

    With the same clock in the engine, a workload replays deterministically, however long the machine takes.
    """

    def __init__(
        self,
        inner: Backend,
        step_time: Callable[[StepPlan], float],
        clock: VirtualClock,
        copy_time: Callable[[Sequence[tuple[int, int]]], float] = lambda pairs: 0.0,
    ) -> None:
        self._inner = inner
        self._step_time = step_time
        self._copy_time = copy_time
        self._clock = clock

    def load(self, *, block_size: int, num_blocks: int | None, num_host_blocks: int = 0) -> None:
        self._inner.load(block_size=block_size, num_blocks=num_blocks, num_host_blocks=num_host_blocks)

    def capacity(self) -> Capacity:
        return self._inner.capacity()

    def run(self, plan: StepPlan) -> StepResult:
        result = self._inner.run(plan)
        elapsed_s = self._step_time(plan)
        self._clock.advance(elapsed_s)
        return replace(result, elapsed_s=elapsed_s)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._inner.copy_blocks(pairs)
        self._clock.advance(self._copy_time(pairs))

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._inner.copy_slots(pairs)

    def close(self) -> None:
        self._inner.close()
