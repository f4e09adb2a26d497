"""What drafters by heads share: the model that runs the heads, each request's K/V in it, and chains that grow.

Heads read the target's hidden states. Those that have a layer of attention keep K/V of their own, of a request's
last tokens: the oldest are dropped when the room that a request has is full, and where hidden states were missed,
all are. So there is nothing to preempt or to swap, and no prefix to share; what is missing costs acceptance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from minillm.core.backend import Capacity
from minillm.core.blocks import NULL_BLOCK
from minillm.core.plan import StepPlan, StepResult, slots_of
from minillm.core.sampling import uniform
from minillm.core.sampling.draws import bans_all, transform_for
from minillm.speculate.draft import NO_DRAFT, Ask, Draft
from minillm.speculate.hidden import MOST_STATES
from minillm.speculate.rejection import Row

BLOCK_TOKENS = 128  # whose K/V a request's heads have room for
KEPT_TOKENS = 32  # of them stay when the room is full
MOST_DRAFTED = BLOCK_TOKENS - KEPT_TOKENS - MOST_STATES  # so that what comes next always has room


class HeadModel(Protocol):
    """Executes heads. ``depth``: Medusa's heads, MTP's modules."""

    depth: int

    @property
    def cost_ratio(self) -> float:
        """As a drafter's."""

    def load(self, *, num_blocks: int, block_size: int) -> None:
        """Make room for K/V in so many blocks; called again with more, what is there stays."""

    def run(self, plan: StepPlan, hidden: Sequence[Any], module: int) -> tuple[StepResult, Sequence[Any]]:
        """Run one module on ``hidden [T]``, each with the token after it in ``plan.token_ids [T]``: the plan's draws,
        and the states ``[T]`` that the next run reads. Medusa's heads take ``[R]`` and draw head by head for each.
        """

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the K/V of single tokens (source, target); all sources are read first."""


@dataclass(slots=True)
class HeadContext:
    """One request's K/V: of ``length`` tokens in a row, the last one at position ``end - 1``."""

    block: int
    length: int = 0
    end: int = 0
    tail: list[Any] = field(default_factory=list)  # hidden states of the last of them that will be run again


class HeadContexts:
    """A block for each request; more of them are made as they are needed."""

    def __init__(self, model: HeadModel) -> None:
        self._model = model
        self._of: dict[str, HeadContext] = {}
        self._free: list[int] = []
        self._num_blocks = 0

    def of(self, request_id: str, first: int) -> HeadContext:
        """The request's, which is to go on with the token at position ``first``: empty where it cannot."""
        context = self._of.get(request_id)
        if context is None:
            context = self._of[request_id] = HeadContext(self._take_block())
        if context.end != first:
            context.length, context.end, context.tail = 0, first, []
        return context

    def make_room(self, context: HeadContext, num_tokens: int) -> None:
        """Room for so many more tokens. K is kept as it was rotated: attention sees differences of positions alone."""
        if context.length + num_tokens <= BLOCK_TOKENS:
            return
        kept, base = min(KEPT_TOKENS, context.length), context.block * BLOCK_TOKENS
        self._model.copy_slots([(base + context.length - kept + i, base + i) for i in range(kept)])
        context.length = kept

    def forget(self, request_id: str) -> None:
        context = self._of.pop(request_id, None)
        if context is not None:
            self._free.append(context.block)

    def _take_block(self) -> int:
        if not self._free:
            # A table of the null block alone would hold nothing.
            self._free = list(range(max(NULL_BLOCK + 1, self._num_blocks), max(4, 2 * self._num_blocks)))[::-1]
            self._num_blocks = max(4, 2 * self._num_blocks)
            self._model.load(num_blocks=self._num_blocks, block_size=BLOCK_TOKENS)
        return self._free.pop()


@dataclass(slots=True)
class Chain:
    """A draft that grows."""

    ask: Ask
    context: HeadContext
    length: int  # tokens that are wanted
    tokens: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def draft(self) -> Draft:
        tokens = self.tokens[: self.length]
        if not tokens:
            return NO_DRAFT
        return Draft(tokens, None, self.rows[: self.length] if self.rows else None)


@dataclass(slots=True)
class Run:
    """One chain's share of a run: tokens at consecutive places of its context, and a draw after the last of them."""

    chain: Chain
    token_ids: Sequence[int]
    position: int  # of the first one's hidden state
    place: int  # of the first one in the context


class ChainHeads(ABC):
    """Drafts chains, for all requests together."""

    wants_hidden = True
    uses_slots = False

    def __init__(self, model: HeadModel) -> None:
        self.model = model
        self.cost_ratio = model.cost_ratio
        self.contexts = HeadContexts(model)
        self._vocab_size = 0

    def start(self, capacity: Capacity) -> None:
        self._vocab_size = capacity.vocab_size

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        chains = [self._chain(ask) if ask.hidden else None for ask in asks]
        running = [chain for chain in chains if chain is not None]
        if running:
            self.grow(running)
        return [NO_DRAFT if chain is None else chain.draft() for chain in chains]

    def forget(self, request_id: str) -> None:
        self.contexts.forget(request_id)

    @abstractmethod
    def grow(self, chains: Sequence[Chain]) -> None:
        """Draft the tokens that are wanted, and bring the contexts up to the newest hidden state."""

    def _chain(self, ask: Ask) -> Chain:
        context = self.contexts.of(ask.request.request_id, ask.request.num_known - 1 - len(ask.hidden))
        return Chain(ask, context, min(ask.max_tokens, ask.max_depth, MOST_DRAFTED))

    def step(self, runs: Sequence[Run], hidden: Sequence[Any], module: int) -> Sequence[Any]:
        """One more token for the chain of each run. Returns the states, run by run."""
        plan = StepPlan(step=0, block_size=BLOCK_TOKENS)
        for run in runs:
            count = len(run.token_ids)
            plan.request_ids.append(run.chain.ask.request.request_id)
            plan.token_ids.extend(run.token_ids)
            plan.positions.extend(range(run.position, run.position + count))
            plan.query_start_loc.append(len(plan.token_ids))
            plan.seq_lens.append(run.place + count)
            plan.block_tables.append([run.chain.context.block])
            plan.logits_indices.append(len(plan.token_ids) - 1)
            if not add_draw(plan, run.chain.ask, run.chain.tokens, self._vocab_size):
                run.chain.length = min(run.chain.length, len(run.chain.tokens))
        plan.slot_mapping = slots_of(plan, plan.block_tables)
        result, states = self.model.run(plan, hidden, module)
        for draw, run in enumerate(runs):
            run.chain.tokens.append(result.token_ids[draw])
            if draw in result.distributions:
                run.chain.rows.append(result.distributions[draw])
        return states


def add_draw(plan: StepPlan, ask: Ask, drafted: Sequence[int], vocab_size: int) -> bool:
    """What shapes the draw at the plan's last logits, after the ``drafted`` tokens, as the target's will be.

    False if nothing may be drawn there: then what comes out means nothing.
    """
    request, draw = ask.request, len(plan.sampling)
    plan.sampling.append(request.params)
    plan.uniforms.append(uniform(ask.draw_seed, request.num_output + len(drafted)))
    if ask.wants_probabilities:
        plan.distributions = [*plan.distributions, draw]
    transform = None if request.is_plain else transform_for(request, drafted)
    if transform is not None and bans_all(transform, vocab_size):
        return False
    if transform is not None:
        plan.transforms[draw] = transform
    return True
