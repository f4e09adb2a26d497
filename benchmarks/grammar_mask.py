"""What a token mask costs: JSON schemas over a model's real vocabulary, the engine's own masks beside llguidance's.

    python benchmarks/grammar_mask.py [--model smollm2] [--outputs 6] [--max-tokens 120] [--record FILE]

The model writes outputs for each schema at temperature 1 (seeds 0, 1, ...). Then each grammar engine goes through
the same token ids, and of every step the time is taken for the mask and for the state after the token together:

- ``compile_ms``: from the schema to a grammar; each engine's tree of the vocabulary (ours: ``vocabulary_ms``) is made
  once a model and not counted.
- ``first``: the first output of a new grammar, when nothing is known of any state.
- ``later``: all other outputs of the same grammar, most of whose states are new as well.
- ``again``: all outputs once more, so that every mask was made before.

Times are processor time of the thread; each engine goes first in every other round, and of several rounds (each
with new grammars) a step counts with its best. Where it flatters: one request at a time, warm caches of the
processor. Where the two differ: the engine's own masks keep the tokens left in view, llguidance's do not. The last
line of stdout is JSON. ``--record visualizers/figures/structured_output.json`` writes it, with machine and date,
where the figure of that name reads it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from importlib.metadata import version
from typing import Any

from machine import cpu_name, report
from options import positive, record_file, two_or_more

from minillm.core.sampling import SamplingParams
from minillm.grammar import Grammar, Vocabulary
from minillm.llm import LLM
from minillm.structured import GrammarEngine, compile_grammar, vocabulary_of

SCHEMAS: dict[str, dict[str, Any]] = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 40},
            "email": {"type": "string", "pattern": "^[a-z0-9.]{1,20}@[a-z]{1,12}[.](com|org)$"},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "role": {"enum": ["admin", "editor", "reader"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
            "note": {"type": "string", "maxLength": 200},
        },
        "required": ["name", "email", "age", "role", "tags"],
    },
    "order": {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 1},
            "status": {"enum": ["new", "paid", "shipped", "returned"]},
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "article": {"type": "string", "maxLength": 30},
                        "count": {"type": "integer", "minimum": 1, "maximum": 99},
                        "price": {"type": "number", "minimum": 0, "maximum": 10000},
                    },
                    "required": ["article", "count", "price"],
                },
                "minItems": 1,
                "maxItems": 5,
            },
            "gift": {"type": "boolean"},
        },
        "required": ["id", "status", "lines", "gift"],
    },
    "free text": {
        "type": "object",
        "properties": {"title": {"type": "string"}, "body": {"type": "string"}, "next": {"$ref": "#"}},
        "required": ["title", "body"],
    },
}
ENGINES: tuple[GrammarEngine, ...] = ("minillm", "llguidance")
PARTS = ("first", "later", "again")


def written(llm: LLM, schema: dict[str, Any], num_outputs: int, max_tokens: int) -> list[list[int]]:
    """Token ids of outputs that the model writes for a schema."""
    grammar = llm.compile_grammar("json_schema", schema)
    prompt = llm.encode(f"JSON that matches the schema {json.dumps(schema)}:\n")
    params = [
        SamplingParams(temperature=1, seed=seed, max_tokens=max_tokens, grammar=grammar) for seed in range(num_outputs)
    ]
    requests = [llm.engine.add_request(prompt, each) for each in params]
    for _ in llm.engine.run():
        pass
    return [request.output_ids for request in requests]


def steps_us(grammar: Grammar, output: list[int], max_tokens: int) -> list[float]:
    """Each step of one output: the mask, and the state after the token."""
    state, times = grammar.start(), []
    for index, token_id in enumerate(output):
        started = time.thread_time_ns()
        grammar.allowed(state, max_tokens - index)
        state = grammar.advance(state, token_id)
        times.append((time.thread_time_ns() - started) / 1e3)
        if state is None:
            raise SystemExit(f"token {index} of an output is not allowed by {type(grammar).__name__}")
    return times


def round_of(
    engine: GrammarEngine, schema: dict[str, Any], vocabulary: Vocabulary, outputs: list[list[int]], max_tokens: int
) -> dict[str, list[float]]:
    started = time.thread_time_ns()
    grammar = compile_grammar("json_schema", schema, vocabulary, engine)
    compile_us = (time.thread_time_ns() - started) / 1e3
    first = steps_us(grammar, outputs[0], max_tokens)
    later = [us for output in outputs[1:] for us in steps_us(grammar, output, max_tokens)]
    again = [us for output in outputs for us in steps_us(grammar, output, max_tokens)]
    return {"compile": [compile_us], "first": first, "later": later, "again": again}


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)

    def at(share: float) -> float:
        return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 1)

    return {"median_us": at(0.5), "p99_us": at(0.99), "max_us": at(1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--outputs", type=two_or_more, default=6)
    parser.add_argument("--max-tokens", type=positive, default=120)
    parser.add_argument("--rounds", type=positive, default=4)
    parser.add_argument("--record", type=record_file)
    options = parser.parse_args()
    llm = LLM(options.model)
    started = time.thread_time_ns()
    vocabulary = vocabulary_of(llm.tokenizer, llm.engine.capacity.vocab_size)
    vocabulary_ms = round((time.thread_time_ns() - started) / 1e6, 1)
    results: list[dict[str, Any]] = []
    print(f"{'':10}{'':12}{'compile ms':>11}" + "".join(f"{n + ', us: median/p99/max':>30}" for n in PARTS))
    for name, schema in SCHEMAS.items():
        outputs = written(llm, schema, options.outputs, options.max_tokens)
        rounds: dict[GrammarEngine, list[dict[str, list[float]]]] = {engine: [] for engine in ENGINES}
        for number in range(options.rounds):
            for engine in ENGINES if number % 2 == 0 else ENGINES[::-1]:
                rounds[engine].append(round_of(engine, schema, vocabulary, outputs, options.max_tokens))
        for engine, found in rounds.items():
            best = {part: [min(times) for times in zip(*(r[part] for r in found), strict=True)] for part in found[0]}
            parts = {part: summary(best[part]) for part in PARTS}
            compile_ms = round(best["compile"][0] / 1e3, 1)
            row = {"schema": name, "engine": engine, "steps": sum(map(len, outputs)), "compile_ms": compile_ms}
            results.append({**row, **parts})
            cells = "".join(f"{'/'.join(f'{us:,.0f}' for us in part.values()):>30}" for part in parts.values())
            print(f"{name:10}{engine:12}{compile_ms:11,.1f}{cells}")
    found = {
        "machine": {"cpu": cpu_name(), "python": platform.python_version(), "load_average": os.getloadavg()[0]},
        "llguidance": version("llguidance"),
        "model": options.model,
        "vocabulary": vocabulary.size,
        "vocabulary_ms": vocabulary_ms,
        "results": results,
    }
    report(found, options.record)


if __name__ == "__main__":
    main()
