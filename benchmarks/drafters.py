"""What each drafter yields: acceptance, tokens a step, and time an output token over that without speculation.

    python benchmarks/drafters.py [--model tiny] [--methods draft eagle ...] [--batches 1 8 32] [--record FILE]

What is measured: ``--rounds`` times, in an order that alternates, the engine completes ``--batch`` beginnings of
held-out text greedily in float32, with each method at its default number of draft tokens and without. A fresh
engine each time, so that no drafter remembers an output; its making is left out, prompts are not. One thread; the
clock is its processor time, which is what an idle machine's clock would show. The median of the rounds counts.

How it could lie: a small model writes in loops when it is greedy, which every drafter finds easy (``--temperature
0.8`` does not); a model of a few megabytes stays in the caches, so a step is bound by Python and by arithmetic,
not by memory, and verifying a token costs most of what decoding one does. The last line of stdout is JSON.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and torch are there

import argparse
import datetime
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from minillm.core.config import EngineConfig
from minillm.core.sampling import SamplingParams
from minillm.llm import LLM
from minillm.speculation import METHODS, VERIFICATIONS, Method, Speculate, Verification

HELD_OUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "held_out.txt"
PROMPT_TOKENS = 16


def prompts_of(llm: LLM, count: int) -> list[list[int]]:
    """Beginnings of held-out text, none of which overlaps another."""
    ids = llm.tokenizer.encode(HELD_OUT.read_text(encoding="utf-8"))
    stride = max(PROMPT_TOKENS, len(ids) // count)
    return [ids[at : at + PROMPT_TOKENS] for at in range(0, stride * count, stride)]


def measure(
    llm: LLM, method: Method | None, verification: Verification, batch: int, tokens: int, temperature: float
) -> dict[str, Any]:
    """One run of one method."""
    llm.restart(None if method is None else Speculate(method, verification=verification))
    for i, prompt in enumerate(prompts_of(llm, batch)):
        params = SamplingParams(temperature=temperature, seed=i, max_tokens=tokens, ignore_eos=True)
        llm.engine.add_request(prompt, params)
    started = time.thread_time()
    for _ in llm.engine.run():
        pass
    elapsed_s = time.thread_time() - started
    run = llm.engine.metrics()
    return {
        "us_per_token": elapsed_s / run.output_tokens * 1e6,
        "acceptance_rate": run.acceptance_rate,
        "tokens_per_step": run.tokens_per_step,
        "ids": [request.output_ids for request in llm.engine.requests.values()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--backend", default="numpy", choices=("numpy", "torch"))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=96, help="of each output")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--verification", default="draw", choices=VERIFICATIONS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path, help="write the result here as well")
    options = parser.parse_args()
    config = EngineConfig(prefix_caching=False, record_trace=False)
    llm = LLM(options.model, backend=options.backend, dtype="float32", device="cpu", config=config)
    variants: list[Method | None] = [None, *options.methods]
    rows = []
    for batch in options.batches:
        found: dict[Method | None, list[dict[str, Any]]] = {method: [] for method in variants}
        for round_ in range(options.rounds):
            for method in variants if round_ % 2 == 0 else variants[::-1]:
                found[method].append(
                    measure(llm, method, options.verification, batch, options.tokens, options.temperature)
                )
        plain = statistics.median(one["us_per_token"] for one in found[None])
        for method, runs in found.items():
            time_us = statistics.median(one["us_per_token"] for one in runs)
            row = {
                "batch": batch,
                "method": method or "none",
                "acceptance_rate": runs[0]["acceptance_rate"],
                "tokens_per_step": round(runs[0]["tokens_per_step"], 3),
                "us_per_token": round(time_us, 1),
                "speedup": round(plain / time_us, 3),
                "same_ids": sum(a == b for a, b in zip(runs[0]["ids"], found[None][0]["ids"], strict=True)),
            }
            rows.append(row)
            accepted = "" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:6.1%}"
            print(
                f"batch {batch:3} {row['method']:7} accepted {accepted:>6} {row['tokens_per_step']:5.2f} tokens/step "
                f"{row['us_per_token']:8.1f} us/token x{row['speedup']:.2f} ids equal {row['same_ids']}/{batch}",
                flush=True,
            )
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        **{
            name: getattr(options, name)
            for name in ("model", "backend", "tokens", "temperature", "verification", "rounds")
        },
        "rows": rows,
    }
    if options.record is not None:
        options.record.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
