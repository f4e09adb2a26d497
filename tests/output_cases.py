"""Random workloads of searches and samples, for ``core_harness.drive``."""

from __future__ import annotations

import random
from typing import Any

from core_harness import Case, Job

from minillm.core.config import EngineConfig
from minillm.core.sampling import SamplingParams


def sampled(n: int, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"n": n, "temperature": 1.0, "seed": 5, "max_tokens": 6, **fields})


def beams(width: int, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"beam_width": width, "temperature": 0, "max_tokens": 6, **fields})


def random_case(rng: random.Random) -> Case:
    """Searches and samples that hardly fit, so that they preempt each other."""
    block_size, width, longest = rng.choice([1, 2, 3]), rng.choice([2, 2, 3]), rng.randint(2, 6)
    prompt, num_host_blocks = rng.randint(1, 4), rng.choice([0, 0, 4, 40])
    config = EngineConfig(
        block_size=block_size,
        num_blocks=width * -(-(prompt + longest - 1) // block_size) + 1 + rng.randint(0, 3),
        max_batch_tokens=rng.choice([6, 9, 20]),
        max_running_requests=rng.choice([width, width + 1, 6, 6]),
        prefix_caching=rng.random() < 0.5,
        max_model_len=20,
        order=rng.choice(["fcfs", "priority", "shortest", "fair", "deadline"]),
        policy=rng.choice(["continuous", "continuous", "continuous", "static", "dynamic"]),
        overlap=rng.choice([0, 0, 1, 2]),
        preemption="swap" if num_host_blocks else "recompute",
        num_host_blocks=num_host_blocks,
    )

    def job() -> Job:
        params = sampled(
            rng.randint(1, width), max_tokens=longest, seed=rng.randint(0, 99), temperature=rng.choice([1.0, 6.0])
        )
        if rng.random() < 0.7:
            params = beams(
                rng.randint(1, width),
                max_tokens=longest,
                min_tokens=rng.choice([0, 1]),
                length_penalty=rng.choice([1.0, 0.5, 2.0]),
                stop_token_ids=rng.choice([(), (1,), (0, 1)]),
                logprobs=rng.choice([None, 1, 7]),
            )
        return Job(
            tuple(rng.randint(0, 1) for _ in range(rng.randint(1, prompt))),
            params,
            arrival_s=float(rng.choice([0, 0, 1, 2, 3])),
            priority=rng.randint(0, 2),
            tenant=rng.choice("ab"),
            abort_after=rng.choice([None] * 5 + [rng.randint(0, 6)]),
        )

    jobs = tuple(job() for _ in range(rng.randint(2, 5)))
    return Case(config, jobs, vocab_size=8, abort_in_flight=rng.random() < 0.3, is_async=rng.random() < 0.5)
