"""A model as the cost formulas see it: sizes of its parts, which layers keep what, nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minillm.catalog.formats import WeightFormats
from minillm.costs import flops, kv, weights
from minillm.costs.check import CostError, positive
from minillm.costs.dtypes import size_bytes


@dataclass(frozen=True)
class GroupedAttention:
    """Query heads that share KV heads evenly: MHA where there are as many, MQA where there is one."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False  # one norm of head_dim for queries, one for keys
    sinks: bool = False  # a learned logit a head

    def __post_init__(self) -> None:
        positive(heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim)
        if self.heads % self.kv_heads:
            raise CostError(
                f"num_key_value_heads is {self.kv_heads}: {self.heads} query heads do not share them evenly"
            )

    @property
    def value_head_dim(self) -> int:
        return self.head_dim

    def values_per_token(self, expanded: bool) -> int:
        return int(kv.kv_values_per_token(self.kv_heads, self.head_dim))

    def parameters(self, hidden_size: int) -> int:
        q_size, kv_size = self.heads * self.head_dim, self.kv_heads * self.head_dim
        total = int(weights.attention_parameters(hidden_size, self.heads, self.kv_heads, self.head_dim))
        total += (q_size + 2 * kv_size) * self.qkv_bias + hidden_size * self.output_bias
        return total + 2 * self.head_dim * self.qk_norm + self.heads * self.sinks


@dataclass(frozen=True)
class LatentAttention:
    """MLA: keys and values are computed from one latent vector a token (DeepSeek-V2, section 2.1)."""

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    value_head_dim: int

    @property
    def head_dim(self) -> int:
        """Length of an expanded key: the part without position and the rotated part."""
        return self.nope_dim + self.rope_dim

    def values_per_token(self, expanded: bool) -> int:
        if expanded:
            found = kv.expanded_latent_values_per_token(self.heads, self.nope_dim, self.rope_dim, self.value_head_dim)
        else:
            found = kv.latent_values_per_token(self.kv_lora_rank, self.rope_dim)
        return int(found)

    def parameters(self, hidden_size: int) -> int:
        return int(
            weights.latent_attention_parameters(
                hidden_size,
                self.heads,
                self.q_lora_rank,
                self.kv_lora_rank,
                self.nope_dim,
                self.rope_dim,
                self.value_head_dim,
            )
        )


@dataclass(frozen=True)
class Experts:
    """The mixture of experts of every layer from ``first_layer`` on."""

    count: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0  # of the experts that every token visits, together
    first_layer: int = 0
    bias: bool = False  # of the experts' projections
    router_bias: bool = False

    def __post_init__(self) -> None:
        positive(num_experts=self.count, num_experts_per_tok=self.per_token, intermediate=self.intermediate_size)
        if self.per_token > self.count:
            raise CostError(f"num_experts_per_tok is {self.per_token}, there are only {self.count} experts")


@dataclass(frozen=True)
class Geometry:
    """Everything of a decoder that decides its bytes and FLOPs. ``windows`` has one entry for each layer."""

    hidden_size: int
    vocab_size: int
    context_tokens: int  # the longest sequence that the config declares
    attention: GroupedAttention | LatentAttention
    windows: tuple[int | None, ...]
    intermediate_size: int | None  # None where every layer has experts
    experts: Experts | None = None
    tied_embeddings: bool = False
    mlp_bias: bool = False
    norms_per_layer: int = 2

    def __post_init__(self) -> None:
        positive(hidden_size=self.hidden_size, vocab_size=self.vocab_size, context_tokens=self.context_tokens)
        positive(num_hidden_layers=len(self.windows))
        if self.intermediate_size is None and (self.experts is None or self.experts.first_layer > 0):
            raise CostError("intermediate_size is missing: the dense layers need it")

    @property
    def layers(self) -> int:
        return len(self.windows)

    @cached_property
    def _layers_by_window(self) -> Counter[int | None]:
        return Counter(self.windows)

    @cached_property
    def parts(self) -> dict[str, int]:
        """Parameters by part; the parts add up to the model. Tied embeddings have no head of their own."""
        table = int(weights.embedding_parameters(self.vocab_size, self.hidden_size))
        sparse = self.layers - self.experts.first_layer if self.experts else 0
        parts = {
            "embedding": table,
            "attention": self.layers * self.attention.parameters(self.hidden_size),
            "mlp": (self.layers - sparse) * self._mlp(self.intermediate_size or 0, self.mlp_bias),
            "experts": 0,
            "shared_experts": 0,
            "router": 0,
            "norms": (self.norms_per_layer * self.layers + 1) * self.hidden_size,
            "head": 0 if self.tied_embeddings else table,
        }
        if self.experts:
            e = self.experts
            parts["experts"] = sparse * e.count * self._mlp(e.intermediate_size, e.bias)
            parts["shared_experts"] = sparse * self._mlp(e.shared_intermediate_size, e.bias)
            parts["router"] = sparse * e.count * (self.hidden_size + e.router_bias)
        return parts

    def _mlp(self, intermediate_size: int, bias: bool) -> int:
        if not intermediate_size:
            return 0
        biases = (2 * intermediate_size + self.hidden_size) * bias
        return int(weights.gated_mlp_parameters(self.hidden_size, intermediate_size)) + biases

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def expert_matrix_parameters(self) -> int:
        """Parameters of the routed experts' matrices, which is what a 4-bit checkpoint quantizes."""
        if self.experts is None:
            return 0
        sparse = self.layers - self.experts.first_layer
        return sparse * self.experts.count * self._mlp(self.experts.intermediate_size, bias=False)

    def experts_read(self, tokens: Any) -> Any:
        """The fraction of the routed experts that a step of ``tokens`` tokens reads, with a balanced router."""
        if self.experts is None:
            return 1
        return weights.expected_experts(self.experts.count, self.experts.per_token, tokens) / self.experts.count

    def active_parameters(self) -> int:
        """Parameters that one token passes, embedding and head included."""
        idle = 0
        if self.experts:
            idle = self.parts["experts"] // self.experts.count * (self.experts.count - self.experts.per_token)
        return self.parameters - idle

    def matmul_parameters(self) -> int:
        """Parameters of the layers' matrices that one token is multiplied with: no embedding, norms or head."""
        return self.active_parameters() - sum(self.parts[p] for p in ("embedding", "norms", "head"))

    def cache_groups(self, expanded: bool = False) -> tuple[kv.CacheGroup, ...]:
        """The layers' caches. ``expanded``: of a runtime that caches the expanded keys and values of MLA."""
        values = self.attention.values_per_token(expanded)
        return tuple(kv.CacheGroup(layers, values, window) for window, layers in self._layers_by_window.items())

    def attention_flops(self, new_tokens: Sequence[Any], cached_tokens: Sequence[Any]) -> Any:
        """FLOPs of scores and weighted sums of all layers, for the sequences of a step."""
        a, total = self.attention, 0
        for window, layers in self._layers_by_window.items():
            pairs: Any = 0
            for new, cached in zip(new_tokens, cached_tokens, strict=True):
                pairs = pairs + flops.attention_pairs(new, cached, window)
            total = total + layers * flops.attention_flops(pairs, a.heads, a.head_dim, a.value_head_dim)
        return total

    def head_flops(self, rows: Any) -> Any:
        """FLOPs of the output head for ``rows`` positions whose logits are asked for."""
        return flops.linear_flops(self.vocab_size * self.hidden_size, rows)

    def step_flops(self, new_tokens: Sequence[Any], cached_tokens: Sequence[Any], sampled: Any) -> Any:
        """FLOPs of a step: for each sequence its new tokens and those already cached; ``sampled`` rows of logits."""
        matrices = flops.linear_flops(self.matmul_parameters(), sum(new_tokens, start=0))
        return matrices + self.head_flops(sampled) + self.attention_flops(new_tokens, cached_tokens)

    def weight_bytes(self, formats: WeightFormats, tokens: Any = None) -> Any:
        """Bytes of the weights. With ``tokens``, what a step of that many tokens must read of them at least.

        A step reads of the routed experts those that it chooses (:meth:`experts_read`). Of an embedding that is
        no output head it looks up a row a token, which is left out: some kilobytes.
        """
        experts, kept = (
            self.expert_matrix_parameters,
            sum(self.parts[p] for p in ("embedding", "norms", "router", "head")),
        )
        kept += self.parts["experts"] - experts  # biases
        matrices = self.parameters - experts - kept
        share: Any = 1
        if tokens is not None:
            share = self.experts_read(tokens)
            kept -= 0 if self.tied_embeddings else self.parts["embedding"]
        dense = size_bytes(matrices, formats.matrices) + size_bytes(kept, formats.rest)
        return dense + size_bytes(experts, formats.experts) * share
