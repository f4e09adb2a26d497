"""A race of the engine with itself: the next token's logits behind the KV cache, and with every token again.

:class:`Race` writes one text, and at every measured length computes the next token twice: one row
behind the cache, and the whole sequence. Both are the real forward pass; what differs is how many rows
the step plan has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from minillm import hub
from minillm.backends.numpy_backend import NumpyBackend
from minillm.backends.plans import Chunk, plan_of
from minillm.costs import attention_flops, attention_pairs, linear_flops
from minillm.models.load import load_model
from minillm.models.spec import ModelSpec
from visualizers.runs.measure import Times, one_thread, thread_clock

MODEL = "tiny"
PROMPT = "My fellow citizens,"
LONGEST = 512
MEASURED = (8, *range(16, LONGEST + 1, 16))
REPEATS = 5  # of each step
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Lap:
    """The next token after ``length`` tokens, both ways. Differences are of logits."""

    length: int
    cached: Times
    whole: Times
    max_difference: float
    largest_logit: float
    same_token: bool

    @property
    def with_s(self) -> float:
        """The median with the cache."""
        return self.cached.median_s

    @property
    def without_s(self) -> float:
        return self.whole.median_s


class Race:
    """One text, as far as it was asked for; it goes on where it stopped."""

    def __init__(self) -> None:
        model = load_model(hub.BUNDLED / MODEL)
        self.spec = model.spec
        blocks = LONGEST // BLOCK_SIZE
        self._clock = thread_clock()
        self._backend = NumpyBackend(model)
        self._backend.load(block_size=BLOCK_SIZE, num_blocks=2 * blocks + 1)
        self.kv_bytes_per_token = self._backend.capacity().kv_bytes_per_token
        # The text's own blocks, and others that the runs without a cache write and never read again.
        self._kept = list(range(1, blocks + 1))
        self._scratch = list(range(blocks + 1, 2 * blocks + 1))
        self._tokenizer = model.tokenizer()
        self._tokens = self._tokenizer.encode(PROMPT)
        self.prompt_tokens = len(self._tokens)
        with one_thread():
            self._step(self._tokens[:-1], self._kept, 0)  # the prompt's prefill
            self._lap()  # not kept: the first pass over the weights brings them into the caches
        self.laps: list[Lap] = []

    def reach(self, length: int) -> list[Lap]:
        """The laps up to ``length`` tokens; those that are missing are run now."""
        with one_thread():
            while len(self._tokens) <= length:
                if len(self._tokens) in MEASURED:
                    self.laps.append(self._lap())
                logits, _ = self._step(self._tokens, self._kept, len(self._tokens) - 1)
                self._tokens.append(int(logits.argmax()))
        return [lap for lap in self.laps if lap.length <= length]

    def words(self, count: int) -> list[str]:
        """The first tokens of the text, prompt included."""
        return [self._tokenizer.decode([token_id]) for token_id in self._tokens[:count]]

    def _lap(self) -> Lap:
        length = len(self._tokens)
        cached = [self._step(self._tokens, self._kept, length - 1) for _ in range(REPEATS)]
        whole = [self._step(self._tokens, self._scratch, 0) for _ in range(REPEATS)]
        a, b = cached[0][0], whole[0][0]
        return Lap(
            length=length,
            cached=Times.of([seconds for _, seconds in cached]),
            whole=Times.of([seconds for _, seconds in whole]),
            max_difference=float(np.abs(a - b).max()),
            largest_logit=float(np.abs(b).max()),
            same_token=bool(a.argmax() == b.argmax()),
        )

    def _step(self, tokens: list[int], blocks: list[int], computed: int) -> tuple[Any, float]:
        """(logits after the last token, seconds) when ``computed`` tokens are in the cache already."""
        plan = plan_of([Chunk(tokens, blocks, computed)], BLOCK_SIZE)
        started = self._clock()
        logits = self._backend.logits(plan)[0]
        return logits, self._clock() - started


@cache
def race() -> Race:
    """The one race of this process."""
    return Race()


def step_flops(spec: ModelSpec, new_tokens: int, cached_tokens: int) -> int:
    """FLOPs of a step that samples one row, as our decoder does it.

    After the last layer's attention only that row goes on, so its output projection and MLP, and the
    head, are computed once.
    """
    flops: float = linear_flops(spec.vocab_size * spec.hidden, 1)
    for i, layer in enumerate(spec.layers):
        mixer = layer.mixer
        output = spec.hidden * mixer.output_size
        rest = output + layer.ffn.matrix_elements(spec.hidden)
        pairs = attention_pairs(new_tokens, cached_tokens, mixer.cache.window)
        flops += linear_flops(mixer.matrix_elements(spec.hidden) - output, new_tokens)
        flops += linear_flops(rest, 1 if i == spec.num_layers - 1 else new_tokens)
        flops += attention_flops(pairs, mixer.heads, mixer.head_dim)
    return round(flops)


def totals(laps: list[Lap], side: str) -> list[float]:
    """Seconds for all tokens up to each lap: the measured times, with straight lines between them."""
    times = [getattr(lap, side) for lap in laps]
    found = [times[0]]
    for (before, after), (a, b) in zip(pairwise(laps), pairwise(times), strict=True):
        found.append(found[-1] + (after.length - before.length) * (a + b) / 2)
    return found
