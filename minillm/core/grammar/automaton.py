"""A push-down automaton over bytes whose states are immutable values: keeping the old one is a rollback.

Within a rule it is deterministic: a ``Frame`` is the set of everything that may still follow there, found
by partial derivatives (Antimirov, https://doi.org/10.1016/0304-3975(95)00182-4), so a counted repetition
is a number in a frame and is never written out. A call of a rule pushes a frame to return to; a ``State``
is the set of stacks that the bytes so far leave possible. All tables here are caches: what is dropped is
computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from minillm.core.grammar.expressions import Alt, Bytes, ByteSet, Call, Chars, Expr, GrammarError, Repeat, Rules, Seq
from minillm.core.grammar.rules import byte_classes, is_nullable, nullable_rules
from minillm.core.grammar.shortest import Shortest
from minillm.core.grammar.vocabulary import Vocabulary

Thread: TypeAlias = "tuple[()] | tuple[Expr, Thread]"  # expressions to match one after the other, a linked list

_MAX_CACHED = 50_000  # frames, and states: dropped all at once, which costs time and changes nothing
_MAX_STACKS = 2_000


class Frame:
    """A place within a rule. Frames of equal threads are equal."""

    __slots__ = ("backs", "cost", "edges", "final", "first", "heads", "returns", "threads", "twins")

    def __init__(self, threads: frozenset[Thread]) -> None:
        self.threads = threads
        self.heads: list[tuple[int, Thread]] = []  # set of bytes, and what follows one of them
        self.returns: dict[str, frozenset[Thread]] = {}  # rule that may be called here -> what follows it
        self.final = False  # whether the rule may end here
        self.first = 0  # bytes that may be read here, in this rule or one that it calls
        self.cost = 0  # fewest tokens to the end of the rule
        self.edges: dict[int, Frame | None] = {}  # found so far, like the next two
        self.backs: dict[str, Frame] = {}  # the frames of ``returns``
        self.twins: dict[int, Frame] = {}

    @property
    def ended(self) -> bool:
        """Whether nothing but the end of the rule can follow."""
        return self.final and not self.first

    def __hash__(self) -> int:
        return hash(self.threads)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Frame) and self.threads == other.threads)


class Stack:
    """A frame and the frames to return to: a linked list, shared between states. Equal by value."""

    __slots__ = ("accepting", "cost", "frame", "hash", "rest")

    def __init__(self, frame: Frame, rest: Stack | None) -> None:
        self.frame = frame
        self.rest = rest
        self.cost: int = frame.cost + (rest.cost if rest is not None else 0)
        self.accepting: bool = frame.final and (rest is None or rest.accepting)
        self.hash: int = hash((frame, rest.hash if rest is not None else 0))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        one: Stack | None = self
        while one is not other:  # a loop: a stack may be deeper than Python's own
            if one is None or not isinstance(other, Stack) or one.hash != other.hash or one.frame != other.frame:
                return False
            one, other = one.rest, other.rest
        return True


class State:
    """Where the bytes read so far lead: an immutable value, but for the edges that it remembers."""

    __slots__ = ("accepting", "cost", "edges", "hash", "stacks")

    def __init__(self, stacks: frozenset[Stack]) -> None:
        self.stacks = stacks
        self.cost = min((stack.cost for stack in stacks), default=0)  # fewest tokens to an accepting state
        self.accepting = any(stack.accepting for stack in stacks)
        self.edges: dict[int, State | None] = {}
        self.hash = hash(stacks)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, State) and self.stacks == other.stacks)


class Automaton:
    """Steps through ``rules``, which ``rules.prepare`` has made ready."""

    def __init__(self, rules: Rules, vocabulary: Vocabulary) -> None:
        self._rules = rules.rules
        self._nullable = nullable_rules(rules.rules)
        self._frames: dict[frozenset[Thread], Frame] = {}
        self._states: dict[frozenset[Stack], State] = {}
        # Derived expressions, one object for each value, so that equal threads are recognized.
        self._suffixes: dict[bytes, Bytes] = {}
        self._repeats: dict[tuple[Expr, int, int | None], Repeat] = {}
        self._can_be_empty: dict[Expr, bool] = {}
        self._shortest = Shortest(rules, vocabulary)
        self._starts: dict[str, Frame] = {}
        # Bytes that no set tells apart lead to the same places: one of them stands for all.
        self.alike = byte_classes(rules)  # byte -> the least of those like it
        self.start = self.state([Stack(self._start_of(rules.root), None)])

    def state(self, stacks: Iterable[Stack]) -> State:
        """The state of a set of stacks."""
        key = frozenset(stacks)
        known = self._states.get(key)
        if known is None:
            if len(self._states) >= _MAX_CACHED:
                self._states.clear()
            known = self._states[key] = State(key)
        return known

    def step(self, state: State, byte: int) -> State | None:
        """The state after one more byte, or None where no text goes on like that."""
        byte = self.alike[byte]
        try:
            return state.edges[byte]
        except KeyError:
            pass
        stacks: set[Stack] = set()
        for stack in state.stacks:
            self._step(stack, byte, stacks)
        if len(stacks) > _MAX_STACKS:
            raise GrammarError(
                f"{len(stacks):,} ways of reading the same text, the automaton takes {_MAX_STACKS:,}: "
                "make the rules less ambiguous"
            )
        after = state.edges[byte] = self.state(stacks) if stacks else None
        return after

    def unbounded(self, frame: Frame, num_bytes: int) -> Frame:
        """A frame that goes on like this one for as many bytes, and is the same for many that do.

        Each repetition reads a byte or more, so an upper bound above ``num_bytes`` cannot be felt.
        """
        twin = frame.twins.get(num_bytes)
        if twin is None:
            threads = frozenset(self._without_bounds(thread, num_bytes) for thread in frame.threads)
            twin = frame.twins[num_bytes] = self._frame(threads)
        return twin

    def _step(self, stack: Stack, byte: int, into: set[Stack]) -> None:
        """Read a byte in the frame on top, or in one below where all above it may end."""
        at: Stack | None = stack
        while at is not None:
            self._read(at.frame, at.rest, byte, into)
            at = at.rest if at.frame.final else None

    def _read(self, frame: Frame, rest: Stack | None, byte: int, into: set[Stack]) -> None:
        if not frame.first >> byte & 1:
            return
        after = self._edge(frame, byte)
        if after is not None:
            into.add(rest if after.ended and rest is not None else Stack(after, rest))
        for rule in frame.returns:
            start = self._start_of(rule)
            if start.first >> byte & 1:
                back = self._back(frame, rule)
                # What has nothing left to do is not returned to, so a list of any length that recurs on
                # its right keeps a short stack.
                self._read(start, rest if back.ended else Stack(back, rest), byte, into)

    def _edge(self, frame: Frame, byte: int) -> Frame | None:
        try:
            return frame.edges[byte]
        except KeyError:
            pass
        threads = frozenset(thread for mask, thread in frame.heads if mask >> byte & 1)
        after = frame.edges[byte] = self._frame(threads) if threads else None
        return after

    def _frame(self, threads: frozenset[Thread]) -> Frame:
        known = self._frames.get(threads)
        if known is None:
            known = self._expand(threads)
            if len(self._frames) >= _MAX_CACHED:
                self._frames.clear()
            self._frames[threads] = known
        return known

    def _expand(self, threads: frozenset[Thread]) -> Frame:
        """Find what each thread may begin with: bytes, calls, or the end of the rule."""
        frame = Frame(threads)
        returns: dict[str, set[Thread]] = {}
        seen: set[Thread] = set()
        todo = list(threads)
        while todo:
            thread = todo.pop()
            if thread in seen:
                continue
            seen.add(thread)
            if not thread:
                frame.final = True
                continue
            expr, rest = thread
            match expr:
                case Bytes(data):
                    if data:
                        frame.heads.append((1 << data[0], (self._suffix(data[1:]), rest) if data[1:] else rest))
                    else:
                        todo.append(rest)
                case ByteSet(mask):
                    frame.heads.append((mask, rest))
                case Seq(head, tail):
                    todo.append((head, (tail, rest)))
                case Alt(options):
                    todo.extend((option, rest) for option in options)
                case Repeat(body, low, high):
                    if self._is_nullable(body):
                        low = 0
                    if high != 0:
                        fewer = self._repeat(body, max(low - 1, 0), None if high is None else high - 1)
                        todo.append((body, (fewer, rest)))
                    if low == 0:
                        todo.append(rest)
                case Call(rule):
                    returns.setdefault(rule, set()).add(rest)
                    if rule in self._nullable:
                        todo.append(rest)
                case Chars():
                    raise TypeError("characters must be made bytes first: call rules.prepare")
        frame.cost = min(self._thread_cost(thread) for thread in threads)
        frame.returns = {rule: frozenset(back) for rule, back in returns.items()}
        for mask, _ in frame.heads:
            frame.first |= mask
        for rule in returns:
            frame.first |= self._start_of(rule).first
        return frame

    def _back(self, frame: Frame, rule: str) -> Frame:
        if rule not in frame.backs:
            frame.backs[rule] = self._frame(frame.returns[rule])
        return frame.backs[rule]

    def _start_of(self, rule: str) -> Frame:
        """Where a rule begins. No rule is left-recursive, so this ends."""
        if rule not in self._starts:
            self._starts[rule] = self._frame(frozenset([(self._rules[rule], ())]))
        return self._starts[rule]

    def _suffix(self, data: bytes) -> Bytes:
        return self._suffixes.setdefault(data, Bytes(data))

    def _repeat(self, body: Expr, low: int, high: int | None) -> Repeat:
        key = (body, low, high)
        if key not in self._repeats:
            self._repeats[key] = Repeat(body, low, high)
        return self._repeats[key]

    def _is_nullable(self, expr: Expr) -> bool:
        if expr not in self._can_be_empty:
            self._can_be_empty[expr] = is_nullable(expr, self._nullable)
        return self._can_be_empty[expr]

    def _thread_cost(self, thread: Thread) -> int:
        cost = 0
        while thread:
            cost += self._shortest.cost(thread[0])
            thread = thread[1]
        return cost

    def _without_bounds(self, thread: Thread, num_bytes: int) -> Thread:
        if not thread:
            return ()
        expr, rest = thread
        if isinstance(expr, Repeat) and expr.high is not None and expr.high > num_bytes:
            expr = self._repeat(expr.body, expr.low, None)
        return (expr, self._without_bounds(rest, num_bytes))
