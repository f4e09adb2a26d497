"""A suffix automaton that grows: every substring of a text, with how often each was seen and what followed.

Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985), built online: a token costs
amortized constant time, and a text of n tokens has fewer than 2 n states. A state stands for the substrings
that end at the same places; its link leads to the longest of their suffixes that ends at more.
"""

from __future__ import annotations

# Counts are raised along the links from a new token's state, longest context first; texts that repeat one
# token have chains as long as themselves. What is cut off are counts of short contexts in such texts.
_COUNTED_CONTEXTS = 64
_ROOT = 0


class SuffixAutomaton:
    """State 0 is the empty string. A negative token stands for the end of a text: it is matched by nothing."""

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]  # of a state's longest substring
        self._count = [0]
        self._last = _ROOT
        self.num_tokens = 0

    def append(self, token: int) -> None:
        """Make the text one token longer."""
        new = self._add({}, self._length[self._last] + 1, 0)
        state = self._last
        while state != -1 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        self._link[new] = _ROOT if state == -1 else self._split(state, token)
        self._last = new
        self.num_tokens += 1
        for _ in range(_COUNTED_CONTEXTS):
            if new == _ROOT:
                break
            self._count[new] += 1
            new = self._link[new]

    def earlier(self) -> tuple[int, int]:
        """(state, length) of the longest end of the text that stands in it before as well."""
        state = max(self._link[self._last], _ROOT)
        return state, self._length[state]

    def advance(self, state: int, length: int, token: int) -> tuple[int, int]:
        """From the longest end of some other text that is found here to that of the text with one token more."""
        state = self._settled(state, length)
        while state != _ROOT and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        if token not in self._next[state]:
            return _ROOT, 0
        return self._next[state][token], length + 1

    def follow(self, state: int, length: int, most: int, least_chance: float) -> tuple[list[int], float]:
        """What followed most often, token by token, and how many of these tokens are expected to come again.

        It ends before the token with which the chance of the whole falls under ``least_chance``.
        """
        state = self._settled(state, length)
        tokens: list[int] = []
        chance, expected = 1.0, 0.0
        while len(tokens) < most and self._next[state]:
            counts = [(self._count[child], -token, child) for token, child in self._next[state].items()]
            count, token, child = max(counts)
            chance *= count / sum(entry[0] for entry in counts)
            if chance < least_chance or -token < 0:
                break
            expected += chance
            tokens.append(-token)
            state = child
        return tokens, expected

    def _settled(self, state: int, length: int) -> int:
        """The state of the string of ``length`` that ``state`` stood for: it may have been split off since."""
        while state != _ROOT and length <= self._length[self._link[state]]:
            state = self._link[state]
        return state

    def _split(self, state: int, token: int) -> int:
        """The state for ``state``'s longest substring with ``token`` after it, split off if it has none of its own."""
        target = self._next[state][token]
        if self._length[target] == self._length[state] + 1:
            return target
        clone = self._add(dict(self._next[target]), self._length[state] + 1, self._count[target])
        self._link[clone] = self._link[target]
        self._link[target] = clone
        while state != -1 and self._next[state].get(token) == target:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _add(self, follows: dict[int, int], length: int, count: int) -> int:
        self._next.append(follows)
        self._link.append(-1)
        self._length.append(length)
        self._count.append(count)
        return len(self._next) - 1
