"""A smaller model that drafts: a chain of tokens for all requests together, one step of it for each token.

It runs on a backend of its own, whose K/V lies at the very slots of the target's: the block tables are the
target's, so prefix hits, preemption and a pool that is full need no second book-keeping. What it keeps for a
request is how many tokens its K/V holds there, the drafted ones that were accepted included; the rest was
rejected, and is computed anew. A hit, a fork, or a swap brings no K/V of the draft model along: it reads the
request's tokens again, which costs one chunk of a small model.

A drafted token is drawn with the number that the target will draw with. With a draft distribution near the
target's the two fall on the same token more often than the draft's best guess does, at any temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minillm.backends.plans import Chunk, plan_of
from minillm.core.backend import Backend, Capacity
from minillm.core.plan import StepPlan
from minillm.core.sampling import uniform
from minillm.core.sampling.draws import bans_all, transform_for
from minillm.speculate.draft import NO_DRAFT, Ask, Draft, DraftError
from minillm.speculate.rejection import Row


@dataclass(slots=True)
class _Cached:
    """What the slots hold of one request, as it was when last asked."""

    epoch: int
    blocks: Sequence[int]
    num_known: int  # tokens of the request, all of them computed
    num_drafted: int  # drafted tokens behind them that are computed, too


@dataclass(slots=True)
class _Chain:
    """A draft that grows."""

    ask: Ask
    num_computed_tokens: int
    length: int  # tokens that are wanted
    tokens: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


class DraftModel:
    """Drafts by the model of ``backend``, which is not loaded yet and belongs to this drafter alone."""

    wants_hidden = False
    uses_slots = True

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.cost_ratio = 1.0
        self._block_size = self._vocab_size = self._longest = 0
        self._cached: dict[str, _Cached] = {}

    def start(self, capacity: Capacity) -> None:
        self.backend.load(block_size=capacity.block_size, num_blocks=capacity.num_blocks)
        own = self.backend.capacity()
        if own.vocab_size != capacity.vocab_size:
            raise DraftError(
                f"the draft model has {own.vocab_size:,} token ids, the target {capacity.vocab_size:,}: they must "
                "share one tokenizer"
            )
        # Where decoding is bound by memory. Small models spend their time elsewhere: measure, for a better length.
        self.cost_ratio = own.weight_bytes / capacity.weight_bytes
        self._block_size, self._vocab_size, self._longest = own.block_size, own.vocab_size, own.max_model_len

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        chains = [_Chain(ask, self.num_cached(ask), self._length(ask)) for ask in asks]
        growing = [chain for chain in chains if chain.length]
        while growing:
            self._grow(growing)
            growing = [chain for chain in growing if len(chain.tokens) < chain.length]
        for chain in chains:
            self._remember(chain.ask, chain.num_computed_tokens - chain.ask.request.num_known)
        return [self._draft(chain) for chain in chains]

    def forget(self, request_id: str) -> None:
        self._cached.pop(request_id, None)

    def num_cached(self, ask: Ask) -> int:
        """Leading tokens of the request whose K/V the slots hold. At least the last one is not among them: nothing
        was known of the draw after the accepted ones."""
        request, cached = ask.request, self._cached.get(ask.request.request_id)
        if cached is None or cached.epoch != request.epoch:
            return 0
        tokens = cached.num_known + min(cached.num_drafted, ask.num_accepted)
        # A block that was exchanged for a copy has none of it.
        pairs = zip(cached.blocks, ask.blocks, strict=False)
        same = next((i for i, (before, now) in enumerate(pairs) if before != now), len(ask.blocks))
        return min(tokens, same * self._block_size)

    def _length(self, ask: Ask) -> int:
        """Tokens to draft; the last one is never run."""
        room = self._longest + 1 - ask.request.num_known
        return max(0, min(ask.max_tokens, ask.max_depth, room))

    def _remember(self, ask: Ask, num_drafted: int) -> None:
        if num_drafted < 0:  # nothing was run
            return
        request = ask.request
        self._cached[request.request_id] = _Cached(request.epoch, ask.blocks, request.num_known, num_drafted)

    def _grow(self, chains: Sequence[_Chain]) -> None:
        """One more token for each chain: the first time after all that is not cached yet, then after the last one."""
        plan = plan_of([self._chunk(chain) for chain in chains], self._block_size)
        self._shape(plan, chains)
        plan.distributions = [draw for draw, chain in enumerate(chains) if chain.ask.wants_probabilities]
        result = self.backend.run(plan)
        for draw, chain in enumerate(chains):
            chain.num_computed_tokens = chain.ask.request.num_known + len(chain.tokens)
            chain.tokens.append(result.token_ids[draw])
            if draw in result.distributions:
                chain.rows.append(result.distributions[draw])

    def _chunk(self, chain: _Chain) -> Chunk:
        ask, request = chain.ask, chain.ask.request
        return Chunk(
            [*request.token_ids, *chain.tokens],
            ask.blocks,
            chain.num_computed_tokens,
            params=request.params,
            uniform=uniform(ask.draw_seed, request.num_output + len(chain.tokens)),
        )

    def _shape(self, plan: StepPlan, chains: Sequence[_Chain]) -> None:
        """Penalties, bans and masks, as the target will apply them; a chain ends where nothing can be drawn."""
        for draw, chain in enumerate(chains):
            request = chain.ask.request
            if request.is_plain:
                continue
            transform = transform_for(request, chain.tokens)
            if transform is not None and bans_all(transform, self._vocab_size):
                chain.length = len(chain.tokens)
            elif transform is not None:
                plan.transforms[draw] = transform

    def _draft(self, chain: _Chain) -> Draft:
        tokens = chain.tokens[: chain.length]
        if not tokens:
            return NO_DRAFT
        return Draft(tokens, None, chain.rows[: chain.length] if chain.rows else None)
