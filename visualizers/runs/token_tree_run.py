"""Token trees on the engine: what each step of one answer drafted and kept, and chains beside trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from minillm import hub
from minillm.backends.numpy_backend import NumpyBackend
from minillm.core.backend import Backend, Capacity
from minillm.core.plan import StepPlan, StepResult
from minillm.speculate.draft_model import DraftModel
from minillm.speculate.draft_tree import DraftTree
from minillm.speculation import Method, Speculate, speculation_for
from visualizers.runs import bundled
from visualizers.runs.bundled import DRAFT_MODEL
from visualizers.runs.measure import one_thread
from visualizers.runs.speculation_run import OUTPUT_TOKENS, PROMPTS, Outcome, Seen, serve

Setting = Literal["greedy", "drawn"]
Shape = Literal["chain", "tree"]
SETTINGS: tuple[Setting, ...] = ("greedy", "drawn")
HEADS: Mapping[Method, int] = {"mtp": 3, "eagle": 4, "medusa": 8}  # tokens of a draft, as `minillm generate` drafts
SHAPES: tuple[Shape, ...] = ("chain", "tree")
SIZES = (4, 8, 16)  # tokens of a draft
STEPS = 8  # of the first prompt's answer that are shown


@dataclass(frozen=True)
class Drafted:
    """A run with one shape of drafts."""

    outcome: Outcome
    draft_steps: float  # of the draft model, for each draft of the batch
    seen: tuple[Seen, ...]  # of the first prompt


class _Counted:
    """A backend that counts its steps."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.num_steps = 0

    def load(self, *, block_size: int, num_blocks: int | None, num_host_blocks: int = 0) -> None:
        self._inner.load(block_size=block_size, num_blocks=num_blocks, num_host_blocks=num_host_blocks)

    def capacity(self) -> Capacity:
        return self._inner.capacity()

    def run(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        return self._inner.run(plan)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._inner.copy_blocks(pairs)

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._inner.copy_slots(pairs)

    def close(self) -> None:
        self._inner.close()


@cache
def run(setting: Setting, shape: Shape, size: int) -> Drafted:
    """All prompts of `speculation_run` in one batch, with drafts of ``size`` tokens."""
    backend = _Counted(bundled.backend(DRAFT_MODEL))
    drafter = DraftTree(backend) if shape == "tree" else DraftModel(backend)
    tokens = [bundled.encode(prompt) for prompt in PROMPTS]
    with one_thread():
        outcome = serve(bundled.backend(), tokens, setting, drafter, size, OUTPUT_TOKENS)
    return Drafted(outcome, backend.num_steps / outcome.proposals, outcome.seen[:STEPS])


@cache
def run_heads(setting: Setting, method: Method) -> Outcome:
    """The same prompts with drafts by heads on the target's hidden state."""
    options = Speculate(method, draft_tokens=HEADS[method])
    drafter = speculation_for(
        options, bundled.model(), bundled.backend(), lambda name: hub.BUNDLED / name, NumpyBackend
    ).drafter
    tokens = [bundled.encode(prompt) for prompt in PROMPTS]
    with one_thread():
        return serve(bundled.backend(), tokens, setting, drafter, HEADS[method], OUTPUT_TOKENS)
