"""Rotary position embedding: the angle of every (position, frequency) pair, with the scaling rules.

RoFormer (Su et al., 2021); "linear" is position interpolation (Chen et al., 2023), "llama3" the rule
of Llama 3.1's reference code, "yarn" that of Peng et al. (2023). Angles are made in float64 for
whatever precision follows.
"""

from __future__ import annotations

import math

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
    if rope.scaling == "yarn":
        # Pairs that turn more than beta_fast times in the original context keep their frequency, those that turn less
        # than beta_slow times are slowed by the factor; between, the share grows with the pair's number.
        low, high = (_pair_that_turns(turns, rope) for turns in (rope.beta_fast, rope.beta_slow))
        if rope.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rope.dim - 1)
        slowed = np.clip((np.arange(rope.dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
        blended: NDArray[np.float64] = base * (1 - slowed + slowed / rope.factor)
        return blended
    return base


def _pair_that_turns(turns: float, rope: Rope) -> float:
    """The number of the pair, not rounded, that turns so often in the original context."""
    return rope.dim * math.log(rope.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def angles(inverse: NDArray[np.float64], positions: NDArray[np.integer]) -> NDArray[np.float64]:
    """``[T, dim / 2]`` radians for positions ``[T]``."""
    return np.outer(positions, inverse)
