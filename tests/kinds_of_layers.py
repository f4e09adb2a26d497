"""Small configurations of every kind of layer, as transformers builds them."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 20,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped queries, dense": ("LlamaForCausalLM", SIZES),
    "experts (Mixtral)": ("MixtralForCausalLM", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "experts in some layers (Qwen3)": (
        "Qwen3MoeForCausalLM",
        {
            **SIZES,
            "head_dim": 12,
            "moe_intermediate_size": 20,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "latent attention, a dense layer first (DeepSeek-V2)": (
        "DeepseekV2ForCausalLM",
        {**SIZES, **LATENT, "q_lora_rank": None, "first_k_dense_replace": 1},
    ),
    "latent attention, sigmoid routing (DeepSeek-V3)": (
        "DeepseekV3ForCausalLM",
        {
            **SIZES,
            **LATENT,
            "q_lora_rank": 14,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
        },
    ),
    "windows with a full layer between (Gemma 3)": (
        "Gemma3ForCausalLM",
        {
            **SIZES,
            "head_dim": 16,
            "sliding_window": 7,
            "query_pre_attn_scalar": 10,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
