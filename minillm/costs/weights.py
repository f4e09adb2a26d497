"""Parameters of a decoder's parts from its geometry; bytes follow from :func:`minillm.costs.dtypes.size_bytes`."""

from __future__ import annotations

from typing import Any

from minillm.costs.check import not_negative, positive


def embedding_parameters(vocab_size: Any, hidden_size: Any) -> Any:
    """The input table; an output head that is not tied to it has as many again."""
    positive(vocab_size=vocab_size, hidden_size=hidden_size)
    return vocab_size * hidden_size


def attention_parameters(hidden_size: Any, heads: Any, kv_heads: Any, head_dim: Any) -> Any:
    """Query, key, value and output projections of one layer, without biases."""
    positive(hidden_size=hidden_size, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    return 2 * hidden_size * head_dim * (heads + kv_heads)


def latent_attention_parameters(
    hidden_size: Any,
    heads: Any,
    q_lora_rank: Any,
    kv_lora_rank: Any,
    nope_dim: Any,
    rope_dim: Any,
    value_head_dim: Any,
) -> Any:
    """Projections and inner norms of one layer of MLA. ``q_lora_rank`` None: queries are not compressed."""
    positive(hidden_size=hidden_size, heads=heads, kv_lora_rank=kv_lora_rank)
    positive(nope_dim=nope_dim, rope_dim=rope_dim, value_head_dim=value_head_dim)
    q_size = heads * (nope_dim + rope_dim)
    if q_lora_rank is None:
        query = hidden_size * q_size
    else:
        positive(q_lora_rank=q_lora_rank)
        query = hidden_size * q_lora_rank + q_lora_rank + q_lora_rank * q_size
    down = hidden_size * (kv_lora_rank + rope_dim) + kv_lora_rank  # the latent's norm included
    up = kv_lora_rank * heads * (nope_dim + value_head_dim)
    return query + down + up + heads * value_head_dim * hidden_size


def gated_mlp_parameters(hidden_size: Any, intermediate_size: Any) -> Any:
    """Gate, up and down projection, without biases."""
    positive(hidden_size=hidden_size, intermediate_size=intermediate_size)
    return 3 * hidden_size * intermediate_size


def expected_experts(experts: Any, experts_per_token: Any, tokens: Any) -> Any:
    """Distinct experts of a layer that ``tokens`` tokens choose, if each chooses at random.

    A token misses an expert with probability 1 - k/E. One token reads k experts, many read them all; a
    real router is not balanced and reads fewer.
    """
    positive(experts=experts, experts_per_token=experts_per_token)
    not_negative(tokens=tokens)
    return experts * (1 - (1 - experts_per_token / experts) ** tokens)
