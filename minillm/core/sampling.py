"""How the next token is chosen: the parameters, one documented order of transforms, counter-based randomness.

The order, for every backend: penalties -> bias -> bans and masks (`minillm.core.shaping`) -> temperature
-> top-k -> renormalize -> top-p -> min-p -> renormalize.
Tokens are ranked by (probability falling, id rising), so ties are cut and drawn alike everywhere.
``distribution`` and ``sample`` are the reference in plain Python; backends vectorize the same and are
tested against them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minillm.core.shaping import Transform, shaped

_MASK64 = (1 << 64) - 1
_GOLDEN64 = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the increment of splitmix64 (Steele et al., 2014)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled and when it stops. Invalid values raise ``ValueError``.

    A stop counts only once ``min_tokens`` tokens are out; the stopping token is one of them.
    """

    temperature: float = 1.0  # 0 is greedy: the highest logit, the lowest id on a tie
    top_k: int = 0  # keep the k most likely tokens; 0 keeps all
    top_p: float = 1.0  # keep the smallest head whose probabilities reach top_p, at least one token
    min_p: float = 0.0  # keep tokens with at least min_p times the highest probability
    seed: int | None = None  # None: derived from the engine's seed and the request's place in the queue
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()  # the output text ends before the first of these
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _check_real("temperature", self.temperature, 0.0, math.inf, "use 0 for greedy, 1 for the model's own")
        _check_real("top_p", self.top_p, 0.0, 1.0, "use 1 to keep every token")
        if self.top_p == 0:
            raise ValueError("top_p is 0, it must be above 0 and at most 1: use temperature=0 for greedy")
        _check_real("min_p", self.min_p, 0.0, 1.0, "use 0 to keep every token")
        _check_int("top_k", self.top_k, 0, "use 0 to keep every token")
        _check_int("max_tokens", self.max_tokens, 1, "ask for at least one token")
        _check_int("min_tokens", self.min_tokens, 0, "use 0 for no minimum")
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens:,}, above max_tokens {self.max_tokens:,}: change one of them"
            )
        if self.seed is not None:
            _check_int("seed", self.seed, 0, "use a whole number from 0 to 2**64 - 1, or None")
            if self.seed > _MASK64:
                raise ValueError(f"seed is {self.seed}, above 2**64 - 1: use a smaller one")
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos is {self.ignore_eos!r}: use True or False")
        if isinstance(self.stop, str) or not isinstance(self.stop, (tuple, list)):
            raise ValueError(f"stop is {self.stop!r}: give a tuple of strings, for example ('\\n\\n',)")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop contains {text!r}: every stop is a string of at least one character")
        if not isinstance(self.stop_token_ids, (tuple, list)):
            raise ValueError(f"stop_token_ids is {self.stop_token_ids!r}: give a tuple of token ids")
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, "use ids of the tokenizer")
        # Lists are taken as well, but kept as tuples: the parameters stay hashable and cannot change.
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))


def _check_real(name: str, value: object, low: float, high: float, way_out: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {value!r}, not a float: {way_out}")
    if not math.isfinite(value) or not low <= value <= high:
        limit = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise ValueError(f"{name} is {value}, it must be finite and {limit}: {way_out}")


def _check_int(name: str, value: object, low: int, way_out: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, not an int: {way_out}")
    if value < low:
        raise ValueError(f"{name} is {value}, it must be at least {low}: {way_out}")


def distribution(
    logits: Sequence[float], params: SamplingParams, transform: Transform | None = None
) -> list[tuple[int, float]]:
    """Tokens that may be drawn, with probabilities that sum to 1, by (probability falling, id rising).

    A logit of ``-inf`` bans its token. ``ValueError`` for NaN, ``+inf`` or when every token is banned.
    """
    if transform is not None:
        logits = shaped(logits, transform)
    top = max(logits, default=-math.inf)
    if not math.isfinite(top) or any(math.isnan(x) for x in logits):
        raise ValueError("logits hold NaN or +inf, or ban every token: the model or the mask before it is broken")
    if params.temperature == 0:
        return [(next(i for i, x in enumerate(logits) if x == top), 1.0)]  # the lowest id on a tie
    # Shifted by the maximum before the division, so that a tiny temperature cannot overflow.
    weights = [(i, math.exp((x - top) / params.temperature)) for i, x in enumerate(logits)]
    ranked = sorted((w for w in weights if w[1] > 0), key=lambda w: (-w[1], w[0]))
    if params.top_k:
        ranked = ranked[: params.top_k]
    ranked = _normalized(ranked)
    if params.top_p < 1:
        ranked = ranked[: _nucleus(ranked, params.top_p)]
    floor = params.min_p * ranked[0][1]
    return _normalized([entry for entry in ranked if entry[1] >= floor])


def _nucleus(ranked: list[tuple[int, float]], top_p: float) -> int:
    """Length of the shortest head whose probabilities reach ``top_p``: the token that reaches it is kept."""
    reached = 0.0
    for count, (_, probability) in enumerate(ranked, start=1):
        reached += probability
        if reached >= top_p:
            return count
    return len(ranked)  # rounding may keep the sum under top_p


def _normalized(entries: list[tuple[int, float]]) -> list[tuple[int, float]]:
    total = math.fsum(weight for _, weight in entries)
    return [(token_id, weight / total) for token_id, weight in entries]


def sample(logits: Sequence[float], params: SamplingParams, uniform: float, transform: Transform | None = None) -> int:
    """The token at ``uniform`` in [0, 1): the first whose running sum of ``distribution`` exceeds it."""
    entries = distribution(logits, params, transform)
    reached = 0.0
    for token_id, probability in entries:
        reached += probability
        if uniform < reached:
            return token_id
    return entries[-1][0]  # rounding may keep the sum under 1


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) for draw ``index`` under ``seed``: a function, so nothing is ever reseeded.

    Output ``index`` of a request always gets the same number, whatever batch, chunk or preemption it met.
    Two rounds of splitmix64's finalizer; the upper 53 bits make the double.
    """
    return (_mix64(_mix64(seed) + (index + 1) * _GOLDEN64) >> 11) * 2.0**-53


def _mix64(x: int) -> int:
    x = (x + _GOLDEN64) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)
