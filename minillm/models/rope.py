"""Rotary position embedding: the angle of every (position, frequency) pair, with the scaling rules.

RoFormer (Su et al., 2021); "linear" is position interpolation (Chen et al., 2023), "llama3" the rule
of Llama 3.1's reference code. Angles are made in float64 for whatever precision follows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minillm.models.spec import Rope


def inverse_frequencies(rope: Rope) -> NDArray[np.float64]:
    """Radians a position for each of the dim / 2 pairs (element i is paired with i + dim / 2)."""
    base = rope.theta ** -(np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    if rope.scaling == "linear":
        return base / rope.factor
    if rope.scaling == "divisors":
        return base / np.asarray(rope.divisors, dtype=np.float64)
    if rope.scaling == "llama3":
        # Waves that turn more than high_freq_factor times in the original context keep their
        # frequency, those that turn less than low_freq_factor times are slowed by the factor,
        # and those between are blended.
        turns = rope.original_max_positions * base / (2 * np.pi)
        blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        blend = np.clip(blend, 0.0, 1.0)
        return base * (blend + (1 - blend) / rope.factor)
    return base


def angles(inverse: NDArray[np.float64], positions: NDArray[np.integer]) -> NDArray[np.float64]:
    """``[T, dim / 2]`` radians for positions ``[T]``."""
    return np.outer(positions, inverse)
