"""An architecture as data: everything in which the supported decoders differ.

A spec is built from a Hugging Face ``config.json`` (`minillm.models.hf_config`) or from GGUF metadata
(`minillm.models.gguf_config`); it knows nothing about files, weights or array libraries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from minillm.ops import Activation

MAX_LAYERS = 4096  # far above any model: a broken file must not make us build a billion layers


class SpecError(ValueError):
    """A configuration that this engine does not run: the message names field, value and what it takes."""


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the first and second half of a head (`minillm.models.rope` has the formulas).

    ``divisors`` are used by ``"divisors"`` only: one number for each of the head_dim / 2 frequencies,
    which is how GGUF files store the llama3 rule (tensor ``rope_freqs.weight``).
    """

    theta: float = 10000.0
    scaling: Literal["none", "linear", "llama3", "divisors"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one window, the K/V of which one block holds."""

    window: int | None
    layers: tuple[int, ...]


@dataclass(frozen=True)
class ModelSpec:
    """A decoder of the Llama family. Sizes are in elements, ``windows`` has one entry for each layer."""

    architecture: str  # the name in the file it came from, for messages
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    max_positions: int  # tokens of the longest sequence the model takes
    norm_eps: float
    rope: Rope
    windows: tuple[int | None, ...]  # keys a query sees, its own included; None is all
    tied_head: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    activation: Activation = "silu"
    attention_scale: float | None = None  # None is head_dim ** -0.5
    attention_cap: float | None = None  # scores become cap * tanh(score / cap)
    logit_cap: float | None = None
    norm_offset: float = 0.0  # added to every norm's weight (Gemma stores weight - 1)
    embedding_scale: float = 1.0
    post_norms: bool = False  # attention's and the MLP's outputs are normed before they are added

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden",
            "layers",
            "heads",
            "kv_heads",
            "head_dim",
            "intermediate",
            "max_positions",
        ):
            if getattr(self, name) < 1:
                raise SpecError(f"{self.architecture}: {name} is {getattr(self, name)}, it must be at least 1")
        if self.layers > MAX_LAYERS:
            raise SpecError(f"{self.architecture}: layers is {self.layers:,}, the limit is {MAX_LAYERS:,}")
        if self.heads % self.kv_heads:
            raise SpecError(
                f"{self.architecture}: {self.heads} query heads do not share {self.kv_heads} KV heads evenly"
            )
        if self.head_dim % 2:
            raise SpecError(f"{self.architecture}: head_dim is {self.head_dim}, rotary embedding needs pairs")
        if len(self.windows) != self.layers:
            raise SpecError(f"{self.architecture}: {len(self.windows)} windows for {self.layers} layers")
        if any(w is not None and w < 1 for w in self.windows):
            raise SpecError(f"{self.architecture}: sliding windows {self.windows} must be at least 1 token")
        if self.rope.divisors and len(self.rope.divisors) != self.head_dim // 2:
            raise SpecError(
                f"{self.architecture}: {len(self.rope.divisors)} rope divisors for head_dim {self.head_dim}, "
                f"it needs {self.head_dim // 2}"
            )
        for name in ("theta", "factor", "low_freq_factor", "high_freq_factor"):
            value = getattr(self.rope, name)
            if not (math.isfinite(value) and value > 0):
                raise SpecError(f"{self.architecture}: rope {name} is {value}, it must be finite and above 0")
        if self.rope.scaling == "llama3" and not (
            self.rope.high_freq_factor > self.rope.low_freq_factor and self.rope.original_max_positions >= 1
        ):
            raise SpecError(
                f"{self.architecture}: llama3 rope has low_freq_factor {self.rope.low_freq_factor}, "
                f"high_freq_factor {self.rope.high_freq_factor}, original length "
                f"{self.rope.original_max_positions}: high must be above low, the length at least 1"
            )
        for name in ("norm_eps", "attention_scale", "attention_cap", "logit_cap", "embedding_scale"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise SpecError(f"{self.architecture}: {name} is {value}, it must be finite and above 0")

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def longest_window(self) -> int | None:
        """Keys that a query sees in the layer that sees most; None is all."""
        windows = [window for window in self.windows if window is not None]
        return max(windows) if len(windows) == self.layers else None

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
    def score_scale(self) -> float:
        """What a query's dot product with a key is multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of K and V that one token leaves in all layers together."""
        return 2 * self.layers * self.kv_size
