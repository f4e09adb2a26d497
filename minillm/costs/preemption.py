"""What a preempted request costs: its K/V over a link to the host and back, or its tokens computed again.

Both are work of a resource that runs beside others, the link or the arithmetic, and so the most that they add
to a run; what is overlapped with something else adds less.
"""

from __future__ import annotations

from typing import Any

from minillm.costs.arithmetic import ceildiv, maximum
from minillm.costs.check import CostError, not_negative, positive

# Transfers/s of a lane, which carries one bit in each: PCI Express Base Specification, revisions 3.0, 4.0 and 5.0.
_TRANSFERS_PER_S = {3: 8e9, 4: 16e9, 5: 32e9}
_LINE_CODE = 128 / 130  # bits of data in the bits of a lane, since revision 3.0


def pcie_bytes_per_s(generation: int, lanes: int = 16) -> float:
    """Bytes/s that PCIe carries in one direction; the headers of its packets take a few percent of that."""
    if generation not in _TRANSFERS_PER_S:
        raise CostError(f"generation is {generation!r}: choose from {', '.join(map(str, _TRANSFERS_PER_S))}")
    positive(lanes=lanes)
    return _TRANSFERS_PER_S[generation] * lanes * _LINE_CODE / 8


def swap_copies(tokens: Any, block_size: Any, layers: Any, arrays_per_layer: Any = 2) -> Any:
    """Copies of one direction where each block lies apart in every array of every layer: keys and values are two."""
    not_negative(tokens=tokens)
    positive(block_size=block_size, layers=layers, arrays_per_layer=arrays_per_layer)
    return ceildiv(tokens, block_size) * layers * arrays_per_layer


def swap_time_s(kv_bytes: Any, link_bandwidth: Any, copies: Any = 0, copy_overhead_s: Any = 0) -> Any:
    """Seconds of a link that takes ``kv_bytes`` out and later back in, in ``copies`` each way.

    ``link_bandwidth`` is bytes/s of one direction; a copy occupies the link for ``copy_overhead_s`` besides its
    bytes, which is what makes small ones slow.
    """
    positive(link_bandwidth=link_bandwidth)
    not_negative(kv_bytes=kv_bytes, copies=copies, copy_overhead_s=copy_overhead_s)
    return 2 * (kv_bytes / link_bandwidth + copies * copy_overhead_s)


def recompute_time_s(flops: Any, peak_flops: Any) -> Any:
    """Seconds of arithmetic to compute tokens again, ``flops`` in all.

    They share steps with the requests that run on, which read the weights anyhow.
    """
    not_negative(flops=flops)
    positive(peak_flops=peak_flops)
    return flops / peak_flops


def recompute_crossover_tokens(
    swap_s_per_token: Any, linear_flops_per_token: Any, attention_flops_per_pair: Any, peak_flops: Any
) -> Any:
    """The length up to which computing again takes no longer than swapping; 0 where it always takes longer.

    Of n tokens, each costs ``swap_s_per_token`` of the link, out and in, or its share of arithmetic,
    linear + pair * (n + 1) / 2, which grows with n: all layers keep every token.
    """
    not_negative(swap_s_per_token=swap_s_per_token)
    positive(linear_flops_per_token=linear_flops_per_token, attention_flops_per_pair=attention_flops_per_pair)
    positive(peak_flops=peak_flops)
    left = swap_s_per_token * peak_flops - linear_flops_per_token
    return maximum(2 * left / attention_flops_per_pair - 1, 0)
