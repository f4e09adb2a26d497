"""Places within one rule: a ``Frame`` is the set of everything that may still follow there.

Frames are found by partial derivatives (Antimirov, https://doi.org/10.1016/0304-3975(95)00182-4), so within a
rule reading is deterministic, and a counted repetition is a number in a frame and is never written out. All
tables here are caches: what is dropped is computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from minillm.grammar.expressions import Alt, Bytes, ByteSet, Call, Chars, Expr, GrammarLimitError, Repeat, Seq
from minillm.grammar.expressions import Rules as RuleSet
from minillm.grammar.rules import is_nullable, nullable_rules, repetitions
from minillm.grammar.shortest import Shortest
from minillm.grammar.vocabulary import Vocabulary

Thread: TypeAlias = "tuple[()] | tuple[Expr, Thread]"  # expressions to match one after the other, a linked list
Bounds: TypeAlias = "tuple[tuple[int, int], ...]"  # of a thread's repetitions, least and most

_MAX_CACHED = 50_000  # dropped all at once, which costs time and changes nothing
_MAX_THREADS = 10_000


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


class Frames:
    """The frames of ``rules``, which ``rules.prepare`` has made ready. ``GrammarLimitError``: too many threads."""

    def __init__(self, rules: RuleSet, vocabulary: Vocabulary) -> None:
        self._rules = rules.rules
        self._nullable = nullable_rules(rules.rules)
        self._shortest = Shortest(rules, vocabulary)
        self._frames: dict[frozenset[Thread], Frame] = {}
        self._starts: dict[str, Frame] = {}
        self._counted = {
            part.body
            for rule in rules.rules.values()
            for part in repetitions(rule)
            if max(part.low, part.high or 0) > 1 and not is_nullable(part.body, self._nullable)
        }
        # Derived expressions, one object for each value, so that equal threads are recognized.
        self._suffixes: dict[bytes, Bytes] = {}
        self._repeats: dict[tuple[Expr, int, int | None], Repeat] = {}
        self._can_be_empty: dict[Expr, bool] = {}
        self.end = self.frame([()])  # the rule is over

    def frame(self, threads: Iterable[Thread]) -> Frame:
        """The frame in which any of ``threads`` may follow."""
        key = _widest(frozenset(threads))
        known = self._frames.get(key)
        if known is None:
            known = self._expand(key)
            if len(self._frames) >= _MAX_CACHED:
                self._frames.clear()
            self._frames[key] = known
        return known

    def start_of(self, rule: str) -> Frame:
        """Where a rule begins. No rule is left-recursive, so this ends."""
        if rule not in self._starts:
            self._starts[rule] = self.frame([(self._rules[rule], ())])
        return self._starts[rule]

    def edge(self, frame: Frame, byte: int) -> Frame | None:
        """After a byte that this rule reads itself; None where it does not."""
        try:
            return frame.edges[byte]
        except KeyError:
            pass
        threads = [thread for mask, thread in frame.heads if mask >> byte & 1]
        after = frame.edges[byte] = self.frame(threads) if threads else None
        return after

    def back(self, frame: Frame, rule: str) -> Frame:
        """Where a rule that is called here returns to."""
        if rule not in frame.backs:
            frame.backs[rule] = self.frame(frame.returns[rule])
        return frame.backs[rule]

    def joined(self, one: Frame, other: Frame) -> Frame:
        """Where both may go on."""
        return one if one is other else self.frame(one.threads | other.threads)

    def unbounded(self, frame: Frame, num_bytes: int) -> Frame:
        """A frame that goes on like this one for as many bytes, and is the same for many that do.

        Each repetition reads a byte or more, so an upper bound above ``num_bytes`` cannot be felt.
        """
        twin = frame.twins.get(num_bytes)
        if twin is None:
            twin = self.frame(self._without_bounds(thread, num_bytes) for thread in frame.threads)
            frame.twins[num_bytes] = twin
        return twin

    def thread_cost(self, thread: Thread) -> int:
        """Fewest tokens of a text that a thread matches."""
        cost = 0
        while thread:
            cost += self._shortest.cost(thread[0])
            thread = thread[1]
        return cost

    def is_counted(self, repeat: Repeat) -> bool:
        """Whether a repetition, or the one that it is the rest of, has a count above 1, and reads what it counts."""
        return repeat.body in self._counted

    def _expand(self, threads: frozenset[Thread]) -> Frame:
        """Find what each thread may begin with: bytes, calls, or the end of the rule."""
        if len(threads) > _MAX_THREADS:
            raise GrammarLimitError(
                f"a rule of the grammar may go on in {len(threads):,} ways from one place, the most is "
                f"{_MAX_THREADS:,}: list fewer alternatives that begin alike, and leave a counted repetition within "
                "another one without its upper bound"
            )
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
                    fewer = self._repeat(body, max(low - 1, 0), None if high is None else high - 1)
                    if high != 0 and self._is_nullable(body):
                        # A body that reads nothing is as good as none: only what it reads brings the next one.
                        once = self.frame([(body, ())])
                        frame.heads += ((mask, _joined(after, (fewer, rest))) for mask, after in once.heads)
                        for rule, backs in once.returns.items():
                            returns.setdefault(rule, set()).update(_joined(back, (fewer, rest)) for back in backs)
                        low = 0
                    elif high != 0:
                        todo.append((body, (fewer, rest)))
                    if low == 0:
                        todo.append(rest)
                case Call(rule):
                    returns.setdefault(rule, set()).add(rest)
                    if rule in self._nullable:
                        todo.append(rest)
                case Chars():
                    raise TypeError("characters must be made bytes first: call rules.prepare")
        frame.cost = min(self.thread_cost(thread) for thread in threads)
        frame.returns = {rule: frozenset(back) for rule, back in returns.items()}
        for mask, _ in frame.heads:
            frame.first |= mask
        for rule in returns:
            frame.first |= self.start_of(rule).first
        return frame

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

    def _without_bounds(self, thread: Thread, num_bytes: int) -> Thread:
        if not thread:
            return ()
        expr, rest = thread
        if isinstance(expr, Repeat) and expr.high is not None and expr.high > num_bytes:
            expr = self._repeat(expr.body, expr.low, None)
        return (expr, self._without_bounds(rest, num_bytes))


def _joined(thread: Thread, rest: Thread) -> Thread:
    """One thread, then another."""
    parts: list[Expr] = []
    while thread:
        expr, thread = thread
        parts.append(expr)
    for expr in reversed(parts):
        rest = (expr, rest)
    return rest


def _widest(threads: frozenset[Thread]) -> frozenset[Thread]:
    """The threads without those that another one covers: the same but for wider bounds of its repetitions.

    So ``(a{0,9} b?){0,9}`` has a few threads at any place, and not one for each pair of counts.
    """
    if len(threads) < 2:
        return threads
    families: dict[tuple[Expr, ...], list[tuple[Bounds, Thread]]] = {}
    for thread in threads:
        shape, bounds = _shape(thread)
        families.setdefault(shape, []).append((bounds, thread))
    if len(families) == len(threads):
        return threads
    kept: list[Thread] = []
    for family in families.values():
        # Widest first: who is covered is covered by one that was kept before.
        family.sort(key=lambda member: sum(low - high for low, high in member[0]))
        front: list[Bounds] = []
        for bounds, thread in family:
            if not any(_covers(wide, bounds) for wide in front):
                front.append(bounds)
                kept.append(thread)
    return frozenset(kept)


def _shape(thread: Thread) -> tuple[tuple[Expr, ...], Bounds]:
    """A thread's parts with the body in place of each repetition, and the bounds that this leaves out."""
    parts: list[Expr] = []
    bounds: list[tuple[int, int]] = []
    while thread:
        expr, thread = thread
        if isinstance(expr, Repeat):
            bounds.append((expr.low, _INFINITE if expr.high is None else expr.high))
            parts.append(_REPEATED)
            expr = expr.body
        parts.append(expr)
    return tuple(parts), tuple(bounds)


_REPEATED = Bytes(b"repeated")  # marks a body: compared by identity
_INFINITE = 1 << 60  # more than any repetition counts, and whole, so that differences of sums stay exact


def _covers(wide: Bounds, narrow: Bounds) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(wide, narrow, strict=True))
