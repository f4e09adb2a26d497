"""The two bounds of a step, bytes over bandwidth and FLOPs over peak, and what follows from them.

Bandwidths are in bytes/s, peaks in FLOP/s of dense arithmetic: a data sheet's figure "with sparsity"
is twice what a dense model can reach.
"""

from __future__ import annotations

from typing import Any

from minillm.costs.arithmetic import maximum, minimum
from minillm.costs.check import not_negative, positive


def ridge_flops_per_byte(peak_flops: Any, bandwidth: Any) -> Any:
    """The arithmetic intensity from which on arithmetic, not memory, is the limit (FLOP/byte)."""
    positive(peak_flops=peak_flops, bandwidth=bandwidth)
    return peak_flops / bandwidth


def attainable_flops(intensity: Any, peak_flops: Any, bandwidth: Any) -> Any:
    """The roofline: FLOP/s that work of ``intensity`` FLOP/byte can reach (Williams et al., 2009)."""
    positive(intensity=intensity, peak_flops=peak_flops, bandwidth=bandwidth)
    return minimum(peak_flops, intensity * bandwidth)


def matmul_intensity(tokens: Any, inputs: Any, outputs: Any, bytes_per_value: Any = 2) -> Any:
    """FLOP/byte of ``tokens`` rows times an ``inputs`` x ``outputs`` matrix, each array moved once."""
    positive(tokens=tokens, inputs=inputs, outputs=outputs, bytes_per_value=bytes_per_value)
    moved = (inputs * outputs + tokens * inputs + tokens * outputs) * bytes_per_value
    return 2 * tokens * inputs * outputs / moved


def step_time_s(bytes_moved: Any, flops: Any, bandwidth: Any, peak_flops: Any) -> Any:
    """The least seconds of a step: the longer of moving its bytes and doing its arithmetic, fully overlapped."""
    not_negative(bytes_moved=bytes_moved, flops=flops)
    positive(bandwidth=bandwidth, peak_flops=peak_flops)
    return maximum(bytes_moved / bandwidth, flops / peak_flops)


def decode_step_bytes(weight_bytes: Any, batch: Any, context_tokens: Any, kv_bytes_per_token: Any) -> Any:
    """Bytes that a decode step must read: all weights once, and the cache of each sequence."""
    positive(weight_bytes=weight_bytes, batch=batch)
    not_negative(context_tokens=context_tokens, kv_bytes_per_token=kv_bytes_per_token)
    return weight_bytes + batch * context_tokens * kv_bytes_per_token


def inter_token_latency_s(
    weight_bytes: Any, batch: Any, context_tokens: Any, kv_bytes_per_token: Any, bandwidth: Any
) -> Any:
    """The least time between two tokens of a sequence where memory is the limit: (W + B S kv) / BW."""
    positive(bandwidth=bandwidth)
    return decode_step_bytes(weight_bytes, batch, context_tokens, kv_bytes_per_token) / bandwidth


def decode_ceiling_tokens_per_s(bytes_per_step: Any, bandwidth: Any, batch: Any = 1) -> Any:
    """The most tokens/s of the whole batch where memory is the limit. One sequence has 1 / batch of it."""
    positive(bytes_per_step=bytes_per_step, bandwidth=bandwidth, batch=batch)
    return batch * bandwidth / bytes_per_step


def bandwidth_utilization(bytes_moved: Any, elapsed_s: Any, bandwidth: Any) -> Any:
    """MBU: the bytes that a step had to move, over what the memory could have moved in its time."""
    positive(elapsed_s=elapsed_s, bandwidth=bandwidth)
    not_negative(bytes_moved=bytes_moved)
    return bytes_moved / elapsed_s / bandwidth


def decode_attention_read_bytes(
    batch: Any, context_tokens: Any, kv_heads: Any, head_dim: Any, bytes_per_value: Any = 2
) -> Any:
    """Bytes of keys and values that one layer's decode attention reads: by KV heads, not by query heads."""
    positive(batch=batch, kv_heads=kv_heads, head_dim=head_dim, bytes_per_value=bytes_per_value)
    not_negative(context_tokens=context_tokens)
    return 2 * batch * context_tokens * kv_heads * head_dim * bytes_per_value


def decode_attention_output_bytes(batch: Any, heads: Any, head_dim: Any, bytes_per_value: Any = 2) -> Any:
    """Bytes that one layer's decode attention writes: one row a sequence, however long the context is."""
    positive(batch=batch, heads=heads, head_dim=head_dim, bytes_per_value=bytes_per_value)
    return batch * heads * head_dim * bytes_per_value
