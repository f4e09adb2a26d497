"""One list of requests through the three batching policies of the scheduler, in modelled time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from minillm import catalog
from minillm.backends.simulated import Weightless
from minillm.core.config import PolicyName
from minillm.core.plan import StepPlan
from minillm.core.request import Request
from minillm.core.sampling import uniform
from visualizers.runs.bench import BLOCK_SIZE, Bench
from visualizers.runs.modelled import step_time

POLICIES: tuple[PolicyName, ...] = ("static", "dynamic", "continuous")
NUM_REQUESTS = 24
MEAN_OUTPUT = 64  # tokens, before the one long answer
PROMPTS = (64, 512)  # shortest and longest, tokens
WINDOW_S = 0.05  # how long dynamic batching waits for a full batch
STEP_TOKENS = 2048
MEMORY_SHARE = 0.9  # of the accelerator's memory, for weights and KV
_SEED = 6


@dataclass(frozen=True)
class Job:
    """A request of the workload: when it arrives, and its lengths in tokens."""

    arrival_s: float
    prompt: int
    output: int


@dataclass(frozen=True)
class Served:
    """What became of a request. Times in seconds; its row of the batch is held until ``released_s``."""

    job: Job
    start_s: float
    first_s: float
    end_s: float
    released_s: float

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.job.arrival_s

    @property
    def tpot_s(self) -> float:
        return (self.end_s - self.first_s) / (self.job.output - 1)


def workload(rate: float, spread: str) -> tuple[Job, ...]:
    """Poisson arrivals at ``rate`` requests/s. The draws are the same for every rate and spread."""
    jobs, now_s = [], 0.0
    low, high = PROMPTS
    for i in range(NUM_REQUESTS):
        gap, prompt, output = (uniform(_SEED, 3 * i + k) for k in range(3))
        now_s += -math.log1p(-gap) / rate if i else 0.0
        jobs.append(Job(round(now_s, 6), low + int(prompt * (high - low + 1)), _output_tokens(i, output, spread)))
    return tuple(jobs)


def _output_tokens(index: int, draw: float, spread: str) -> int:
    if spread == "same":
        return MEAN_OUTPUT
    if spread == "one-long":
        return 10 * MEAN_OUTPUT if index == 2 else MEAN_OUTPUT
    sigma = 1.0  # log-normal: the longest of 24 is some thirty times the shortest
    length = MEAN_OUTPUT * math.exp(sigma * NormalDist().inv_cdf(max(draw, 1e-9)) - sigma**2 / 2)
    return max(4, min(10 * MEAN_OUTPUT, round(length)))


@cache
def serve(policy: PolicyName, rate: float, spread: str, batch: int, model: str, accelerator: str) -> tuple[Served, ...]:
    """The workload through the engine. Each step lasts as long as the roofline says that it must."""
    seconds, pool_tokens = _modelled(model, accelerator)
    bench = Bench.modelled(
        Weightless(max_model_len=4096),
        seconds,
        pool_tokens,
        max_batch_tokens=STEP_TOKENS,
        max_running_requests=batch,
        policy=policy,
        max_wait_s=WINDOW_S,
    )
    jobs = workload(rate, spread)
    for job in jobs:
        bench.ask([0] * job.prompt, job.output, arrival_s=job.arrival_s)
    bench.run()
    return _served(bench.requests, jobs, closed=policy != "continuous")


def _modelled(model: str, accelerator: str) -> tuple[Callable[[StepPlan], float], int]:
    """The seconds of a step, and the tokens whose KV fits beside the weights, in whole blocks."""
    target, machine = catalog.model(model), catalog.accelerator(accelerator)
    room = MEMORY_SHARE * machine.memory_bytes - target.weight_bytes()
    blocks = int(room // (BLOCK_SIZE * target.kv_bytes_per_token("bf16"))) - 1  # the null block holds no token
    return step_time(target, machine), blocks * BLOCK_SIZE


def _served(requests: list[Request], jobs: tuple[Job, ...], *, closed: bool) -> tuple[Served, ...]:
    """Times of each request. In a closed batch a row is held until the last of the batch has ended."""
    ends = [request.token_times_s[-1] for request in requests]
    starts = [request.admitted_s or 0.0 for request in requests]
    released = list(ends)
    if closed:
        batch: list[int] = []
        for i in [*sorted(range(len(requests)), key=lambda i: (starts[i], i)), None]:
            # A batch is over when all have ended; only then does the next one start.
            if batch and (i is None or starts[i] >= max(ends[j] for j in batch)):
                for j in batch:
                    released[j] = max(ends[k] for k in batch)
                batch = []
            if i is not None:
                batch.append(i)
    return tuple(
        Served(job, start, request.token_times_s[0], end, until)
        for job, start, request, end, until in zip(jobs, starts, requests, ends, released, strict=True)
    )


def slots(served: Sequence[Served]) -> list[int]:
    """The row of the batch that each request holds: on its start it takes the first that is free."""
    free_from: list[float] = []  # of each row that was ever held
    found = [0] * len(served)
    for i in sorted(range(len(served)), key=lambda i: (served[i].start_s, i)):
        row = next((n for n, until in enumerate(free_from) if until <= served[i].start_s), len(free_from))
        free_from[row : row + 1] = [served[i].released_s]
        found[i] = row
    return found
