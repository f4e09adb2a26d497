"""A backend in modelled time: ids from an inner backend, the duration of a step from a function of its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minillm.backends.base import Backend, Capacity
from minillm.core.clock import VirtualClock
from minillm.core.plan import StepPlan, StepResult


class SimulatedBackend:
    """Runs ``inner`` and then moves ``clock`` by ``step_time(plan)`` seconds.

    With the same clock in the engine, a workload replays deterministically, however long the machine takes.
    """

    def __init__(self, inner: Backend, step_time: Callable[[StepPlan], float], clock: VirtualClock) -> None:
        self._inner = inner
        self._step_time = step_time
        self._clock = clock

    def load(self, *, block_size: int, num_blocks: int | None) -> None:
        self._inner.load(block_size=block_size, num_blocks=num_blocks)

    def capacity(self) -> Capacity:
        return self._inner.capacity()

    def run(self, plan: StepPlan) -> StepResult:
        result = self._inner.run(plan)
        elapsed_s = self._step_time(plan)
        self._clock.advance(elapsed_s)
        return StepResult(result.token_ids, elapsed_s, result.logprobs)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._inner.copy_blocks(pairs)

    def close(self) -> None:
        self._inner.close()
