"""A planned step: the plan for the backend, and beside it what commit needs to know again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minillm.core.plan import StepPlan
from minillm.core.request import Request
from minillm.core.sampling.shaping import Transform
from minillm.speculate.draft import NO_DRAFT, Draft


@dataclass(slots=True)
class Scheduled:
    """A request's share of a step: tokens ``start .. start + num_scheduled_tokens - 1`` of its sequence."""

    request: Request
    start: int
    num_scheduled_tokens: int
    epoch: int  # the request's when planned: results for an older one are dropped
    num_draws: int = 0  # how many of the plan's draws are its own
    error: str = ""  # why the request has to end with this step
    draft: Draft = NO_DRAFT  # unverified tokens that run behind these
    draft_transforms: Sequence[Transform | None] = ()  # of the draw after each, unless the request is plain


@dataclass(slots=True)
class Step:
    """A planned step: what the backend gets, and what commit needs to know again."""

    plan: StepPlan
    decodes: list[Request]  # of the plan's first rows: plain requests, with one token and one draw each
    epochs: list[int]  # of the decodes, as in ``Scheduled``
    parts: list[Scheduled]  # of the other rows
    copies: list[tuple[int, int]]  # of blocks, before the plan runs

    @property
    def requests(self) -> list[Request]:
        """Of the plan's rows."""
        return [*self.decodes, *(part.request for part in self.parts)]
