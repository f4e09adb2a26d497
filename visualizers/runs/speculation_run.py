"""Prompts through the engine with the bundled target and a drafter: what was drafted, what was accepted, what came out.

Nothing here is timed: which tokens are accepted does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from minillm.core.backend import Backend
from minillm.core.observe.metrics import run_metrics
from minillm.speculate.draft import Drafter
from minillm.speculate.draft_model import DraftModel
from minillm.speculate.ngram import NgramDrafter
from minillm.speculate.speculator import Speculation, Verification
from minillm.speculate.suffix import SuffixDrafter
from visualizers.runs import bundled
from visualizers.runs.bench import BLOCK_SIZE, Bench
from visualizers.runs.bundled import DRAFT_MODEL
from visualizers.runs.measure import one_thread

Setting = Literal["greedy", "drawn", "rejection"]
Name = Literal["ngram", "suffix", "draft"]
SETTINGS: tuple[Setting, ...] = ("greedy", "drawn", "rejection")
DRAFTERS: tuple[Name, ...] = ("ngram", "suffix", "draft")
LENGTHS = (1, 2, 4, 8)  # most tokens of a draft
OUTPUT_TOKENS = 64  # of each prompt
PROMPTS = (
    "The report of the Secretary shows that",
    "Congress has passed a law which",
    "Our relations with other nations are",
    "In the last year the public debt",
    "The Army and the Navy have",
    "I ask the Congress to look with care at",
)


@dataclass(frozen=True)
class Outcome:
    """What a run came to. Without a drafter nothing is drafted."""

    outputs: tuple[tuple[int, ...], ...]
    steps: int  # that yielded tokens, summed over the requests
    drafts: int  # steps of these that verified a draft
    drafted: int  # tokens
    accepted: int
    accepted_at: tuple[float, ...]  # of the drafts with a token so deep, the share of which it was accepted

    @property
    def tokens_per_draft(self) -> float:
        """Tokens of a step that verified a draft: those accepted, and the one drawn after them."""
        return 1 + self.accepted / self.drafts

    @property
    def tokens_per_step(self) -> float:
        """Of all steps, those without a draft as well."""
        return sum(map(len, self.outputs)) / self.steps


@cache
def run(setting: Setting, drafter: Name | None, draft_tokens: int = 1) -> Outcome:
    """All prompts in one batch, on the bundled model."""
    own = None if drafter is None else _drafter(drafter)
    tokens = [bundled.encode(prompt) for prompt in PROMPTS]
    with one_thread():  # two would wait for each other longer than they compute
        return serve(bundled.backend(), tokens, setting, own, draft_tokens, OUTPUT_TOKENS)


def _drafter(name: Name) -> Drafter:
    if name == "draft":
        return DraftModel(bundled.backend(DRAFT_MODEL))
    return NgramDrafter() if name == "ngram" else SuffixDrafter()


def serve(
    backend: Backend,
    prompts: Sequence[Sequence[int]],
    setting: Setting,
    drafter: Drafter | None,
    draft_tokens: int,
    output_tokens: int,
) -> Outcome:
    """One run: temperature 0, or 1 with the drafts verified by the target's own draws or by the rejection rule."""
    verification: Verification = "rejection" if setting == "rejection" else "draw"
    longest = max(map(len, prompts)) + output_tokens
    bench = Bench(
        backend,
        len(prompts) * -(-(longest + draft_tokens) // BLOCK_SIZE) * BLOCK_SIZE,  # whole blocks of each
        speculation=None if drafter is None else Speculation(drafter, draft_tokens, verification),
        max_model_len=longest,
        max_running_requests=len(prompts),
    )
    temperature = 0.0 if setting == "greedy" else 1.0
    requests = [bench.ask(prompt, output_tokens, temperature=temperature, seed=i) for i, prompt in enumerate(prompts)]
    bench.run()
    counts = [request.draft_counts for request in requests if request.draft_counts is not None]
    return Outcome(
        outputs=tuple(tuple(request.output_ids) for request in requests),
        steps=sum(len(request.chunk_sizes) for request in requests),
        drafts=sum(c.drafts_at[0] for c in counts),
        drafted=sum(c.num_drafted for c in counts),
        accepted=sum(c.num_accepted for c in counts),
        accepted_at=run_metrics(requests, (), 0).acceptance_at,
    )
