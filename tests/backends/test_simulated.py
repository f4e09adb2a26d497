"""Runs in modelled time: without a model they take exactly as long as with one."""

from __future__ import annotations

import pytest

from minillm.backends.hash_model import HashModel
from minillm.backends.simulated import SimulatedBackend, Weightless
from minillm.core.backend import Backend
from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.sampling import SamplingParams

CONFIG = EngineConfig(
    block_size=4, num_blocks=9, max_batch_tokens=8, max_running_requests=3, prefix_caching=False, debug_checks=True
)


def times_of(inner: Backend) -> tuple[list[list[float]], int]:
    """When each of four requests got its tokens, and how often one was preempted."""
    clock = VirtualClock()
    engine = Engine(SimulatedBackend(inner, lambda plan: 0.5 + len(plan.token_ids), clock), CONFIG, clock=clock)
    for i, prompt in enumerate((9, 3, 6, 1)):
        params = SamplingParams(temperature=0, max_tokens=5 + i, ignore_eos=True)
        engine.add_request([0] * prompt, params, arrival_s=2.0 * i, request_id=str(i))
    for _ in engine.run():
        pass
    return [engine.requests[str(i)].token_times_s for i in range(4)], engine.metrics().preemptions


def test_times_are_those_of_a_run_with_a_model() -> None:
    times, preemptions = times_of(Weightless(max_model_len=64))
    assert (times, preemptions) == times_of(HashModel(max_model_len=64))
    assert [len(t) for t in times] == [5, 6, 7, 8]
    assert preemptions > 0


def test_without_memory_to_count_the_blocks_must_be_given() -> None:
    with pytest.raises(ValueError, match="num_blocks is None"):
        Weightless(max_model_len=64).load(block_size=4, num_blocks=None)
