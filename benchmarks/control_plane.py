"""What the control plane costs: plan and commit of a step, for each running request.

    python benchmarks/control_plane.py [--steps 200] [--rounds 5] [--no-model]

The backend answers at once with made-up tokens, so all that is left is `minillm.core`. Every request has a prompt
of its own of one block and decodes; the steps that read the prompts are not counted.

- ``plan_commit_us``: microseconds of ``Engine.step`` for each running request, greedy and sampled, at several
  sizes of the batch.
- ``queue_us`` and ``pool_us``: the same at 256 requests with 10,000 more waiting, and in a pool ten times as
  large: the cost must not grow with either. ``traced_us``: at 256 with every decision recorded.
- ``prefix_share``: at 0 % hits, what looking up and filing the blocks of new prompts costs, over the time
  that SmolLM2-135M takes to read those prompts in the same run.

Clock: processor time of the thread, the best of several rounds in turn, so that other programs add little. Where
it flatters: no tokenizer, so no text is made; no trace but for ``traced_us``. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from options import positive

from minillm.core.backend import Capacity
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.plan import StepPlan, StepResult
from minillm.core.sampling import SamplingParams
from minillm.llm import LLM

BATCHES = (1, 32, 256, 1024)
VOCAB_SIZE = 49_152
BLOCK_SIZE = 16


class InstantModel:
    """A ``Backend`` whose draws are known beforehand."""

    def load(self, *, block_size: int, num_blocks: int | None, num_host_blocks: int = 0) -> None:
        self._capacity = Capacity(num_blocks or 1024, block_size, 1024, 1, 1 << 20, VOCAB_SIZE)

    def capacity(self) -> Capacity:
        return self._capacity

    def run(self, plan: StepPlan) -> StepResult:
        return StepResult([7] * len(plan.logits_indices), 0.0)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        raise NotImplementedError("nothing is copied here")

    copy_slots = copy_blocks

    def close(self) -> None:
        """Nothing is held."""


def step_us(
    batch: int, steps: int, *, temperature: float = 0.0, waiting: int = 0, pool: int = 1, trace: bool = False
) -> float:
    """Microseconds of processor time a running request and step, of one engine."""
    rng = random.Random(batch)  # noqa: S311
    blocks = pool * (batch * (2 + (BLOCK_SIZE + steps) // BLOCK_SIZE) + 8)
    config = EngineConfig(
        block_size=BLOCK_SIZE,
        num_blocks=blocks,
        max_running_requests=batch,
        max_batch_tokens=max(2048, 2 * batch * BLOCK_SIZE),
        record_trace=trace,
    )
    engine = Engine(InstantModel(), config)
    for _ in range(batch + waiting):
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range(BLOCK_SIZE)]
        engine.add_request(prompt, SamplingParams(temperature=temperature, max_tokens=steps + 8, ignore_eos=True))
    while len(engine.scheduler.running) < batch or any(r.num_output < 2 for r in engine.scheduler.running):
        engine.step()
    started = time.thread_time_ns()
    for _ in range(steps):
        engine.step()
    return (time.thread_time_ns() - started) / 1000 / steps / batch


def prompts_us(prompts: list[list[int]], prefix_caching: bool) -> float:
    """Microseconds of processor time a token, of reading prompts that have nothing in common."""
    tokens = sum(map(len, prompts))
    config = EngineConfig(
        block_size=BLOCK_SIZE,
        num_blocks=tokens // BLOCK_SIZE + 2 * len(prompts) + 2,
        max_batch_tokens=512,
        prefix_caching=prefix_caching,
        record_trace=False,
    )
    engine = Engine(InstantModel(), config)
    for prompt in prompts:
        engine.add_request(prompt, SamplingParams(temperature=0.0, max_tokens=1))
    started = time.thread_time_ns()
    for _ in engine.run():
        pass
    return (time.thread_time_ns() - started) / 1000 / tokens


def smollm2_us(prompt: list[int]) -> float:
    """Microseconds a prompt token of the 135 M model."""
    llm = LLM("smollm2", config=EngineConfig(prefix_caching=False), say=print)
    llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=1))
    started = time.perf_counter()
    llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=1))
    return (time.perf_counter() - started) * 1e6 / len(prompt)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=200)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--no-model", action="store_true", help="leave out the share of a step of SmolLM2")
    args = parser.parse_args()
    rng = random.Random(0)  # noqa: S311
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(512)] for _ in range(64)]
    greedy: dict[int, float] = dict.fromkeys(BATCHES, float("inf"))
    sampled, queue, pool, traced = dict(greedy), float("inf"), float("inf"), float("inf")
    cached = plain = float("inf")
    for _ in range(args.rounds):
        for batch in BATCHES:
            greedy[batch] = min(greedy[batch], step_us(batch, args.steps))
            sampled[batch] = min(sampled[batch], step_us(batch, args.steps, temperature=1.0))
        queue = min(queue, step_us(256, args.steps, waiting=10_000))
        pool = min(pool, step_us(256, args.steps, pool=10))
        traced = min(traced, step_us(256, args.steps, trace=True))
        cached, plain = min(cached, prompts_us(prompts, True)), min(plain, prompts_us(prompts, False))
    print("plan + commit, us a running request and step")
    for batch in BATCHES:
        print(f"{batch:6} running: greedy {greedy[batch]:6.2f}  sampled {sampled[batch]:6.2f}")
    print(f"   256 running, 10,000 waiting: {queue:.2f}; in a pool ten times as large: {pool:.2f}")
    print(f"   256 running, each decision recorded in the trace: {traced:.2f}")
    report = {"greedy": greedy, "sampled": sampled, "queue_us": queue, "pool_us": pool, "traced_us": traced}
    report = {"plan_commit_us": report, "prompt_token_us": {"prefix cache": cached, "without": plain}}
    if not args.no_model:
        model_us = smollm2_us(prompts[0])
        share = (cached - plain) / model_us
        print(
            f"prefix cache at 0 % hits: {cached - plain:.3f} us a prompt token, {share:.2%} of SmolLM2's {model_us:.0f}"
        )
        report |= {"smollm2_prompt_token_us": model_us, "prefix_share": share}
    where = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(where | report))


if __name__ == "__main__":
    main()
