"""What heads are good for in the engine: outputs of the bundled target, drafted by them, on beginnings it never saw."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from minillm.core.sampling import SamplingParams
from minillm.llm import LLM
from minillm.speculation import Method

from .data import PROMPT, text_windows

PROMPTS = 32
OUTPUT = 96
TEMPERATURES = (0.0, 0.7, 1.0)


@dataclass(frozen=True)
class Run:
    """At one temperature: accepted of the drafted tokens, and output tokens a step."""

    temperature: float
    acceptance_rate: float
    tokens_per_step: float


def measure(method: Method, held_out: Tensor, seed: int) -> list[Run]:
    """With the method's default number of draft tokens."""
    prompts = text_windows(held_out, PROMPTS, PROMPT, seed + 1).tolist()
    found = []
    for temperature in TEMPERATURES:
        llm = LLM("tiny", backend="numpy", speculate=method)
        for prompt in prompts:
            params = SamplingParams(temperature=temperature, seed=seed, max_tokens=OUTPUT, ignore_eos=True)
            llm.engine.add_request(prompt, params)
        for _ in llm.engine.run():
            pass
        run = llm.engine.metrics()
        found.append(Run(temperature, run.acceptance_rate or 0.0, run.tokens_per_step))
    return found
