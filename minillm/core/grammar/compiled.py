"""Token masks: which tokens may come next in a state, over a whole vocabulary.

The vocabulary's trie is walked against the automaton, once for each frame that a state is in: most tokens
end within the rule they begin in, and for those it does not matter where the rule returns to. The few that go
on past the rule's end are walked again in the frames that it returns to, and so on down. This is the split into
context-independent and context-dependent tokens of XGrammar (https://arxiv.org/abs/2411.15100). Tokens are
kept apart by the cost of what is left after them, so a mask for a short budget takes no walk of its own.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from minillm.core.grammar.automaton import Automaton, State, check_places
from minillm.core.grammar.expressions import Rules
from minillm.core.grammar.frames import Frame
from minillm.core.grammar.rules import prepare
from minillm.core.grammar.vocabulary import ROOT, Vocabulary

_MAX_MASKS = 512  # of each kind; for 49 k tokens a mask has 6 KB
_BIG_SUBTREE = 48  # tokens under a node that make it worthwhile to look whether all of them may come

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _LeastRecentlyUsed(Generic[_Key, _Value]):
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: _Key, value: _Value) -> _Value:
        self._entries[key] = value
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)
        return value


class _Forest:
    """Nodes of the trie whose subtrees are walked together. Compared by identity."""

    __slots__ = ("height", "nodes")

    def __init__(self, nodes: list[int], vocabulary: Vocabulary) -> None:
        self.nodes = nodes
        self.height = max(vocabulary.height[node] for node in nodes)


@dataclass(frozen=True, slots=True)
class _Walk:
    """What became of the tokens of a forest in a frame."""

    masks: list[tuple[int, int]]  # tokens to the end of the rule after it, and the mask of such tokens
    beyond: _Forest | None  # where the rule may end within a token


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
        self._all = _Forest([ROOT], vocabulary)
        self._allowed: _LeastRecentlyUsed[State, _Allowed] = _LeastRecentlyUsed(_MAX_MASKS)
        self._walks: _LeastRecentlyUsed[tuple[_Forest, Frame, bool], _Walk] = _LeastRecentlyUsed(_MAX_MASKS)
        self._unions: _LeastRecentlyUsed[tuple[int, ...], _Forest] = _LeastRecentlyUsed(_MAX_MASKS)
        self._loops: dict[State, int] = {}

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
        todo = {callers.serial: (callers, {frame: [self._all]}) for callers, frame in state.places}
        serials = [-serial for serial in todo]
        heapq.heapify(serials)
        num_places = 0
        while serials:
            callers, frames = todo[-heapq.heappop(serials)]
            num_places += len(frames)
            check_places(num_places)
            for frame, forests in frames.items():
                walk = self._walk(self._union(forests), frame, not callers.frames)
                for cost, mask in walk.masks:
                    total = callers.cost + cost
                    by_cost[total] = by_cost.get(total, 0) | mask
                if walk.beyond is None:
                    continue
                for back, below in callers.frames:
                    if back.serial not in todo:
                        todo[back.serial] = (back, {})
                        heapq.heappush(serials, -back.serial)
                    todo[back.serial][1].setdefault(below, []).append(walk.beyond)
        mask = 0
        for tokens in by_cost.values():
            mask |= tokens
        return _Allowed(mask, list(by_cost.items()), max(by_cost, default=0))

    def _union(self, forests: list[_Forest]) -> _Forest:
        if len(forests) == 1:
            return forests[0]
        nodes = tuple(sorted({node for forest in forests for node in forest.nodes}))
        return self._unions.get(nodes) or self._unions.put(nodes, _Forest(list(nodes), self.vocabulary))

    def _walk(self, forest: _Forest, frame: Frame, at_bottom: bool) -> _Walk:
        frame = self._automaton.frames.unbounded(frame, forest.height)
        key = (forest, frame, at_bottom)
        return self._walks.get(key) or self._walks.put(key, self._find_walk(forest, frame, at_bottom))

    def _find_walk(self, forest: _Forest, frame: Frame, at_bottom: bool) -> _Walk:
        """Walk the trie under the forest's nodes as if the text ended with the rule of ``frame``."""
        trie, step = self.vocabulary, self._automaton.step
        start = self._automaton.state({self._automaton.bottom: frame})
        allowed: dict[int, list[int]] = {}  # cost -> tokens
        beyond: list[int] = []
        for node in forest.nodes:
            root_depth = trie.depth[node]
            path: list[State] = [start] * (trie.height[node] + 1)
            if start.accepting and not at_bottom:
                beyond.append(node)
            at, end = node + 1, trie.end[node]
            while at < end:
                depth = trie.depth[at] - root_depth
                state = step(path[depth - 1], trie.byte[at])
                if state is None:
                    at = trie.end[at]
                    continue
                path[depth] = state
                under, after = trie.first[at], trie.first[trie.end[at]]
                if after - under >= _BIG_SUBTREE and not (state.accepting and not at_bottom):
                    state = self._unbounded_state(state, trie.height[at])
                    path[depth] = state
                    if not trie.below[at] & ~self._loops_of(state):
                        allowed.setdefault(state.cost, []).extend(trie.ids[under:after])
                        at = trie.end[at]
                        continue
                own = trie.first[at + 1]
                if own > under:
                    allowed.setdefault(state.cost, []).extend(trie.ids[under:own])
                if state.accepting and not at_bottom and trie.height[at]:
                    beyond.append(at)
                at += 1
        masks = [(cost, trie.mask(ids)) for cost, ids in allowed.items()]
        return _Walk(masks, _Forest(beyond, trie) if beyond else None)

    def _unbounded_state(self, state: State, num_bytes: int) -> State:
        unbounded = self._automaton.frames.unbounded
        return self._automaton.state({callers: unbounded(frame, num_bytes) for callers, frame in state.places})

    def _loops_of(self, state: State) -> int:
        """The bytes after which the state is the same as before, a bit each."""
        known = self._loops.get(state)
        if known is None:
            if len(self._loops) >= _MAX_MASKS:
                self._loops.clear()
            step = self._automaton.step
            known = self._loops[state] = sum(1 << byte for byte in range(256) if step(state, byte) is state)
        return known
