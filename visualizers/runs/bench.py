"""A workload on an engine of its own: what the runs set up alike, so that each of them says only what differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from minillm.backends.simulated import SimulatedBackend
from minillm.core.backend import Backend
from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.plan import StepPlan
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams
from minillm.speculate.speculator import Speculation

BLOCK_SIZE = 16


class Bench:
    """One engine with room for ``pool_tokens`` tokens. ``rules`` are further fields of its config.

    Nothing is cached or logged that a run does not ask for: prefix cache and trace are off. All requests and steps are
    kept for it to measure.
    """

    def __init__(
        self,
        backend: Backend,
        pool_tokens: int,
        *,
        block_size: int = BLOCK_SIZE,
        clock: Callable[[], float] = time.perf_counter,
        speculation: Speculation | None = None,
        **rules: Any,
    ) -> None:
        config = EngineConfig(
            block_size=block_size,
            num_blocks=-(-pool_tokens // block_size) + 1,  # the null block
            **{"prefix_caching": False, "record_trace": False, "keep_ended": None, **rules},
        )
        self.engine = Engine(backend, config, clock=clock, speculation=speculation)

    @classmethod
    def modelled(
        cls,
        inner: Backend,
        step_time: Callable[[StepPlan], float],
        pool_tokens: int,
        *,
        copy_time: Callable[[Sequence[tuple[int, int]]], float] = lambda pairs: 0.0,
        **options: Any,
    ) -> Bench:
        """``inner`` in modelled time: each step lasts ``step_time``, however long this machine takes."""
        clock = VirtualClock()
        return cls(SimulatedBackend(inner, step_time, clock, copy_time), pool_tokens, clock=clock, **options)

    @property
    def requests(self) -> list[Request]:
        """In the order in which they were asked."""
        return list(self.engine.requests.values())

    def ask(
        self,
        prompt: Sequence[int],
        output_tokens: int,
        *,
        name: str | None = None,
        arrival_s: float | None = None,
        salt: str | None = None,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> Request:
        """Adds a request that ends after ``output_tokens`` tokens, whatever the model says."""
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=output_tokens, ignore_eos=True)
        return self.engine.add_request(prompt, params, request_id=name, arrival_s=arrival_s, salt=salt)

    def run(self) -> None:
        """Steps until every request has ended."""
        for _ in self.engine.run():
            pass

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.step()
