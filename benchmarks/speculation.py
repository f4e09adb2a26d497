"""What speculation gains on this machine: acceptance, tokens a step and time, for each drafter and batch.

    python benchmarks/speculation.py [--models tiny smollm2] [--batches 1 8 32] [--record FILE]

What is measured: greedy decode through the whole engine, from the step after all requests have their first
token; drafting is in it, and so is the draft model's reading of the prompts. Each speed is a ratio to the
same requests without speculation, the two in one process, variants in an order that alternates from round to
round; medians of the rounds, with their ends. Ids are compared with those of the plain run.

Two kinds of prompts: ``prose``, beginnings that the model goes on with, and ``copy``, texts that it is asked
to write again, as edits and quotes do. Batches take the prompts in turn, each with a number of its own.

With ``--threads 1`` the clock is the processor time of the thread, which other programs on the machine change
little. How it could lie: a model that lies in the processor's cache (``tiny``) spends its steps on calls, not
on reading weights, so its ratios are those of calls; greedy answers of small models repeat themselves, which
flatters the drafters that look back. The last line of stdout is JSON. ``--record
visualizers/figures/speculation_gain.json`` writes it, with machine and date, where the figure of that name reads it.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from decode_speed import available
from machine import cpu_name, last_level_cache_mib, report
from options import positive, record_file, those_here, two_or_more

from minillm.core.config import EngineConfig
from minillm.core.observe.metrics import draft_counts
from minillm.core.sampling import SamplingParams
from minillm.llm import LLM
from minillm.speculation import BUNDLED_DRAFTS, METHODS, Method, Speculate

BACKENDS = {"tiny": "numpy"}  # others run on torch
PROSE = (
    "The report of the Secretary shows that",
    "Congress has passed a law which",
    "Our relations with other nations are",
    "In the last year the public debt",
)
PASSAGES = (
    "The committee met on the third of May and heard the report of the treasurer. The debt was made smaller by a "
    "tenth, and two bridges were repaired.",
    "Take four ships from the northern harbor and two from the southern one. Let them meet at the cape before the "
    "first of June and wait there for orders.",
    "The lands west of the river are open to settlers. A claim is made at the office in person, and it is lost if no "
    "house stands on it after two years.",
    "The line from the coast to the capital carries mail every day but Sunday. A letter of half an ounce costs three "
    "cents, and each further half ounce two cents.",
)


def prompts_of(kind: str, batch: int) -> list[str]:
    """Prompts of a batch: no two are equal."""
    if kind == "prose":
        return [f"{i + 1}. {PROSE[i % len(PROSE)]}" for i in range(batch)]
    passages = [f"Number {i + 1}. {PASSAGES[i % len(PASSAGES)]}" for i in range(batch)]
    return [f"Write this text again.\n\nText: {passage}\n\nAgain: Number" for passage in passages]


def decode(
    llm: LLM, prompts: list[str], tokens: int, options: Speculate | None, clock: Callable[[], float]
) -> dict[str, Any]:
    """One run: its ids, what was drafted, and the time from everybody's first token on."""
    llm.restart(options)
    engine = llm.engine
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    requests = [engine.add_request(llm.encode(prompt), params) for prompt in prompts]
    while not all(request.token_times_s for request in requests):
        engine.step()
    before = sum(request.num_output for request in requests)
    started = clock()
    for _ in engine.run():
        pass
    elapsed_s = clock() - started
    metrics, counts = engine.metrics(), draft_counts(requests)
    return {
        "ids": [request.output_ids for request in requests],
        "tokens_per_s": (sum(request.num_output for request in requests) - before) / elapsed_s,
        "tokens_per_step": metrics.tokens_per_step,
        "acceptance_rate": metrics.acceptance_rate,
        "drafts": counts.drafts_at[0] if counts.drafts_at else 0,
    }


def measure(
    model: str, wanted: list[Method], batches: list[int], tokens: int, rounds: int, draft_tokens: int, clock: Any
) -> list[Any]:
    """All variants of one model, in this process."""
    backend = BACKENDS.get(model, "torch")
    longest = 512
    config = EngineConfig(
        block_size=16,
        num_blocks=1 + max(batches) * -(-longest // 16),
        max_model_len=longest,
        max_running_requests=max(batches),
        prefix_caching=False,  # or the second run would find the prompts of the first
        record_trace=False,
    )
    llm = LLM(model, backend=backend, dtype="float32", device="cpu", config=config)
    methods = [m for m in wanted if m in ("ngram", "suffix") or model in BUNDLED_DRAFTS]  # the others need weights
    rows = []
    for kind in ("prose", "copy"):
        for batch in batches:
            prompts = prompts_of(kind, batch)
            variants = [None, *(Speculate(method, draft_tokens=draft_tokens) for method in methods)]
            runs: dict[str, list[dict[str, Any]]] = {}
            for number in range(rounds):
                for options in variants if number % 2 == 0 else variants[::-1]:
                    name = "plain" if options is None else options.method
                    runs.setdefault(name, []).append(decode(llm, prompts, tokens, options, clock))
            plain = [run["tokens_per_s"] for run in runs["plain"]]
            for name, own in runs.items():
                speeds = [run["tokens_per_s"] for run in own]
                pairs = zip(own[0]["ids"], runs["plain"][0]["ids"], strict=True)
                rows.append(
                    {
                        "model": model,
                        "backend": backend,
                        "prompts": kind,
                        "batch": batch,
                        "drafter": name,
                        "draft_tokens": 0 if name == "plain" else draft_tokens,
                        "tokens_per_s": statistics.median(speeds),
                        "speedup": statistics.median(speeds) / statistics.median(plain),
                        "speedup_ends": [min(speeds) / max(plain), max(speeds) / min(plain)],
                        "tokens_per_step": own[0]["tokens_per_step"],
                        "acceptance_rate": own[0]["acceptance_rate"],
                        "drafts": own[0]["drafts"],
                        "equal_outputs": sum(a == b for a, b in pairs),
                    }
                )
                r = rows[-1]
                print(
                    f"{model:8} {kind:6} {batch:3} {name:7} {r['tokens_per_s']:8.1f} tokens/s  x{r['speedup']:.2f}  "
                    f"{r['tokens_per_step']:.2f} a step  "
                    + ("" if r["acceptance_rate"] is None else f"{r['acceptance_rate']:.0%} accepted  ")
                    + f"{r['equal_outputs']} of {batch} outputs equal",
                    flush=True,
                )
    llm.close()
    return rows


def threads_limited(threads: int) -> AbstractContextManager[Any]:
    """At most so many threads of the arithmetic libraries."""
    try:
        import torch
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    torch.set_num_threads(threads)
    limits: AbstractContextManager[Any] = threadpool_limits(limits=threads)
    return limits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny", "smollm2"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 8, 32])
    parser.add_argument("--tokens", type=two_or_more, default=64, help="output tokens of each request")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--draft-tokens", type=positive, default=4)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--record", type=record_file, help="file to write the results to, with date and command")
    options = parser.parse_args()
    models = those_here(options.models, available, parser)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    load = os.getloadavg()[0]
    rows: list[Any] = []
    with threads_limited(options.threads):
        for model in models:
            rows += measure(
                model,
                options.methods,
                options.batches,
                options.tokens,
                options.rounds,
                options.draft_tokens,
                clock,
            )
    machine = {
        "threads": options.threads,
        "clock": "processor time" if options.threads == 1 else "wall",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "last_level_cache_mib": last_level_cache_mib(),
        "load_average": load,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    found = {"machine": machine, "output_tokens": options.tokens, "results": rows}
    report(found, options.record)


if __name__ == "__main__":
    main()
