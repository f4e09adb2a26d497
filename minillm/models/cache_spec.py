"""What a layer keeps of the tokens it has seen: the one place from which memory, copies and formulas follow."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class CacheSpec:
    """A layer's cache: some arrays, each with a row for a token.

    ``rows`` are the shapes of these rows: ``((K, D), (K, D))`` for keys and values of K heads of size D,
    ``((C,), (R,))`` for a latent vector and a rotated key that all heads share.
    """

    rows: tuple[tuple[int, ...], ...]
    window: int | None = None  # the most recent tokens that are read; None is all

    @property
    def elements_per_token(self) -> int:
        return sum(math.prod(shape) for shape in self.rows)
