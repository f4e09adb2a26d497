"""Prompts through the engine with the bundled target and a drafter: what was drafted, what was accepted, what came out.

Nothing here is timed: which tokens are accepted does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from minillm.core.backend import Backend, Capacity
from minillm.core.observe.metrics import run_metrics
from minillm.core.request import Request
from minillm.speculate.draft import Ask, Draft, Drafter
from minillm.speculate.draft_model import DraftModel
from minillm.speculate.ngram import NgramDrafter
from minillm.speculate.speculator import Speculation, Verification
from minillm.speculate.suffix import SuffixDrafter
from minillm.speculate.tree import ROOT
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
class Seen:
    """One draft: its tokens after the known ones, the parent of each, and the path that was kept."""

    place: int  # of its first token in the output
    last: int  # the token that all of it follows
    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    kept: tuple[int, ...]


class Recorder:
    """A drafter that keeps what another one proposed for the first request."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.cost_ratio = inner.cost_ratio
        self.wants_hidden, self.uses_slots = inner.wants_hidden, inner.uses_slots
        self.num_proposals = 0
        self._drafts: list[tuple[Request, int, Draft]] = []  # with the tokens known then

    def start(self, capacity: Capacity) -> None:
        self._inner.start(capacity)
        self.cost_ratio = self._inner.cost_ratio

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        drafts = self._inner.propose(asks)
        self.num_proposals += 1
        for ask, draft in zip(asks, drafts, strict=True):
            if ask.request.index == 0 and draft.token_ids:
                self._drafts.append((ask.request, ask.request.num_known, draft))
        return drafts

    def forget(self, request_id: str) -> None:
        self._inner.forget(request_id)

    def seen(self) -> tuple[Seen, ...]:
        """What was drafted, with what came out, which is known when the run has ended."""
        return tuple(_seen(request, known, draft) for request, known, draft in self._drafts)


def _seen(request: Request, known: int, draft: Draft) -> Seen:
    parents = tuple(draft.parent(node) for node in range(len(draft.token_ids)))
    kept: list[int] = []
    node = ROOT
    for candidate, token_id in enumerate(draft.token_ids):  # parents come first
        position = known + len(kept)
        if parents[candidate] == node and position < request.num_known and token_id == request.token_ids[position]:
            kept.append(candidate)
            node = candidate
    place = known - (request.num_known - len(request.output_ids))
    return Seen(place, request.token_ids[known - 1], tuple(draft.token_ids), parents, tuple(kept))


@dataclass(frozen=True)
class Outcome:
    """What a run came to. Without a drafter nothing is drafted."""

    outputs: tuple[tuple[int, ...], ...]
    steps: int  # that yielded tokens, summed over the requests
    drafts: int  # steps of these that verified a draft
    drafted: int  # tokens
    accepted: int
    accepted_at: tuple[float, ...]  # of the drafts with a token so deep, the share of which it was accepted
    seen: tuple[Seen, ...] = ()  # the drafts for the first prompt
    proposals: int = 0  # how often the drafter was asked, for the whole batch

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
    recorder = None if drafter is None else Recorder(drafter)
    verification: Verification = "rejection" if setting == "rejection" else "draw"
    longest = max(map(len, prompts)) + output_tokens
    bench = Bench(
        backend,
        len(prompts) * -(-(longest + draft_tokens) // BLOCK_SIZE) * BLOCK_SIZE,  # whole blocks of each
        speculation=None if recorder is None else Speculation(recorder, draft_tokens, verification),
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
        seen=() if recorder is None else recorder.seen(),
        proposals=0 if recorder is None else recorder.num_proposals,
    )
