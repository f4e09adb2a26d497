"""A push-down automaton over bytes whose states are immutable values: keeping the old one is a rollback.

Within a rule it is deterministic (``frames``). What a rule returns to is shared by all that began it at the same
byte: ``Callers``, the nodes of a graph-structured stack (Tomita, https://aclanthology.org/J87-1004/). So however
many ways there are to read a text, a state has at most one frame for each place where a rule may have begun,
and what a byte costs grows with the square of the text at worst.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypeAlias

from minillm.grammar.expressions import GrammarLimitError, Rules
from minillm.grammar.frames import Frame, Frames
from minillm.grammar.rules import byte_classes, first_calls_order
from minillm.grammar.vocabulary import Vocabulary

_MAX_CACHED = 50_000  # states, and callers: dropped all at once, which costs time and changes nothing
_MAX_PLACES = 500  # a token's cost rises with their number, and memory with its square: 500 take some 20 MB


class Callers:
    """Where to go on when a rule ends: frames, each with what it returns to in turn. Compared by identity.

    A linked list while there is one way to read the text, else a graph without cycles.
    """

    __slots__ = ("accepting", "cost", "frames", "is_bottom", "reached", "serial")

    def __init__(self, frames: Iterable[Place], is_bottom: bool, serial: int) -> None:
        self.frames = tuple(frames)
        self.is_bottom = is_bottom  # the text may end with the rule
        self.serial = serial  # greater than that of every one of ``frames``
        ways = [frame.cost + callers.cost for callers, frame in self.frames]
        self.cost: int = 0 if is_bottom else min(ways)
        self.accepting: bool = is_bottom or any(f.final and callers.accepting for callers, f in self.frames)
        self.reached = reached(self.frames)  # when the rule ends, and those that it returns to may end as well


Place: TypeAlias = tuple[Callers, Frame]


def reached(places: Sequence[Place]) -> Set[Place]:
    """The places and, where rules may end, those that they return to. ``GrammarLimitError``: too many."""
    found: set[Place] = set()
    # The youngest first: what it returns to mostly has the others among it.
    for place in sorted(places, key=lambda place: -place[0].serial) if len(places) > 1 else places:
        if place not in found:
            found.add(place)
            if place[1].final:
                found |= place[0].reached
    check_places(len(found))
    return found


def check_places(number: int) -> None:
    """``GrammarLimitError`` if there are more than the automaton follows at once."""
    if number > _MAX_PLACES:
        raise GrammarLimitError(
            f"the output so far can be read along the grammar in {number:,} ways or more, the most is {_MAX_PLACES:,}: "
            "make the rules less ambiguous (so that one rule alone can match a text), or lower max_tokens"
        )


class State:
    """Where the bytes read so far lead: an immutable value, but for the edges that it remembers.

    ``places`` has one frame for each set of callers; ``()`` is a state that nothing leads to.
    """

    __slots__ = ("accepting", "cost", "edges", "places")

    def __init__(self, places: Iterable[Place]) -> None:
        self.places = tuple(places)
        # Fewest tokens to an accepting state.
        self.cost: int = min((frame.cost + callers.cost for callers, frame in self.places), default=0)
        self.accepting: bool = any(frame.final and callers.accepting for callers, frame in self.places)
        self.edges: dict[int, State | None] = {}

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return all(frame.ended and not callers.frames for callers, frame in self.places)


class Automaton:
    """Steps through ``rules``, which ``rules.prepare`` has made ready."""

    def __init__(self, rules: Rules, vocabulary: Vocabulary) -> None:
        self.frames = Frames(rules, vocabulary)
        self._rank = {rule: rank for rank, rule in enumerate(first_calls_order(rules.rules))}
        # Bytes that no set tells apart lead to the same places: one of them stands for all.
        self.alike = byte_classes(rules)  # byte -> the least of those like it
        self._num_callers = 0
        self._callers: dict[tuple[frozenset[Place], bool], Callers] = {}
        self._states: dict[frozenset[Place], State] = {}
        self.bottom = Callers((), True, 0)
        self.start = self.state({self.bottom: self.frames.start_of(rules.root)})

    def state(self, places: Mapping[Callers, Frame]) -> State:
        """The state of a set of places; the same one for the same set, as far as it is remembered."""
        key = frozenset(places.items())
        known = self._states.get(key)
        if known is None:
            if len(self._states) >= _MAX_CACHED:
                self._states.clear()
            known = self._states[key] = State(key)
        return known

    def step(self, state: State, byte: int) -> State | None:
        """The state after one more byte, or None where no text goes on like that.

        Raises:
            GrammarLimitError: the text can be read in too many ways.
        """
        byte = self.alike[byte]
        try:
            return state.edges[byte]
        except KeyError:
            pass
        after: dict[Callers, Frame] = {}
        calls: dict[str, dict[Callers, Frame]] = {}  # rule that begins here -> where it returns to
        for callers, frame in reached(state.places):
            self._read(frame, callers, byte, after, calls)
        while calls:
            # A rule that no other one here begins with: all who call it are known.
            rule = min(calls, key=self._rank.__getitem__)
            callers = self._callers_of(calls.pop(rule))
            self._read(self.frames.start_of(rule), callers, byte, after, calls)
        found = state.edges[byte] = self.state(self._returned(after)) if after else None
        return found

    def _read(
        self,
        frame: Frame,
        callers: Callers,
        byte: int,
        after: dict[Callers, Frame],
        calls: dict[str, dict[Callers, Frame]],
    ) -> None:
        """Read a byte at one place: what the rule reads itself, and what it calls."""
        if not frame.first >> byte & 1:
            return
        read = self.frames.edge(frame, byte)
        if read is not None:
            self._join(after, callers, read)
        for rule in frame.returns:
            if self.frames.start_of(rule).first >> byte & 1:
                self._join(calls.setdefault(rule, {}), callers, self.frames.back(frame, rule))

    def _join(self, places: dict[Callers, Frame], callers: Callers, frame: Frame) -> None:
        known = places.get(callers)
        places[callers] = frame if known is None else self.frames.joined(known, frame)

    def _callers_of(self, returns: dict[Callers, Frame]) -> Callers:
        """What has nothing left to do is not returned to, but what it returns to itself: so a list of any length
        that recurs on its right keeps a short stack."""
        returns, is_bottom = self._without_ended(returns)
        if is_bottom and not returns:
            return self.bottom
        key = (frozenset(returns.items()), is_bottom)
        known = self._callers.get(key)
        if known is None:
            if len(self._callers) >= _MAX_CACHED:
                self._callers.clear()
            self._num_callers += 1
            known = self._callers[key] = Callers(key[0], is_bottom, self._num_callers)
        return known

    def _returned(self, places: dict[Callers, Frame]) -> dict[Callers, Frame]:
        """Places without those where nothing but a return can follow: they are returned from."""
        places, is_bottom = self._without_ended(places)
        if is_bottom:
            self._join(places, self.bottom, self.frames.end)
        check_places(len(places))
        return places

    def _without_ended(self, places: dict[Callers, Frame]) -> tuple[dict[Callers, Frame], bool]:
        """The places that go on, those behind the others among them, and whether the text may end behind one."""
        ended = [callers for callers, frame in places.items() if frame.ended]
        if not ended:
            return places, False
        kept = {callers: frame for callers, frame in places.items() if not frame.ended}
        for callers in ended:
            for back, frame in callers.frames:
                self._join(kept, back, frame)
        return kept, any(callers.is_bottom for callers in ended)
