"""Walks of a vocabulary's trie along frames: which tokens a rule may read, and where in a token it may end.

Most tokens end within the rule that they begin in, and for those it does not matter where it returns to. A
``Walk`` keeps them by the cost of what is left of the rule after them, and the nodes at which the rule may end
within a token, from where what is returned to goes on. This is the split into context-independent and
context-dependent tokens of XGrammar (https://arxiv.org/abs/2411.15100).

Frames that differ in a count only, as after each character of a string with a longest length, share their
walks: one along the body from the nodes that each number of repetitions leads to, and one along what follows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from minillm.grammar.automaton import Automaton, State
from minillm.grammar.expressions import Expr, Repeat, Seq
from minillm.grammar.frames import Frame, Thread
from minillm.grammar.vocabulary import ROOT, Vocabulary

_MAX_WALKS = 4096  # for 49 k tokens a mask has 6 KB
_MAX_LOOPS = 512
_BIG_SUBTREE = 48  # tokens under a node that make it worthwhile to look whether all of them may come
_MANY_FORESTS = 8  # together they are walked as one

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class LeastRecentlyUsed(Generic[_Key, _Value]):
    """A cache of so many entries."""

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


class Forest:
    """Nodes of the trie whose subtrees are walked together. Compared by identity."""

    __slots__ = ("height", "nodes")

    def __init__(self, nodes: list[int], vocabulary: Vocabulary) -> None:
        self.nodes = nodes
        self.height = max(vocabulary.height[node] for node in nodes)


@dataclass(frozen=True, slots=True)
class Walk:
    """What became of the tokens of a forest in a frame."""

    masks: list[tuple[int, int]]  # tokens to the end of the rule after it, and the mask of such tokens
    beyond: tuple[Forest, ...]  # where the rule may end within a token


class _Findings:
    """A walk put together from others."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self.beyond: dict[Forest, None] = {}

    def add(self, walk: Walk, cost: int) -> None:
        """Tokens after which so much more is to be read."""
        for own, mask in walk.masks:
            self._masks[own + cost] = self._masks.get(own + cost, 0) | mask

    def walk(self) -> Walk:
        return Walk(list(self._masks.items()), tuple(self.beyond))


class Walks:
    """The walks of one grammar over one vocabulary, each made once."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary) -> None:
        self._automaton = automaton
        self._frames = automaton.frames
        self._vocabulary = vocabulary
        self.all = Forest([ROOT], vocabulary)
        self._walks: LeastRecentlyUsed[tuple[Forest, Frame, bool], Walk] = LeastRecentlyUsed(_MAX_WALKS)
        self._unions: LeastRecentlyUsed[tuple[int, ...], Forest] = LeastRecentlyUsed(_MAX_WALKS)
        self._loops: dict[State, int] = {}

    def union(self, forests: Iterable[Forest]) -> Forest:
        """The same forest for the same nodes, as far as it is remembered."""
        nodes = tuple(sorted({node for forest in forests for node in forest.nodes}))
        return self._unions.get(nodes) or self._unions.put(nodes, Forest(list(nodes), self._vocabulary))

    def walk(self, forest: Forest, frame: Frame, at_bottom: bool) -> Walk:
        """The tokens under the forest's nodes, read from ``frame``. ``at_bottom``: nothing can follow the rule."""
        frame = self._frames.unbounded(frame, forest.height)
        key = (forest, frame, at_bottom)
        known = self._walks.get(key)
        if known is None:
            in_parts = any(self._split(thread) for thread in frame.threads)
            known = (self._walk_in_parts if in_parts else self._walk_the_trie)(forest, frame, at_bottom)
            self._walks.put(key, known)
        return known

    def _split(self, thread: Thread) -> tuple[list[Expr], Repeat, Thread] | None:
        """A thread before, at and behind the first repetition that is counted, if there is one."""
        before: list[Expr] = []
        while thread:
            expr, thread = thread
            if isinstance(expr, Seq):
                thread = (expr.head, (expr.tail, thread))
            elif isinstance(expr, Repeat) and self._frames.is_counted(expr):
                return before, expr, thread
            else:
                before.append(expr)
        return None

    def _walk_in_parts(self, forest: Forest, frame: Frame, at_bottom: bool) -> Walk:
        found = _Findings()
        for thread in frame.threads:
            parts = self._split(thread)
            if parts is None:
                self._go_on((forest,), thread, at_bottom, found)
            else:
                self._count(forest, *parts, at_bottom, found)
        return found.walk()

    def _go_on(self, forests: Iterable[Forest], thread: Thread, at_bottom: bool, found: _Findings) -> None:
        """Read the rest of a thread."""
        for forest in forests:
            if thread:
                walk = self.walk(forest, self._frames.frame([thread]), at_bottom)
                found.add(walk, 0)
                found.beyond.update(dict.fromkeys(walk.beyond))
            elif not at_bottom:
                found.beyond[forest] = None

    def _count(
        self, forest: Forest, before: list[Expr], counted: Repeat, rest: Thread, at_bottom: bool, found: _Findings
    ) -> None:
        """Read what comes before a counted repetition, then each number of its bodies, then the rest."""
        each, after = self._frames.thread_cost((counted.body, ())), self._frames.thread_cost(rest)
        forests: tuple[Forest, ...] = (forest,)
        if before:
            thread: Thread = ()
            for expr in reversed(before):
                thread = (expr, thread)
            walk = self.walk(forest, self._frames.frame([thread]), False)
            found.add(walk, counted.low * each + after)
            forests = walk.beyond
        body, number = self._frames.frame([(counted.body, ())]), 0
        while forests:
            if number >= counted.low:
                self._go_on(forests, rest, at_bottom, found)
            if number == counted.high:
                break
            number += 1
            beyond: dict[Forest, None] = {}
            for one in forests:
                walk = self.walk(one, body, False)
                found.add(walk, max(counted.low - number, 0) * each + after)
                beyond.update(dict.fromkeys(walk.beyond))
            forests = tuple(beyond) if len(beyond) < _MANY_FORESTS else (self.union(beyond),)

    def _walk_the_trie(self, forest: Forest, frame: Frame, at_bottom: bool) -> Walk:
        """Node by node, as if the text ended with the rule of ``frame``."""
        trie, step = self._vocabulary, self._automaton.step
        start = self._automaton.state({self._automaton.bottom: frame})
        allowed: dict[int, list[int]] = {}  # cost -> tokens
        beyond = [node for node in forest.nodes if trie.height[node]] if frame.final and not at_bottom else []
        for root in self._entries(forest, frame):
            root_depth = trie.depth[root] - 1
            path: list[State] = [start] * (trie.height[root] + 2)
            at, end = root, trie.end[root]
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
        return Walk(masks, (Forest(beyond, trie),) if beyond else ())

    def _entries(self, forest: Forest, frame: Frame) -> Iterator[int]:
        """The nodes right under those of the forest whose byte the frame may read: looked up where they are few."""
        trie, first, alike = self._vocabulary, frame.first, self._automaton.alike
        wanted = [byte for byte in range(256) if first >> alike[byte] & 1]
        if sum(len(trie.nodes_of[byte]) for byte in wanted) <= len(forest.nodes):
            nodes = set(forest.nodes)
            for byte in wanted:
                yield from (node for node in trie.nodes_of[byte] if trie.parent[node] in nodes)
            return
        for node in forest.nodes:
            at, end = node + 1, trie.end[node]
            while at < end:
                if first >> alike[trie.byte[at]] & 1:
                    yield at
                at = trie.end[at]

    def _unbounded_state(self, state: State, num_bytes: int) -> State:
        unbounded = self._frames.unbounded
        return self._automaton.state({callers: unbounded(frame, num_bytes) for callers, frame in state.places})

    def _loops_of(self, state: State) -> int:
        """The bytes after which the state is the same as before, a bit each."""
        known = self._loops.get(state)
        if known is None:
            if len(self._loops) >= _MAX_LOOPS:
                self._loops.clear()
            step = self._automaton.step
            known = self._loops[state] = sum(1 << byte for byte in range(256) if step(state, byte) is state)
        return known
