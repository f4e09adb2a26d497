"""Decode speed of the numeric backends, as a share of the memory bandwidth measured in the same run.

    python benchmarks/decode_speed.py [--models tiny smollm2] [--backends numpy torch] [--batches 1 8] [--record FILE]

What is measured: steps that decode one token for each of ``--batch`` sequences, driven without the
engine, so that scheduling is not in it. Each variant runs in a fresh process, in an order that
alternates from round to round; the bandwidth is measured before and after each variant, and the
highest of the run is the measure of all. Prefill and the first decode step are left out; ids are
greedy, an end token stops nothing, sequences share no prefix.
MBU = (weights + K/V read) a step / step time / bandwidth.

With ``--threads 1`` the clock is the processor time of the one thread: that is what an idle machine's
clock would show, on a busy one too, but for the caches and the memory that others use.

How it could lie: a model smaller than the last-level cache reads no memory at all, so its MBU may
pass 1 and says little (compare ``bytes_per_step`` with ``last_level_cache_mib``); other programs on
the machine slow whichever variant they meet, hence the spread. The last line of stdout is JSON.
``--record visualizers/figures/decode_ceiling.json`` writes it, with the date, where the figure of that name reads it;
there belong models that no cache holds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from machine import cpu_name, last_level_cache_mib, report
from options import positive, record_file, those_here

from minillm import hub
from minillm.backends import BACKENDS, create_backend
from minillm.backends.plans import Chunk, plan_of
from minillm.config import Locations
from minillm.models.load import load_model

PROMPT_TOKENS = 64
BLOCK_SIZE = 16
READ_BYTES = 512 * 2**20
VARIANT = ("model", "backend", "dtype", "batch")


def read_bandwidth(threads: int, clock: Callable[[], float], repeats: int = 5) -> float:
    """Bytes a second that the threads together read from memory: the best of a few passes over 512 MiB."""
    parts = [np.ones(READ_BYTES // 4 // threads, np.float32) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            started = clock()
            if threads == 1:
                np.dot(parts[0], parts[0])
            else:
                list(pool.map(np.add.reduce, parts))  # NumPy releases the interpreter's lock
            best = max(best, READ_BYTES / (clock() - started))
    return best


def measure(model_name: str, backend_name: str, dtype: str, batch: int, steps: int, threads: int) -> dict[str, Any]:
    """One variant, in this process."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    before = read_bandwidth(threads, clock)
    model = load_model(hub.resolve(model_name, Locations()))
    backend: Any = create_backend(model, backend_name, dtype, "cpu")
    per_sequence = -(-(PROMPT_TOKENS + steps + 2) // BLOCK_SIZE)
    backend.load(block_size=BLOCK_SIZE, num_blocks=1 + batch * per_sequence)
    capacity = backend.capacity()
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, capacity.vocab_size, PROMPT_TOKENS).tolist() for _ in range(batch)]
    tables = [list(range(1 + i * per_sequence, 1 + (i + 1) * per_sequence)) for i in range(batch)]
    computed, times = 0, []
    for _ in range(steps + 2):
        chunks = [Chunk(s, t, computed) for s, t in zip(sequences, tables, strict=True)]
        plan = plan_of(chunks, BLOCK_SIZE)
        started = clock()
        result = backend.run(plan)
        times.append(clock() - started)
        computed = len(sequences[0])
        for sequence, token in zip(sequences, result.token_ids, strict=True):
            sequence.append(token)
    decode = times[2:]  # the prefill and the first decode are left out
    step_s = statistics.median(decode)
    context = PROMPT_TOKENS + 2 + steps / 2
    embed_bytes = (
        0
        if model.spec.tied_head
        else capacity.weight_bytes // model.weights.parameters * (model.spec.vocab_size * model.spec.hidden)
    )
    step_bytes = capacity.weight_bytes - embed_bytes + batch * context * capacity.kv_bytes_per_token
    bandwidth = max(before, read_bandwidth(threads, clock))
    return {
        "model": model_name,
        "backend": backend_name,
        "dtype": dtype,
        "batch": batch,
        "tokens_per_s": batch / step_s,
        "step_ms": step_s * 1e3,
        "step_ms_quartiles": [q * 1e3 for q in statistics.quantiles(decode, n=4)[::2]],
        "best_step_ms": min(decode) * 1e3,
        "bandwidth_gb_per_s": bandwidth / 1e9,
        "bytes_per_step": round(step_bytes),
    }


def available(name: str) -> bool:
    return any(e.name == name and e.path is not None for e in hub.catalogue(Locations()))


def run_fresh(variant: dict[str, Any], steps: int, threads: int) -> dict[str, Any]:
    arguments = [f"--{key}={value}" for key, value in variant.items()]
    command = [sys.executable, __file__, "--one", f"--steps={steps}", f"--threads={threads}", *arguments]
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **limits})
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def best_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The round with the median speed, with the spread over rounds."""
    ordered = sorted(rounds, key=lambda r: r["tokens_per_s"])
    return {**ordered[len(ordered) // 2], "tokens_per_s_rounds": [r["tokens_per_s"] for r in ordered]}


def with_one_bandwidth(rows: list[dict[str, Any]], results: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each row's speed as a share of the highest bandwidth that was measured in the whole run.

    Other programs slow a measurement and never quicken it: the highest is the nearest to the machine's.
    """
    gb_per_s = max(r["bandwidth_gb_per_s"] for rounds in results.values() for r in rounds)

    def share(row: dict[str, Any], step_ms: float) -> float:
        return float(row["bytes_per_step"] / (step_ms / 1e3) / (gb_per_s * 1e9))

    return [
        {**r, "bandwidth_gb_per_s": gb_per_s, "mbu": share(r, r["step_ms"]), "mbu_best": share(r, r["best_step_ms"])}
        for r in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny", "smollm2"])
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch"], choices=BACKENDS)
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 8])
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--steps", type=positive, default=48)
    parser.add_argument("--record", type=record_file, help="file to write the results to, with date and command")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    for name in VARIANT:
        parser.add_argument(f"--{name}", type=int if name == "batch" else str, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*(getattr(options, name) for name in (*VARIANT, "steps", "threads")))))
        return
    variants = [
        {"model": m, "backend": b, "dtype": "float32", "batch": n}
        for m in those_here(options.models, available, parser)
        for n in options.batches
        for b in options.backends
    ]
    results: dict[int, list[dict[str, Any]]] = {i: [] for i in range(len(variants))}
    for round_number in range(options.rounds):
        order = list(enumerate(variants))
        for i, variant in order if round_number % 2 == 0 else reversed(order):
            results[i].append(run_fresh(variant, options.steps, options.threads))
    rows = with_one_bandwidth([best_of(rounds) for rounds in results.values()], results)
    print(f"{'model':9} {'backend':7} {'batch':>5} {'tokens/s':>9} {'step ms':>8} {'GB/s read':>9} {'MBU':>5}")
    for r in rows:
        print(
            f"{r['model']:9} {r['backend']:7} {r['batch']:5} {r['tokens_per_s']:9.1f} {r['step_ms']:8.2f} "
            f"{r['bandwidth_gb_per_s']:9.1f} {r['mbu']:5.2f}"
        )
    machine = {
        "threads": options.threads,
        "clock": "processor time" if options.threads == 1 else "wall",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "last_level_cache_mib": last_level_cache_mib(),
        "load_average": os.getloadavg()[0],
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    found = {"machine": machine, "prompt_tokens": PROMPT_TOKENS, "results": rows}
    report(found, options.record)


if __name__ == "__main__":
    main()
