"""An architecture as data: a model is a list of layers, each with a mixer and a feed-forward.

A spec is built from a Hugging Face ``config.json`` (`minillm.models.hf_config`) or from GGUF metadata
(`minillm.models.gguf_config`); it knows nothing about files, weights or array libraries. What computes it is in
`minillm.models.mixers` and `minillm.models.feed_forward`. Sizes are in elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from minillm.models.cache_spec import CacheSpec
from minillm.ops import Activation
from minillm.ops.routing import Routing

MAX_LAYERS = 4096  # far above any model: a broken file must not make us build a billion layers


class SpecError(ValueError):
    """A configuration that this engine does not run: the message names field, value and what it takes."""


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the first and second half of ``dim`` elements (`minillm.models.rope` has the formulas).

    ``divisors`` are used by ``"divisors"`` only: one number for each of the dim / 2 frequencies,
    which is how GGUF files store the llama3 rule (tensor ``rope_freqs.weight``).
    """

    dim: int
    theta: float = 10000.0
    scaling: Literal["none", "linear", "llama3", "yarn", "divisors"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # of YaRN: whether the range of blended frequencies is rounded outward
    amplitude: float = 1.0  # of YaRN: what cosines and sines are multiplied by
    original_max_positions: int = 0
    divisors: tuple[float, ...] = ()

    def problems(self) -> Iterator[str]:
        if self.dim % 2:
            yield f"head_dim is {self.dim}, rotary embedding needs pairs"
        if self.divisors and len(self.divisors) != self.dim // 2:
            yield f"{len(self.divisors)} rope divisors for head_dim {self.dim}, it needs {self.dim // 2}"
        numbers = ("theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "amplitude")
        yield from _not_positive(self, *numbers, prefix="rope ")
        if self.scaling == "yarn" and not (
            self.beta_fast > self.beta_slow and self.original_max_positions >= 1 and self.theta > 1
        ):
            yield (
                f"yarn rope has beta_fast {self.beta_fast}, beta_slow {self.beta_slow}, theta {self.theta}, original "
                f"length {self.original_max_positions}: fast must be above slow, theta above 1, the length at least 1"
            )
        if self.scaling == "llama3" and not (
            self.high_freq_factor > self.low_freq_factor and self.original_max_positions >= 1
        ):
            yield (
                f"llama3 rope has low_freq_factor {self.low_freq_factor}, high_freq_factor {self.high_freq_factor}, "
                f"original length {self.original_max_positions}: high must be above low, the length at least 1"
            )


@dataclass(frozen=True)
class Attention:
    """Softmax attention over the keys and values of K heads; query head h reads KV head h // (H / K)."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope  # of the first ``rope.dim`` elements of a head
    window: int | None = None  # keys a query sees, its own included; None is all
    scale: float | None = None  # of a query's dot product with a key; None is head_dim ** -0.5
    cap: float | None = None  # scores become cap * tanh(score / cap)
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False

    def problems(self) -> Iterator[str]:
        yield from _below_one(self, "heads", "kv_heads", "head_dim")
        if self.kv_heads > 0 and self.heads % self.kv_heads:
            yield f"{self.heads} query heads do not share {self.kv_heads} KV heads evenly"
        if self.window is not None and self.window < 1:
            yield f"a sliding window of {self.window} must be at least 1 token"
        yield from self.rope.problems()
        yield from _not_positive(self, "scale", "cap", prefix="attention_")

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def output_size(self) -> int:
        """Elements a token has before the output projection."""
        return self.q_size

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def cache(self) -> CacheSpec:
        return CacheSpec(((self.kv_heads, self.head_dim), (self.kv_heads, self.head_dim)), self.window)

    def matrix_elements(self, hidden: int) -> int:
        """Elements of the matrices that a token is multiplied with."""
        return hidden * (2 * self.q_size + 2 * self.kv_size)


@dataclass(frozen=True)
class LatentAttention:
    """Attention whose keys and values are made of one latent vector a token (DeepSeek-V2, section 2.1).

    A head's key is ``nope_dim`` elements of the latent vector's, then ``rope.dim`` rotated ones that all heads share.
    """

    heads: int
    q_rank: int | None  # of the vector that queries are made of; None: they are made of the hidden state
    kv_rank: int
    nope_dim: int
    value_dim: int
    rope: Rope
    scale_factor: float = 1.0  # what head_dim ** -0.5 is multiplied by
    output_bias: bool = False

    def problems(self) -> Iterator[str]:
        yield from _below_one(self, "heads", "kv_rank", "nope_dim", "value_dim")
        if self.q_rank is not None:
            yield from _below_one(self, "q_rank")
        yield from self.rope.problems()
        yield from _not_positive(self, "scale_factor")

    @property
    def head_dim(self) -> int:
        """Elements of a query, and of a key."""
        return self.nope_dim + self.rope.dim

    @property
    def output_size(self) -> int:
        return self.heads * self.value_dim

    @property
    def score_scale(self) -> float:
        return self.scale_factor / math.sqrt(self.head_dim)

    @property
    def cache(self) -> CacheSpec:
        return CacheSpec(((1, self.kv_rank + self.rope.dim),))

    def matrix_elements(self, hidden: int) -> int:
        q_size = self.heads * self.head_dim
        queries = hidden * q_size if self.q_rank is None else self.q_rank * (hidden + q_size)
        made = self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        return queries + hidden * (self.kv_rank + self.rope.dim) + made + hidden * self.output_size


@dataclass(frozen=True)
class Dense:
    """``down(activation(gate(x)) * up(x))``."""

    intermediate: int
    activation: Activation = "silu"
    bias: bool = False

    def problems(self) -> Iterator[str]:
        yield from _below_one(self, "intermediate")

    def matrix_elements(self, hidden: int) -> int:
        return 3 * hidden * self.intermediate


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: each is a gated feed-forward, and a token visits ``routing.per_token`` of them.

    Shared experts, which every token visits, are one feed-forward of ``shared_intermediate`` elements.
    """

    routing: Routing
    intermediate: int
    shared_intermediate: int = 0
    activation: Activation = "silu"
    correction: bool = False  # whether a bias is added to scores while experts are chosen

    def problems(self) -> Iterator[str]:
        r = self.routing
        yield from _below_one(self, "intermediate")
        yield from _below_one(r, "count", "per_token", "groups", "top_groups", "group_best", prefix="experts' ")
        if r.groups < 1 or r.count % r.groups or r.top_groups > r.groups or r.group_best > r.count // r.groups:
            yield f"{r.count} experts in {r.groups} groups, {r.top_groups} of which are taken: groups are equally large"
        elif r.per_token > r.count // r.groups * r.top_groups:
            yield f"{r.per_token} experts a token, there are {r.count // r.groups * r.top_groups} to choose from"
        yield from _not_positive(r, "scale", prefix="experts' ")

    def matrix_elements(self, hidden: int) -> int:
        visited = self.routing.per_token * self.intermediate + self.shared_intermediate
        return hidden * (self.routing.count + 3 * visited)


Mixer = Attention | LatentAttention
FeedForward = Dense | Experts


@dataclass(frozen=True)
class LayerSpec:
    """One layer: the mixer carries information between tokens, the feed-forward works on each alone."""

    mixer: Mixer
    ffn: FeedForward
    post_norms: bool = False  # the outputs of both are normed before they are added


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one window, the K/V of which one block holds."""

    window: int | None
    layers: tuple[int, ...]


@dataclass(frozen=True)
class ModelSpec:
    """A decoder: embedding, layers, a last norm and a head."""

    architecture: str  # the name in the file it came from, for messages
    vocab_size: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    max_positions: int  # tokens of the longest sequence the model takes
    norm_eps: float
    tied_head: bool = False
    logit_cap: float | None = None
    norm_offset: float = 0.0  # added to every norm's weight (Gemma stores weight - 1)
    embedding_scale: float = 1.0
    interleaved_rope: bool = False  # rows that are rotated together are stored side by side, not in halves

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise SpecError(f"{self.architecture}: {problem}")

    def _problems(self) -> Iterator[str]:
        yield from _below_one(self, "vocab_size", "hidden", "max_positions")
        if not 1 <= len(self.layers) <= MAX_LAYERS:
            yield f"layers is {len(self.layers):,}, the limit is 1 to {MAX_LAYERS:,}"
        for layer in dict.fromkeys(self.layers):
            yield from layer.mixer.problems()
            yield from layer.ffn.problems()
        yield from _not_positive(self, "norm_eps", "logit_cap", "embedding_scale")

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Keys that a query sees in each layer; None is all."""
        return tuple(layer.mixer.cache.window for layer in self.layers)

    @property
    def longest_window(self) -> int | None:
        """Keys that a query sees in the layer that sees most; None is all."""
        windows = [window for window in self.windows if window is not None]
        return max(windows) if len(windows) == self.num_layers else None

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The different rotations of the model."""
        return tuple(dict.fromkeys(layer.mixer.rope for layer in self.layers))

    def layer_groups(self) -> list[LayerGroup]:
        """The layers by window, those that see most first, in groups of as many as the rarest window has, or fewer."""
        by_window: dict[int | None, list[int]] = {}
        for layer, window in enumerate(self.windows):
            by_window.setdefault(window, []).append(layer)
        size = min(len(layers) for layers in by_window.values())
        ordered = sorted(by_window.items(), key=lambda item: -math.inf if item[0] is None else -item[0])
        return [
            LayerGroup(window, tuple(layers[i : i + size]))
            for window, layers in ordered
            for i in range(0, len(layers), size)
        ]

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that one token leaves in the caches of all layers together."""
        return sum(layer.mixer.cache.elements_per_token for layer in self.layers)


def _below_one(spec: object, *names: str, prefix: str = "") -> Iterator[str]:
    for name in names:
        if getattr(spec, name) < 1:
            yield f"{prefix}{name} is {getattr(spec, name)}, it must be at least 1"


def _not_positive(spec: object, *names: str, prefix: str = "") -> Iterator[str]:
    for name in names:
        value = getattr(spec, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            yield f"{prefix}{name} is {value}, it must be finite and above 0"
