"""What a step takes, measured: seconds = base + seconds a token * tokens, fitted to the steps that ran."""

from __future__ import annotations

import math


class StepTimes:
    """A least-squares line through (tokens, seconds) of the steps so far; recent steps weigh more."""

    def __init__(self, memory_steps: int = 64) -> None:
        self._keep = 1 - 1 / memory_steps
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # decayed sums
        self.base_s = 0.0
        self.per_token_s = 0.0  # 0 until steps of different sizes ran

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        """One step of ``num_tokens`` took ``elapsed_s``."""
        keep = self._keep
        self._weight = keep * self._weight + 1
        self._x = keep * self._x + num_tokens
        self._y = keep * self._y + elapsed_s
        self._xx = keep * self._xx + num_tokens * num_tokens
        self._xy = keep * self._xy + num_tokens * elapsed_s
        # Variance and covariance, times the squared weight. Steps of one size tell nothing of a token's time,
        # and one that is below 0 is noise: then the last one known is kept.
        variance = self._weight * self._xx - self._x * self._x
        covariance = self._weight * self._xy - self._x * self._y
        if variance > 1e-6 * self._weight * self._xx and covariance > 0:
            self.per_token_s = covariance / variance
        self.base_s = max(0.0, (self._y - self.per_token_s * self._x) / self._weight)

    def seconds(self, num_tokens: int) -> float:
        """A step of so many tokens; 0 before anything was measured."""
        return self.base_s + self.per_token_s * num_tokens

    def tokens_within(self, seconds: float) -> float:
        """How many tokens a step may have to end within ``seconds``; at least 0, ``inf`` when tokens cost nothing."""
        left = seconds - self.base_s
        if self.per_token_s > 0:
            return max(0.0, left / self.per_token_s)
        return math.inf
