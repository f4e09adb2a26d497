"""A catalogued model with another attention in its place: what its KV cache would be, the rest of it kept.

Each alternative changes one thing: the number of KV heads, a latent vector in place of keys and values (the
512 + 64 numbers of DeepSeek-V3), or the windows of its layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from minillm.catalog import Geometry, LatentAttention, Model
from minillm.costs import CacheGroup, kv_values_per_token, latent_values_per_token

LATENT = (512, 64)  # latent and rotated key of DeepSeek-V3, in numbers
WINDOW, GLOBAL_EVERY = 1024, 6  # Gemma 3: five layers with this window, then one without
GROUPED = 8  # KV heads of most models with grouped-query attention


@dataclass(frozen=True)
class Variant:
    """A way to build the model's attention, and the caches that its layers then have."""

    label: str
    groups: Sequence[CacheGroup]
    own: bool = False


def variants(model: Model) -> list[Variant]:
    """The model as built, then the what-ifs that differ from it."""
    g = model.geometry
    kind, windows = model.attention_kind, g.windows
    own = [Variant(f"as built: {_described(model)}", g.cache_groups(), own=True)]
    heads = {"MHA": model.heads, "GQA": GROUPED, "MQA": 1}
    for name, kv_heads in heads.items():
        if name != kind and not (name == "GQA" and (model.heads <= GROUPED or model.heads % GROUPED)):
            own.append(Variant(f"if {name}: {_counted(kv_heads)}", _groups(windows, _values(g, kv_heads))))
    if kind != "MLA":
        own.append(
            Variant(f"if MLA: {LATENT[0]} + {LATENT[1]} numbers", _groups(windows, latent_values_per_token(*LATENT)))
        )
    values = g.attention.values_per_token(False)
    if any(windows):
        return [*own, Variant("if no layer had a window", _groups([None] * g.layers, values))]
    local = [None if (i + 1) % GLOBAL_EVERY == 0 else WINDOW for i in range(g.layers)]
    return [*own, Variant(f"if 5 of 6 layers saw {WINDOW:,} tokens", _groups(local, values))]


def _described(model: Model) -> str:
    kind = model.attention_kind
    attention = model.geometry.attention
    if isinstance(attention, LatentAttention):
        text = f"{kind}, {attention.kv_lora_rank} + {attention.rope_dim} numbers"
    else:
        text = f"{kind}, {_counted(model.kv_heads)}"
    return f"{text}, windows" if any(model.geometry.windows) else text


def described_windows(groups: Sequence[CacheGroup]) -> str:
    """Which layers see the last tokens only."""
    layers = sum(g.layers for g in groups)
    texts = [f"{g.layers} of {layers} layers: {g.window:,} tokens" for g in groups if g.window is not None]
    return "; ".join(texts) or "none"


def _counted(kv_heads: int) -> str:
    return f"{kv_heads} KV head{'s' if kv_heads > 1 else ''}"


def _values(geometry: Geometry, kv_heads: int) -> int:
    attention = geometry.attention
    return int(kv_values_per_token(kv_heads, attention.head_dim, attention.value_head_dim))


def _groups(windows: Sequence[int | None], values: int) -> list[CacheGroup]:
    return [CacheGroup(layers, values, window) for window, layers in Counter(windows).items()]


def multi_head(model: Model) -> list[CacheGroup]:
    """The caches with a KV head for each query head."""
    return _groups(model.geometry.windows, _values(model.geometry, model.heads))
