"""How many KV blocks a backend allocates: from the memory at hand, or the numbers why it cannot."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_BROWSER_BYTES = 64 * 2**20  # of the 2 GiB that Pyodide can address; there memory is taken at once
_CPU_CAP_BYTES = 2 * 2**30  # enough for a book's runs; more only when one sequence needs it
_CPU_SEQUENCES = 32  # of full length: more blocks than this only make a small model's start slower
_CPU_SHARE = 0.5  # of what is available: the step's own arrays and other programs need the rest


class MemoryShortageError(RuntimeError):
    """Not even one full-length sequence fits: says what is needed, what is there and what would fit."""


def available_host_bytes() -> int:
    """Memory that can be taken without swapping."""
    if sys.platform == "emscripten":
        return _BROWSER_BYTES
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return _CPU_CAP_BYTES


def host_kv_budget_bytes(available: int, one_sequence_bytes: int) -> int:
    """Bytes of KV cache to allocate on a host with ``available`` bytes."""
    share = available if sys.platform == "emscripten" else int(available * _CPU_SHARE)
    return min(share, max(_CPU_CAP_BYTES, one_sequence_bytes), _CPU_SEQUENCES * one_sequence_bytes)


def blocks_for(*, budget_bytes: int, block_size: int, bytes_per_token: int, max_model_len: int) -> int:
    """Blocks, the null block included, that fit ``budget_bytes``; at least one full-length sequence.

    Raises:
        MemoryShortageError: one sequence of ``max_model_len`` tokens does not fit.
    """
    block_bytes = block_size * bytes_per_token
    blocks = budget_bytes // block_bytes
    needed = -(-max_model_len // block_size) + 1  # the null block holds no tokens
    if blocks < needed:
        fits = max(0, (blocks - 1) * block_size)
        raise MemoryShortageError(
            f"one sequence of {max_model_len:,} tokens needs {needed * block_bytes:,} bytes of KV cache, "
            f"{budget_bytes:,} are available: the largest length that fits is {fits:,} tokens, "
            "set max_model_len to it or free memory"
        )
    return blocks
