"""How the next token is chosen: one documented order of transforms, and counter-based randomness.

The order, for every backend: penalties -> bias -> bans and masks (`minillm.core.sampling.shaping`) -> temperature
-> top-k -> renormalize -> top-p -> min-p -> renormalize -> typical-p -> renormalize.
Typical sampling (Meister et al., 2023) comes last, as in Hugging Face transformers: it measures how far a
token's surprise is from the expected one, the entropy, so it needs the distribution that is left when
nothing else changes it; put earlier, a cut after it would leave it measured by tokens that are gone.
Tokens are ranked by (probability falling, id rising), so ties are cut and drawn alike everywhere.
``distribution`` and ``sample`` are the reference in plain Python; backends vectorize the same and are
tested against them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minillm.core.sampling.params import SamplingParams
from minillm.core.sampling.shaping import Transform, shaped

__all__ = ["SamplingParams", "derived_seed", "distribution", "sample", "uniform"]

_MASK64 = (1 << 64) - 1
_GOLDEN64 = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the increment of splitmix64 (Steele et al., 2014)


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
    ranked = _normalized([entry for entry in ranked if entry[1] >= floor])
    return _normalized(_typical(ranked, params.typical_p)) if params.typical_p < 1 else ranked


def _typical(ranked: list[tuple[int, float]], typical_p: float) -> list[tuple[int, float]]:
    """The tokens whose surprise is nearest to the entropy, until they reach ``typical_p``; in their old order."""
    entropy = -math.fsum(p * math.log(p) for _, p in ranked)
    nearest = sorted(range(len(ranked)), key=lambda place: abs(-math.log(ranked[place][1]) - entropy))
    kept = nearest[: _nucleus([ranked[place] for place in nearest], typical_p)]
    return [ranked[place] for place in sorted(kept)]


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
    return uniform_of(stream(seed), index)


def stream(seed: int) -> int:
    """What ``uniform_of`` takes in place of the seed: half of the work, done once for all draws of a request."""
    return _mix64(seed)


def uniform_of(stream: int, index: int) -> float:
    """``uniform(seed, index)`` of the stream of that seed."""
    return (_mix64(stream + (index + 1) * _GOLDEN64) >> 11) * 2.0**-53


def derived_seed(seed: int, sample: int) -> int:
    """The seed of one of several samples of a prompt: a stream of its own for each, and ``seed`` for the first.

    So the first of n samples is the one that a request for a single sample gets.
    """
    return seed if sample == 0 else _mix64(~_mix64(seed) & _MASK64) ^ _mix64(sample)


def _mix64(x: int) -> int:
    x = (x + _GOLDEN64) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)
