"""The Chrome trace of a run: valid, its spans the states of the requests, its steps those that ran."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

from core_harness import Case, Job, drive, random_case
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.core.config import EngineConfig
from minillm.core.observe.chrome_trace import chrome_trace
from minillm.core.sampling import SamplingParams


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def spans_of(trace: dict[str, Any]) -> dict[str, list[tuple[str, float, float]]]:
    """By track: name, start and end in seconds, in order."""
    entries = trace["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in entries if e["name"] == "thread_name"}
    found: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for e in entries:
        if e["ph"] == "X":
            found[names[e["pid"], e["tid"]]].append((e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6))
    return {track: sorted(spans, key=lambda span: span[1:]) for track, spans in found.items()}


def test_a_run_done_by_hand() -> None:
    """One place, steps of a second: a waits for nobody, b for a."""
    work = (Job((1, 0), greedy(2)), Job((0,), greedy(1), arrival_s=1.0))
    outcome = drive(Case(EngineConfig(num_blocks=9, max_running_requests=1), work))
    assert spans_of(chrome_trace(outcome.engine.trace.events)) == {
        "steps": [("step 0", 0.0, 1.0), ("step 1", 1.0, 2.0), ("step 2", 2.0, 3.0)],
        "j0": [("waiting", 0.0, 0.0), ("running", 0.0, 2.0)],
        "j1": [("waiting", 1.0, 2.0), ("running", 2.0, 3.0)],
    }


def test_swapped_requests_have_a_span_of_their_own() -> None:
    work = tuple(Job((i, 0, 1), greedy(7)) for i in range(3))
    config = EngineConfig(block_size=1, num_blocks=17, prefix_caching=False, preemption="swap", num_host_blocks=20)
    outcome = drive(Case(config, work, vocab_size=30))
    spans = spans_of(chrome_trace(outcome.engine.trace.events))
    out = [event.time_s for event in outcome.engine.trace.events if event.kind == "swap_out"]
    assert sorted(start for track in spans.values() for name, start, _ in track if name == "swapped out") == sorted(out)
    assert out


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_any_run_is_valid_and_says_what_the_metrics_say(seed: int) -> None:
    outcome = drive(random_case(random.Random(seed)))
    engine = outcome.engine
    trace = json.loads(json.dumps(chrome_trace(engine.trace.events)))
    entries = trace["traceEvents"]
    assert all(entry["dur"] >= 0 for entry in entries if entry["ph"] == "X")
    assert all(entry["ts"] >= 0 for entry in entries if entry["ph"] != "M")
    tracks = spans_of(trace)
    for track, spans in tracks.items():
        for (_, _, end), (_, start, _) in pairwise(spans):
            # Steps overlap where the next is planned while one runs.
            assert start >= end or (track == "steps" and engine.config.overlap)
    assert len(tracks.get("steps", [])) == engine.num_steps
    tokens = sum(entry["name"] == "token" for entry in entries)
    told = [r for r in engine.requests.values() if r.params.beam_width is None]
    assert tokens >= sum(r.num_output for r in told)
    for request in engine.requests.values():
        preempted = sum(
            e["name"] == "preempt" and e["args"]["request_id"] == request.request_id for e in entries if e["ph"] == "i"
        )
        assert preempted == request.num_preemptions
    # Every counter is back to nothing at the end, and never below it.
    counters = [entry["args"] for entry in entries if entry["name"] == "requests" and entry["ph"] == "C"]
    assert all(value >= 0 for counter in counters for value in counter.values())
    assert not counters or not any(counters[-1].values())


def test_spans_that_are_open_end_with_the_last_event() -> None:
    outcome = drive(Case(EngineConfig(num_blocks=9), (Job((1, 0), greedy(4)),)))
    events = [event for event in outcome.engine.trace.events if event.kind != "finish"]
    assert spans_of(chrome_trace(events))["j0"][-1] == ("running", 0.0, 4.0)
    assert chrome_trace([])["traceEvents"] != []
