"""What a cached block costs the control plane: bytes in Python, and nanoseconds to look up, file and evict it.

    python benchmarks/prefix_cache.py [--blocks 16384] [--prompt-blocks 256] [--block-size 16]

What is measured, for both indexes, on random tokens (no two prompts begin alike):

- ``bytes_per_block``: what tracemalloc counts for a pool and an index of that many blocks, all of them
  filed, less 4 bytes a token.
- ``lookup_miss_ns`` and ``lookup_hit_ns``: a prompt looked up for the first time, over the blocks of the
  prompt, when nothing of it is cached and when all is; ``lookup_again_ns`` is the hit of a request that
  waits and is looked up again in the next step.
- ``insert_ns`` and ``remove_ns``: a block is filed, and evicted.

Clock: processor time of the thread, the best of several rounds in turn, so that other programs on the machine
add little. Where it flatters: prompts have no extra keys, and the interpreter's caches are warm. The last line
of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
import tracemalloc
from collections.abc import Callable

from options import positive

from minillm.core.blocks import BlockPool
from minillm.core.kv.block_keys import TOKEN_BYTES, BlockKeys, digest128
from minillm.core.kv.index import ROOT, PrefixIndex
from minillm.core.kv.prefix import HashIndex
from minillm.core.kv.radix import RadixIndex

INDEXES: dict[str, Callable[[BlockPool, int], PrefixIndex]] = {"hash": HashIndex, "radix": RadixIndex}


def filled(index: PrefixIndex, pool: BlockPool, prompts: list[list[int]], block_size: int) -> list[int]:
    """File the whole prompts; the blocks, each prompt's in order."""
    blocks = []
    for prompt in prompts:
        keys, link = BlockKeys(prompt, (), block_size, digest128), ROOT
        for _ in range(len(prompt) // block_size):
            blocks.append(pool.allocate())
            filed = index.insert(link, blocks[-1], keys)
            assert filed is not None, "two random prefixes have one digest"  # noqa: S101
            link = filed[0]
    return blocks


def bytes_per_block(kind: str, prompts: list[list[int]], block_size: int) -> float:
    """Of pool and index together, without the tokens."""
    num_blocks = sum(len(prompt) for prompt in prompts) // block_size
    tracemalloc.start()
    pool = BlockPool(num_blocks + 1)
    index = INDEXES[kind](pool, block_size)
    filled(index, pool, prompts, block_size)
    total_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return total_bytes / num_blocks - block_size * TOKEN_BYTES


def nanoseconds(kind: str, prompts: list[list[int]], block_size: int) -> dict[str, float]:
    """One round: each operation over all prompts, a block."""
    num_blocks = sum(len(prompt) for prompt in prompts) // block_size
    pool = BlockPool(num_blocks + 1)
    index = INDEXES[kind](pool, block_size)
    result = {}

    def clocked(name: str, work: Callable[[], object]) -> None:
        started = time.thread_time_ns()
        work()
        result[name] = (time.thread_time_ns() - started) / num_blocks

    def look_up(keys_of_all: list[BlockKeys]) -> None:
        for keys, prompt in zip(keys_of_all, prompts, strict=True):
            index.match(keys, len(prompt) // block_size)

    def fresh() -> list[BlockKeys]:
        return [BlockKeys(prompt, (), block_size, digest128) for prompt in prompts]

    blocks: list[int] = []
    clocked("lookup_miss_ns", lambda: look_up(fresh()))
    clocked("insert_ns", lambda: blocks.extend(filled(index, pool, prompts, block_size)))
    keys_of_all = fresh()
    clocked("lookup_hit_ns", lambda: look_up(keys_of_all))
    clocked("lookup_again_ns", lambda: look_up(keys_of_all))
    clocked("remove_ns", lambda: [index.remove(block) for block in reversed(blocks)])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=positive, default=16384)
    parser.add_argument("--prompt-blocks", type=positive, default=256)
    parser.add_argument("--block-size", type=positive, default=16)
    parser.add_argument("--rounds", type=positive, default=5)
    args = parser.parse_args()
    if args.prompt_blocks > args.blocks:
        parser.error(f"--blocks is {args.blocks}, under --prompt-blocks {args.prompt_blocks}: there is no whole prompt")
    rng = random.Random(0)  # noqa: S311
    tokens = args.prompt_blocks * args.block_size
    prompts = [[rng.randrange(49152) for _ in range(tokens)] for _ in range(args.blocks // args.prompt_blocks)]
    report = {}
    rounds = [{kind: nanoseconds(kind, prompts, args.block_size) for kind in INDEXES} for _ in range(args.rounds)]
    for kind in INDEXES:
        best = {name: round(min(r[kind][name] for r in rounds), 1) for name in rounds[0][kind]}
        report[kind] = {"bytes_per_block": round(bytes_per_block(kind, prompts, args.block_size), 1), **best}
        print(f"{kind:6}", "  ".join(f"{name} {value}" for name, value in report[kind].items()))
    print(json.dumps({"python": platform.python_version(), "machine": platform.machine(), **vars(args), **report}))


if __name__ == "__main__":
    main()
