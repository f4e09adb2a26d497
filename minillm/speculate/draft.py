"""What a drafter says and what it is asked: tokens that may follow, as a chain or as a tree. Nothing is trusted.

A draft is a guess. The target verifies it, so a wrong one costs time and never changes an output; one that
cannot even be run (an id outside the vocabulary, more tokens than asked for) is a fault of the drafter, and
``check_draft`` says which.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minillm.core.backend import Capacity
from minillm.core.request import Request
from minillm.speculate.rejection import Row
from minillm.speculate.tree import ROOT, check_parents, depth_first, longest_path, path_to


class DraftError(RuntimeError):
    """A drafter proposed what cannot be verified, or raised: a fault of the drafter, not of a request."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow the known ones of a request.

    Without ``parents`` they are a chain, each after the one before. With them they are a tree: token ``j``
    follows token ``parents[j]``, an earlier one, or the last known token where that is ``ROOT`` (-1).
    """

    token_ids: Sequence[int] = ()
    parents: Sequence[int] | None = None
    # For each token the distribution ``[V]`` it was drawn from; None where it was drawn from none.
    probabilities: Sequence[Row] | None = None

    def parent(self, node: int) -> int:
        """The token that ``node`` follows."""
        return node - 1 if self.parents is None else self.parents[node]

    @property
    def depth(self) -> int:
        """Tokens of the longest path."""
        return len(self.token_ids) if self.parents is None else longest_path(self.parents)

    def path(self, node: int) -> list[int]:
        """The tokens from the first one down to ``node``."""
        if self.parents is None:
            return list(self.token_ids[: node + 1])
        return [self.token_ids[n] for n in path_to(self.parents, node)]


NO_DRAFT = Draft()


def tree_draft(tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Draft:
    """Of a tree's ``tokens`` those in ``nodes``, the likeliest first and with all their ancestors, depth first."""
    walk = depth_first(parents, nodes)
    if not walk:
        return NO_DRAFT
    place = {node: i for i, node in enumerate(walk)}
    return Draft([tokens[n] for n in walk], [place.get(parents[n], ROOT) for n in walk])


@dataclass(frozen=True, slots=True)
class Ask:
    """What a drafter may propose for one running request, all of whose known tokens but the last are computed."""

    request: Request
    max_tokens: int  # at least 1
    max_depth: int  # tokens of the longest path that can still be output, at least 1
    # The target's block table. It covers all known tokens and ``max_tokens`` more, so a drafter may keep
    # what it computes of a token at the token's own slot.
    blocks: Sequence[int]
    # The draw of output ``i`` is that of ``uniform(draw_seed, i)`` (see `minillm.speculate.rejection`).
    draw_seed: int
    wants_probabilities: bool = False
    num_accepted: int = 0  # of the tokens that were drafted for the request when it was last asked about
    # For a drafter that wants them: the target's hidden states of the last so many computed tokens, those that
    # came since the drafter was last asked about the request. None where the newest one's is not at hand.
    hidden: Sequence[Any] = ()


class Drafter(Protocol):
    """Proposes continuations of running requests, a batch at a time."""

    cost_ratio: float  # time of one more drafted token over the time of a decode step of the target
    wants_hidden: bool  # whether it reads hidden states
    uses_slots: bool  # whether it keeps something at the slots of all known tokens, those behind a window included

    def start(self, capacity: Capacity) -> None:
        """The engine's target has its KV memory: called once, before anything is proposed."""

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        """A draft for each request, ``NO_DRAFT`` where there is nothing to say."""

    def forget(self, request_id: str) -> None:
        """The request ended: nothing about it will be asked again."""


def check_draft(drafter: object, ask: Ask, draft: Draft, vocab_size: int) -> None:
    """Raise ``DraftError`` unless the target can verify the draft."""
    who = f"{type(drafter).__name__} drafts for {ask.request.request_id}"
    tokens = draft.token_ids
    if len(tokens) > ask.max_tokens:
        raise DraftError(f"{who}: {len(tokens)} tokens, it was asked for {ask.max_tokens} at most")
    for token_id in tokens:
        if not _is_id(token_id, vocab_size):
            raise DraftError(
                f"{who}: token {token_id!r} is outside the target's vocabulary of {vocab_size:,} ids: "
                "a drafter needs the target's tokenizer"
            )
    depth = len(tokens)
    if draft.parents is not None:
        try:
            check_parents(draft.parents, len(tokens))
        except ValueError as error:
            raise DraftError(f"{who}: {error}") from None
        depth = longest_path(draft.parents)
    if depth > ask.max_depth:
        raise DraftError(f"{who}: a path of {depth} tokens, only {ask.max_depth} can still be output")
    if draft.probabilities is None:
        return
    if draft.parents is not None:
        raise DraftError(f"{who}: a tree with probabilities; they are used for chains alone, leave them out")
    if len(draft.probabilities) != len(tokens):
        raise DraftError(f"{who}: {len(draft.probabilities)} distributions for {len(tokens)} tokens")
    for token_id, row in zip(tokens, draft.probabilities, strict=True):
        if len(row) != vocab_size or not 0 < row[token_id] <= 1 + 1e-6:
            raise DraftError(
                f"{who}: token {token_id} from a distribution over {len(row):,} ids that gives it "
                f"{row[token_id] if token_id < len(row) else 0}: it must be over {vocab_size:,} and above 0"
            )


def _is_id(token_id: object, vocab_size: int) -> bool:
    try:
        return 0 <= operator.index(token_id) < vocab_size  # type: ignore[arg-type]
    except TypeError:
        return False
