"""Token masks: which tokens may come next in a state, over a whole vocabulary.

A state's mask is put together from ``walks`` of the frames that it is in: of the whole vocabulary, then, where a
rule may end within a token, of what is left of it in the frames that the rule returns to, and so on down. Tokens
are kept apart by the cost of what is left after them, so a mask for a short budget takes no walk of its own.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from minillm.grammar.automaton import Automaton, State, check_places
from minillm.grammar.expressions import Rules
from minillm.grammar.rules import prepare
from minillm.grammar.vocabulary import Vocabulary
from minillm.grammar.walks import Forest, LeastRecentlyUsed, Walks

_MAX_MASKS = 512  # for 49 k tokens a mask has 6 KB
_MANY_FORESTS = 64  # together they are walked as one


@dataclass(frozen=True, slots=True)
class _Allowed:
    mask: int
    by_cost: list[tuple[int, int]]
    max_cost: int


FINISHED = State(())  # after the end-of-sequence token


class CompiledGrammar:
    """Rules compiled for one vocabulary. Its states belong to it; it may be shared by requests.

    ``GrammarError`` for what ``rules.prepare`` refuses.
    """

    def __init__(self, rules: Rules, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._automaton = Automaton(prepare(rules, vocabulary), vocabulary)
        self._walks = Walks(self._automaton, vocabulary)
        self._allowed: LeastRecentlyUsed[State, _Allowed] = LeastRecentlyUsed(_MAX_MASKS)

    @property
    def eos_ids(self) -> frozenset[int]:
        return self.vocabulary.eos_ids

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.size

    def start(self) -> State:
        """The state before the first token."""
        return self._automaton.start

    def advance(self, state: State, token_id: int) -> State | None:
        """The state after one more token, or None if the token is not allowed here.

        ``GrammarLimitError``, here and from ``allowed``, where the output can be read in too many ways.
        """
        if token_id in self.vocabulary.eos_ids:
            return FINISHED if self.is_accepting(state) else None
        token = self.vocabulary.tokens[token_id] if 0 <= token_id < self.vocabulary.size else None
        if not token:
            return None
        for byte in token:
            after = self._automaton.step(state, byte)
            if after is None:
                return None
            state = after
        return state

    def is_accepting(self, state: State) -> bool:
        """Whether the text so far is whole, so that it may end here."""
        return state.accepting or state is FINISHED

    def is_finished(self, state: State) -> bool:
        """Whether the text so far is whole and nothing can follow it."""
        return state is FINISHED or (state.accepting and state.ended)

    def tokens_to_finish(self, state: State) -> int:
        """So many tokens, without the end of the sequence, are enough to make the text whole."""
        return state.cost

    def allowed(self, state: State, budget: int | None = None) -> int:
        """The tokens that may come next: bit ``i`` is token ``i``. Never empty.

        ``budget`` is the number of tokens left, this one included. If it is at least ``tokens_to_finish``,
        only tokens are allowed after which the rest of the budget still suffices.
        """
        end = self.vocabulary.eos_mask if self.is_accepting(state) else 0
        if state is FINISHED:
            return end
        entry = self._allowed.get(state) or self._allowed.put(state, self._find_allowed(state))
        if budget is None or budget < state.cost or entry.max_cost < budget:
            return entry.mask | end
        mask = end
        for cost, tokens in entry.by_cost:
            if cost < budget:
                mask |= tokens
        return mask

    def _find_allowed(self, state: State) -> _Allowed:
        by_cost: dict[int, int] = {}
        # Those who are returned to have lower serial numbers: whoever has the highest one gets no more tokens.
        todo = {callers.serial: (callers, {frame: {self._walks.all: None}}) for callers, frame in state.places}
        serials = [-serial for serial in todo]
        heapq.heapify(serials)
        num_places = 0
        while serials:
            callers, frames = todo[-heapq.heappop(serials)]
            num_places += len(frames)
            check_places(num_places)
            for frame, forests in frames.items():
                is_ambiguous = len(state.places) > 1 or len(callers.frames) > 1
                for forest in self._few(forests, 1 if is_ambiguous else _MANY_FORESTS):
                    walk = self._walks.walk(forest, frame, not callers.frames)
                    for cost, mask in walk.masks:
                        total = callers.cost + cost
                        by_cost[total] = by_cost.get(total, 0) | mask
                    if walk.beyond:
                        for back, below in callers.frames:
                            if back.serial not in todo:
                                todo[back.serial] = (back, {})
                                heapq.heappush(serials, -back.serial)
                            todo[back.serial][1].setdefault(below, {}).update(dict.fromkeys(walk.beyond))
        mask = 0
        for tokens in by_cost.values():
            mask |= tokens
        return _Allowed(mask, list(by_cost.items()), max(by_cost, default=0))

    def _few(self, forests: dict[Forest, None], most: int) -> list[Forest]:
        """Forests are unions of others in the end, so that their number cannot grow with the ways to get to them."""
        return list(forests) if len(forests) <= most else [self._walks.union(forests)]
