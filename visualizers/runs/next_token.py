"""The bundled model's next-token probabilities for a prompt, and what the engine's transforms keep of them.

The order is the engine's (`minillm.core.sampling`): temperature, top-k, normalize, top-p, min-p,
normalize. Each cut keeps a head of the ranked tokens, so a number of kept tokens says all about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from minillm import hub
from minillm.backends.numpy_backend import NumpyBackend
from minillm.backends.plans import Chunk, plan_of
from minillm.models.load import load_model
from minillm.models.tokenizer import Tokenizer

MODEL = "tiny"
MAX_CHARACTERS = 250  # at most 1,000 bytes and so as many tokens: the model takes 1,024
SHOWN = 10  # tokens with a bar of their own; the others share one
BLOCK_SIZE = 16
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Logits:
    """A prompt's next-token logits, ranked by (logit falling, id rising)."""

    texts: tuple[str, ...]  # of the first SHOWN tokens
    ranked: Floats
    prompt_tokens: int

    def probabilities(self, temperature: float) -> Floats:
        """The ranked probabilities at a temperature; at 0 all is on the first."""
        if temperature == 0:
            return np.concatenate(([1.0], np.zeros(len(self.ranked) - 1)))
        weights: Floats = np.exp((self.ranked - self.ranked[0]) / temperature)
        result: Floats = weights / weights.sum()
        return result


@dataclass(frozen=True)
class Model:
    """The bundled model on the NumPy backend, with room for the longest prompt."""

    backend: NumpyBackend
    tokenizer: Tokenizer
    num_blocks: int


@cache
def model() -> Model:
    """Loaded once in a process."""
    loaded = load_model(hub.BUNDLED / MODEL)
    num_blocks = -(-4 * MAX_CHARACTERS // BLOCK_SIZE)
    backend = NumpyBackend(loaded)
    backend.load(block_size=BLOCK_SIZE, num_blocks=num_blocks + 1)
    return Model(backend, loaded.tokenizer(), num_blocks)


@lru_cache(maxsize=32)
def logits_after(prompt: str) -> Logits:
    """One prefill of ``prompt`` on the engine."""
    found = model()
    ids = found.tokenizer.encode(prompt)
    blocks = list(range(1, found.num_blocks + 1))
    logits = found.backend.logits(plan_of([Chunk(ids, blocks)], BLOCK_SIZE))[0].astype(np.float64)
    order = np.argsort(-logits, kind="stable")
    texts = [visible(found.tokenizer.token_bytes(int(i))) for i in order[:SHOWN]]
    # Parts of characters look alike: two rows of one name would be drawn as one.
    names = tuple(f"{t} ({i})" if texts.count(t) > 1 else t for t, i in zip(texts, order[:SHOWN], strict=True))
    return Logits(names, logits[order], len(ids))


def visible(raw: bytes) -> str:
    """A token as a label: spaces, line ends and broken characters can be seen."""
    text = raw.decode("utf-8", "replace")
    return text.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥")


@dataclass(frozen=True)
class Cut:
    """How many of the ranked tokens are left after each step, and the final probabilities of those."""

    after_top_k: int
    after_top_p: int
    after_min_p: int
    final: Floats  # of the tokens that are left


def cut(probabilities: Floats, top_k: int, top_p: float, min_p: float) -> Cut:
    """The engine's transforms on ranked probabilities."""
    # A weight that underflows to 0 is no candidate, whatever the cuts.
    possible = int(np.count_nonzero(probabilities))
    first = min(top_k or possible, possible)
    normalized = probabilities[:first] / probabilities[:first].sum()
    second = first
    if top_p < 1:
        # The token that reaches top_p is kept; rounding may keep the whole sum under it.
        second = min(int(np.searchsorted(np.cumsum(normalized), top_p, side="left")) + 1, first)
    third = int(np.count_nonzero(normalized[:second] >= min_p * normalized[0]))
    kept = normalized[:third]
    return Cut(first, second, third, kept / kept.sum())


def entropy_bits(probabilities: Floats) -> float:
    """Shannon's entropy: 0 for a sure token, log2(n) for n tokens that are alike."""
    positive = probabilities[probabilities > 0]
    return abs(float(-(positive * np.log2(positive)).sum()))  # not -0.0


def six_digits(x: float) -> float:
    """What a figure of thousands of states needs of a probability."""
    return float(f"{x:.6g}")
