"""Transforms and cuts of sampling by their definitions, written another way than the engine's, and random checks."""

from __future__ import annotations

import math
import random

import pytest

from minillm.core.sampling import SamplingParams, distribution
from minillm.core.sampling.shaping import Transform, shaped


def brute_force(logits: list[float], p: SamplingParams) -> dict[int, float]:
    """The documented order, each step on the whole vocabulary and written another way."""
    n = len(logits)
    if p.temperature == 0:
        return {min(range(n), key=lambda i: (-logits[i], i)): 1.0}
    scaled = [(x - max(logits)) / p.temperature for x in logits]
    probs = [math.exp(x) for x in scaled]
    rank = {i: sum((probs[j], -j) > (probs[i], -i) for j in range(n)) for i in range(n)}
    if p.top_k:
        probs = [x if rank[i] < p.top_k else 0.0 for i, x in enumerate(probs)]
    probs = [x / math.fsum(probs) for x in probs]
    if p.top_p < 1:
        before = [math.fsum(probs[j] for j in range(n) if rank[j] < rank[i]) for i in range(n)]
        kept = [x if before[i] < p.top_p else 0.0 for i, x in enumerate(probs)]
    else:
        kept = probs
    kept = [x if x >= p.min_p * max(probs) else 0.0 for x in kept]
    if p.typical_p < 1:
        kept = [x / math.fsum(kept) for x in kept]
        entropy = -math.fsum(x * math.log(x) for x in kept if x > 0)
        far = {i: (abs(-math.log(kept[i]) - entropy), rank[i]) for i in range(n) if kept[i] > 0}
        reached = {i: math.fsum(kept[j] for j in far if far[j] < far[i]) for i in far}
        kept = [x if reached.get(i, 1.0) < p.typical_p else 0.0 for i, x in enumerate(kept)]
    return {i: x / math.fsum(kept) for i, x in enumerate(kept) if x > 0}


def by_definition(logits: list[float], t: Transform) -> list[float]:
    """Token by token: penalties, then bias, then bans."""

    def one(token: int, logit: float) -> float:
        count = t.output_counts.get(token, 0)
        if token in t.prompt_ids or count:
            logit = logit * t.repetition_penalty if logit < 0 else logit / t.repetition_penalty
        logit -= t.frequency_penalty * count + (t.presence_penalty if count else 0.0)
        logit += t.bias.get(token, 0.0)
        is_out = token in t.banned or (t.allowed is not None and not t.allowed & (1 << token))
        return -math.inf if is_out else logit

    return [one(token, logit) for token, logit in enumerate(logits)]


def random_transform(rng: random.Random, vocab: int) -> Transform:
    def some() -> list[int]:
        return rng.sample(range(vocab), rng.randint(0, vocab // 2))

    return Transform(
        repetition_penalty=rng.choice([1.0, 0.5, 1.3]),
        prompt_ids=set(some()),
        output_counts={i: rng.randint(1, 4) for i in some()},
        frequency_penalty=rng.choice([0.0, 0.7, -1.0]),
        presence_penalty=rng.choice([0.0, 1.5, -0.5]),
        bias={i: rng.uniform(-5, 5) for i in some()},
        banned=set(some()),
        allowed=rng.choice([None, sum(1 << i for i in {0, *some()})]),
    )


def random_samplings(seeds: range) -> None:
    """The engine's reference equals the definitions, for what each seed makes up."""
    for seed in seeds:
        rng = random.Random(seed)
        vocab = rng.randint(2, 9)
        logits = [float(rng.randint(-3, 3)) if rng.random() < 0.5 else rng.uniform(-4, 4) for _ in range(vocab)]
        transform = random_transform(rng, vocab)
        assert shaped(logits, transform) == pytest.approx(by_definition(logits, transform), rel=1e-12)
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.5, 1.0, 2.5]),
            top_k=rng.randint(0, vocab),
            top_p=rng.choice([1.0, 0.83, 0.31]),
            min_p=rng.choice([0.0, 0.11, 0.53]),
            typical_p=rng.choice([1.0, 0.87, 0.21]),
        )
        found = distribution(logits, params)
        assert dict(found) == pytest.approx(brute_force(logits, params), rel=1e-9)
        assert found == sorted(found, key=lambda entry: (-entry[1], entry[0]))
