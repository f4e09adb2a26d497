"""Speculation in the engine: who may draft how much in a step, what goes into its plan, and what is accepted.

Drafts are work that can wait: they take the tokens of the budget and the free blocks that a step leaves over
after every known token that could run has its place. So they hold up no prompt, preempt nobody, and cease
where a step is full, which is where they would not pay anyhow.

A draft lives for one step. Its tokens stand behind the last known one, at slots of their own; none of them
is known until it is accepted, and blocks are indexed by known tokens alone. When the step lands, the slots of
what was rejected are given back. A request drafts only while all its known tokens but the last are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from minillm.core.backend import Capacity
from minillm.core.hooks import Trace
from minillm.core.kv_manager import KVManager
from minillm.core.plan import StepPlan, StepResult
from minillm.core.request import DraftCounts, Request
from minillm.core.sampling.draws import add_drafted_draws, bans_all, transform_for
from minillm.speculate.accept import accepted_path
from minillm.speculate.adaptive import AdaptiveLength, FixedLength, LengthPolicy
from minillm.speculate.draft import NO_DRAFT, Ask, Draft, Drafter, DraftError, check_draft
from minillm.speculate.hidden import HiddenStates
from minillm.speculate.rejection import Proposal, coin, draft_seed
from minillm.speculate.tree import ROOT, depths

if TYPE_CHECKING:
    from minillm.core.step import Scheduled

Verification = Literal["draw", "rejection"]


@dataclass(frozen=True, slots=True)
class Speculation:
    """How an engine speculates. Invalid values raise ``ValueError``."""

    drafter: Drafter
    draft_tokens: int = 4  # most tokens drafted for a request in a step; those of a tree are all counted
    verification: Verification = "draw"  # see `minillm.speculate.accept`
    # Fewer tokens, or none, where the acceptance measured so far does not pay for them. ``verify_cost`` is the
    # time to verify one more token over that of a decode step: near 0 where steps are bound by memory.
    adaptive: bool = False
    verify_cost: float = 0.05

    def __post_init__(self) -> None:
        if isinstance(self.draft_tokens, bool) or not isinstance(self.draft_tokens, int) or self.draft_tokens < 1:
            raise ValueError(f"draft_tokens is {self.draft_tokens!r}, it must be a whole number of at least 1")
        if self.verification not in get_args(Verification):
            raise ValueError(f"verification is {self.verification!r}: choose from {', '.join(get_args(Verification))}")
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"adaptive is {self.adaptive!r}: use True or False")
        if not self.verify_cost >= 0:
            raise ValueError(f"verify_cost is {self.verify_cost}, it must be 0 or more decode steps a token")


class Speculator:
    """Stands between scheduler, drafter and commit. Blocks are reserved and given back by the KV manager."""

    def __init__(self, options: Speculation, kv: KVManager, trace: Trace, capacity: Capacity) -> None:
        self.drafter = options.drafter
        self._options = options
        self._kv = kv
        self._trace = trace
        self._vocab_size = capacity.vocab_size
        self._num_accepted: dict[str, int] = {}  # of the last draft of each request, until it is asked about again
        self.wants_hidden = options.drafter.wants_hidden
        self._hidden = HiddenStates()
        self.drafter.start(capacity)
        self._lengths: LengthPolicy = (
            AdaptiveLength(options.draft_tokens, self.drafter.cost_ratio + options.verify_cost)
            if options.adaptive
            else FixedLength(options.draft_tokens)
        )

    def draft(self, scheduled: Iterable[Scheduled], budget: int) -> None:
        """Give a draft to the parts of a step that may have one; together at most ``budget`` tokens."""
        able = [part for part in scheduled if self._may_draft(part)]
        parts: list[Scheduled] = []
        asks: list[Ask] = []
        for i, part in enumerate(able):
            ask = self._ask(part.request, budget // (len(able) - i))
            if ask is not None:
                budget -= ask.max_tokens
                parts.append(part)
                asks.append(ask)
        if not asks:
            return
        for part, ask, draft in zip(parts, asks, self._proposed(asks), strict=True):
            check_draft(self.drafter, ask, draft, self._vocab_size)
            if ask.wants_probabilities and draft.parents is not None:
                raise DraftError(
                    f"{type(self.drafter).__name__} drafts trees, which have no one distribution to reject against: "
                    "use verification='draw'"
                )
            request = part.request
            if not request.is_plain and draft.token_ids:
                transforms = [transform_for(request, draft.path(n)) for n in range(ROOT, len(draft.token_ids))]
                # Where nothing can be drawn, the request ends in an error, if it gets there: see `add_draws`.
                if any(t is not None and bans_all(t, self._vocab_size) for t in transforms):
                    draft = NO_DRAFT
                part.draft_transforms = transforms[1:]
            part.draft = draft
            request.num_in_flight += len(draft.token_ids)
            self._kv.rewind(request, request.num_known + len(draft.token_ids))
            if draft.token_ids:
                self._trace.emit("draft", request.request_id, tokens=len(draft.token_ids))

    def _may_draft(self, part: Scheduled) -> bool:
        # Something must be computed, for what some drafters go by is the target's state after it.
        if part.start < 1 or part.start != part.request.num_known - 1:
            return False
        group = part.request.group
        if group is not None and (group.beams is not None or not group.has_forked):
            return False  # several tokens are drawn after the last known one
        tables = (group.tables[part.request.request_id].blocks for group in self._kv.groups)
        return not any(map(self._kv.copies.go_to, tables))  # for the same reason: it is not there yet

    def _ask(self, request: Request, budget: int) -> Ask | None:
        """What may be drafted, its slots reserved; None if that is nothing."""
        known = request.num_known
        # The draw after the last drafted token is one more token of the output.
        max_depth = request.max_total_tokens - known - 1
        if max_depth < 1 or budget < 1:
            return None
        num_tokens = min(self._lengths.length(request.request_id), budget)
        table = self._kv.table(request.request_id)
        if not self._kv.reserve(request, known + num_tokens):
            num_tokens = min(num_tokens, len(table) * self._kv.block_size - known)
        if num_tokens < 1:
            return None
        by_draw = self._options.verification == "draw"
        return Ask(
            request,
            num_tokens,
            max_depth,
            blocks=table.copy(),
            draw_seed=request.seed if by_draw else draft_seed(request.seed),
            wants_probabilities=not by_draw and request.params.temperature > 0,
            num_accepted=self._num_accepted.pop(request.request_id, 0),
            hidden=self._hidden.take(request.request_id),
        )

    def _proposed(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        name = type(self.drafter).__name__
        try:
            drafts = self.drafter.propose(asks)
        except Exception as error:
            raise DraftError(f"{name} failed: {type(error).__name__}: {error}") from error
        if len(drafts) != len(asks):
            raise DraftError(f"{name} proposed {len(drafts)} drafts, it was asked for {len(asks)}")
        return drafts

    def extend(self, plan: StepPlan, part: Scheduled) -> None:
        """Put a part's drafted tokens and their draws into the plan, behind the last known one and its draw."""
        request, draft = part.request, part.draft
        first = request.num_known
        plan.token_ids.extend(draft.token_ids)
        places = range(first, first + len(draft.token_ids))
        if draft.parents is None:
            plan.positions.extend(places)
        else:
            plan.positions.extend(first + depth for depth in depths(draft.parents))
            plan.trees[len(plan.request_ids) - 1] = draft.parents
        draw, index = len(plan.logits_indices) - 1, request.num_output
        add_drafted_draws(plan, part)
        if self._options.verification == "rejection" and request.params.temperature > 0:
            for i, token_id in enumerate(draft.token_ids):
                row = None if draft.probabilities is None else draft.probabilities[i]
                plan.proposals[draw + i] = Proposal(token_id, row, coin(request.seed, index + i))

    def land(self, part: Scheduled, plan: StepPlan, result: StepResult, first_draw: int) -> None:
        """A part of a step is about to be committed; its draws begin with ``first_draw``."""
        if result.hidden is not None:
            self._hidden.land(part, plan, result.hidden, first_draw)

    def accept(self, part: Scheduled, draws: Sequence[int]) -> list[int]:
        """Indices of the drafted tokens that the target accepts."""
        draft, request = part.draft, part.request
        path = accepted_path(draft, draws)
        self._lengths.observe(request.request_id, draft.depth, len(path))
        self._num_accepted[request.request_id] = len(path)
        if self.wants_hidden:
            self._hidden.accept(request.request_id, path)
        return path

    @staticmethod
    def count(part: Scheduled, num_kept: int) -> None:
        """``num_kept`` of a draft's accepted tokens were committed: those behind the end of an output do not count."""
        request = part.request
        if request.draft_counts is None:
            request.draft_counts = DraftCounts()
        request.draft_counts.add(len(part.draft.token_ids), part.draft.depth, num_kept)

    def forget(self, request_id: str) -> None:
        """The request ended."""
        self._num_accepted.pop(request_id, None)
        self._hidden.forget(request_id)
        self._lengths.forget(request_id)
        self.drafter.forget(request_id)
