"""Where a test's random choices come from: hypothesis, which shrinks a failure, or a seed, which is fast."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Draw(Protocol):
    """A source of choices."""

    def integer(self, low: int, high: int) -> int: ...

    def choice(self, options: Sequence[T]) -> T: ...

    def some(self, options: Sequence[T], low: int) -> list[T]:
        """Some of the options, at least ``low``, each at most once, in any order."""


class SeededDraw:
    """Choices of a random generator."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._rng.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return self._rng.choice(options)

    def some(self, options: Sequence[T], low: int) -> list[T]:
        return self._rng.sample(options, self._rng.randint(min(low, len(options)), len(options)))


class HypothesisDraw:
    """Choices of hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def choice(self, options: Sequence[Any]) -> Any:
        return self._data.draw(st.sampled_from(options))

    def some(self, options: Sequence[Any], low: int) -> list[Any]:
        picks = st.lists(st.integers(0, len(options) - 1), min_size=min(low, len(options)), unique=True)
        return [options[i] for i in self._data.draw(picks)]
