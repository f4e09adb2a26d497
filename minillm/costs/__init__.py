"""Formulas for bytes, FLOPs and ceilings, as plain arithmetic on their arguments.

Every function takes numbers, NumPy arrays or Altair parameters (`minillm.costs.arithmetic`). What is
exported here may be called in a checked number of the handbook.
"""

from minillm.costs.batching import padding_waste
from minillm.costs.check import CostError
from minillm.costs.dtypes import FORMATS, NumberFormat, bits_per_value, number_format, size_bytes
from minillm.costs.flops import attention_flops, attention_pairs, linear_flops
from minillm.costs.kv import (
    CacheGroup,
    expanded_latent_values_per_token,
    growth_bytes_per_token,
    kv_allocated_bytes,
    kv_bytes_per_token,
    kv_logical_bytes,
    kv_values_per_token,
    latent_values_per_token,
    max_context_tokens,
)
from minillm.costs.preemption import (
    pcie_bytes_per_s,
    recompute_crossover_tokens,
    recompute_time_s,
    swap_copies,
    swap_time_s,
)
from minillm.costs.roofline import (
    attainable_flops,
    bandwidth_utilization,
    decode_attention_output_bytes,
    decode_attention_read_bytes,
    decode_ceiling_tokens_per_s,
    decode_step_bytes,
    inter_token_latency_s,
    matmul_intensity,
    ridge_flops_per_byte,
    step_time_s,
)
from minillm.costs.speculation import speculated_tokens, speculative_speedup
from minillm.costs.weights import (
    attention_parameters,
    embedding_parameters,
    expected_experts,
    gated_mlp_parameters,
    latent_attention_parameters,
)

__all__ = [
    "FORMATS",
    "CacheGroup",
    "CostError",
    "NumberFormat",
    "attainable_flops",
    "attention_flops",
    "attention_pairs",
    "attention_parameters",
    "bandwidth_utilization",
    "bits_per_value",
    "decode_attention_output_bytes",
    "decode_attention_read_bytes",
    "decode_ceiling_tokens_per_s",
    "decode_step_bytes",
    "embedding_parameters",
    "expanded_latent_values_per_token",
    "expected_experts",
    "gated_mlp_parameters",
    "growth_bytes_per_token",
    "inter_token_latency_s",
    "kv_allocated_bytes",
    "kv_bytes_per_token",
    "kv_logical_bytes",
    "kv_values_per_token",
    "latent_attention_parameters",
    "latent_values_per_token",
    "linear_flops",
    "matmul_intensity",
    "max_context_tokens",
    "number_format",
    "padding_waste",
    "pcie_bytes_per_s",
    "recompute_crossover_tokens",
    "recompute_time_s",
    "ridge_flops_per_byte",
    "size_bytes",
    "speculated_tokens",
    "speculative_speedup",
    "step_time_s",
    "swap_copies",
    "swap_time_s",
]
