"""A long prompt arrives while others decode, on the engine itself: whole in one step, or in chunks under a budget.

What runs in which step is the same in every repeat; of the times the median counts, and their spread is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from minillm.core.backend import Backend
from minillm.core.observe.metrics import request_metrics
from visualizers.runs import bundled
from visualizers.runs.bench import BLOCK_SIZE, Bench
from visualizers.runs.measure import one_thread, thread_clock

BUDGETS = (32, 64, 128, 256)  # tokens of a step
PROMPTS = (128, 256, 512)  # tokens of the prompt that arrives
DECODERS = (1, 4, 8)
QUIET = 6  # gaps before the prompt arrives, and at least as many after its first token
REPEATS = 7
_START = 16  # tokens that a decoding request began with
_TEXT = (
    "The report of the Secretary shows that the public revenue has grown in the past year, while the debt was made "
    "smaller by one tenth. The harvest in the western States was good, and our trade with other nations is larger "
    "than before the war. I ask the Congress to look with care at the law that governs the sale of public lands, "
    "since many settlers wait for their titles. The Army has kept the peace on the frontier, and the Navy is in "
    "good order. With the Indian tribes new treaties were signed, which I lay before the Senate. "
)


@dataclass(frozen=True)
class Step:
    """One step of the engine: the gap between two tokens of everyone who decodes."""

    gap_s: float
    prompt_tokens: int  # of the long prompt that were computed in it


@dataclass(frozen=True)
class Served:
    """A run from its first quiet step. ``written`` has the output ids of all, the newcomer's last."""

    steps: tuple[Step, ...]
    ttft_s: float  # of the long prompt
    written: tuple[tuple[int, ...], ...]

    @property
    def arrival_s(self) -> float:
        """When the long prompt arrived, from the start."""
        return sum(step.gap_s for step in self.steps[:QUIET])


def num_gaps(prompt: int, decoders: int) -> int:
    """Gaps of a run: the same for all budgets, and enough for the smallest."""
    return 2 * QUIET - (-prompt // (BUDGETS[0] - decoders))


@cache
def repeats(budget: int | None, prompt: int, decoders: int) -> tuple[Served, ...]:
    """The run under ``budget`` tokens a step, ``REPEATS`` times; None computes the prompt in one step."""
    with one_thread():
        return tuple(
            serve(bundled.backend(), bundled.encode(_TEXT), budget, prompt, decoders, thread_clock())
            for _ in range(REPEATS)
        )


def run(budget: int | None, prompt: int, decoders: int) -> Served:
    """The run whose every step took the median of its times."""
    return medians(repeats(budget, prompt, decoders))


def medians(runs: Sequence[Served]) -> Served:
    """One run of ``runs``, which differ in times alone, with the median of each of its times."""
    first = runs[0]
    for other in runs:
        if [s.prompt_tokens for s in other.steps] != [s.prompt_tokens for s in first.steps]:
            raise RuntimeError("two runs of one workload planned different steps: their times cannot be compared")
    steps = tuple(
        Step(median(s.gap_s for s in same), same[0].prompt_tokens)
        for same in zip(*(r.steps for r in runs), strict=True)
    )
    return Served(steps, median(r.ttft_s for r in runs), first.written)


def serve(
    backend: Backend,
    tokens: Sequence[int],
    budget: int | None,
    prompt: int,
    decoders: int,
    clock: Callable[[], float],
) -> Served:
    """One run. ``tokens`` is the text that all prompts are cut from, ``clock`` the engine's."""
    gaps = num_gaps(prompt, decoders)
    talk = _START + decoders + gaps
    longest = max(talk, prompt + 1)
    blocks = -(-talk // BLOCK_SIZE) * decoders - (-prompt // BLOCK_SIZE)
    bench = Bench(
        backend,
        (blocks + 1) * BLOCK_SIZE,  # one more for the newcomer's first token
        clock=clock,
        max_batch_tokens=budget or longest + decoders,
        chunked_prefill=budget is not None,
        max_model_len=longest,
        max_running_requests=decoders + 1,
    )
    others = []
    for i in range(decoders):  # one a step: each of their prompts fits beside those who decode already
        others.append(bench.ask(_cut(tokens, 11 * i, _START), decoders + gaps))
        bench.step()
    bench.step(QUIET)
    # Its one output token ends it, so that the others are as many after it as before.
    newcomer = bench.ask(_cut(tokens, 0, prompt), 1)
    bench.step(gaps - QUIET)
    measured = request_metrics(newcomer)
    if measured.ttft_s is None:
        raise RuntimeError(f"a prompt of {prompt} tokens was not computed within {gaps - QUIET} steps of {budget}")
    samples = bench.engine.metrics().steps[-gaps:]
    itl_s = request_metrics(others[-1]).itl_s[-gaps:]
    steps = tuple(Step(gap, sample.num_tokens - decoders) for gap, sample in zip(itl_s, samples, strict=True))
    return Served(steps, measured.ttft_s, tuple(tuple(r.output_ids) for r in (*others, newcomer)))


def _cut(tokens: Sequence[int], start: int, length: int) -> list[int]:
    """``length`` tokens of the text from ``start``, which begins again at its end."""
    return [tokens[(start + i) % len(tokens)] for i in range(length)]
