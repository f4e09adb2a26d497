"""Faults in refusals, in what a run records of itself, and in the checks between steps."""

from __future__ import annotations

from mutation import Edit

from minillm.core import engine
from minillm.core.lifecycle import Lifecycle
from minillm.core.observe import chrome_trace, metrics
from minillm.core.observe.replay import Replay
from minillm.speculate import draft

# Killed by the tests of the engine's loop.
LOOP_MUTANTS: dict[str, list[Edit]] = {
    "the way out of a refusal one too long": [Edit(engine, "check_room", "* block_size + 1", "* block_size + 2")],
    "the last output token needs a block": [
        Edit(engine, "check_room", "(0, max_total_tokens - 1)", "(0, max_total_tokens)")
    ],
    "a prompt as long as the model taken": [
        Edit(engine, "check_prompt", "len(prompt) >= max_model_len", "len(prompt) > max_model_len")
    ],
    "an id beyond the vocabulary taken": [
        Edit(engine, "check_prompt", "max(prompt) >= vocab_size", "max(prompt) > vocab_size")
    ],
    "a salt that cannot be hashed taken": [
        Edit(engine, "check_extra_keys", 'None if salt is None else ExtraKey("salt", salt)', "None")
    ],
    "an id given out twice": [Edit(Lifecycle, "names", "self.requests.keys().isdisjoint(names)", "True")],
    "more tokens than the model takes": [Edit(engine, "longest_request", "if length > model_limit", "if False")],
    "tables of others pass the check": [
        Edit(engine, "check_integrity", "if set(kv.block_tables) != {request", "if False and {request")
    ],
    "a table of another length passes the check": [
        Edit(engine, "check_integrity", "if len(blocks) != -(-tokens // kv.block_size)", "if False")
    ],
    "the wait for an abort counts": [
        Edit(metrics, "request_metrics", "times[-1] if times else request.finished_s", "request.finished_s")
    ],
    "the first token counts in the time of each": [
        Edit(metrics, "request_metrics", "(len(times) - 1) if", "len(times) if")
    ],
    "a step of several tokens counts as several": [
        Edit(metrics, "request_metrics", "accumulate(request.chunk_sizes)", "range(1, len(times) + 1)")
    ],
    "hits counted of requests that never ran": [
        Edit(engine, "run_metrics", "[r for r in requests if r.admitted_s is not None]", "requests")
    ],
}

# Killed by the audited workloads, which replay each run step by step.
REPLAY_MUTANTS: dict[str, list[Edit]] = {
    "an evicted block is replayed as cached": [Edit(Replay, "_apply", "self.cached[block] = False", "pass")],
    "a preempted request is replayed with its tokens": [
        Edit(
            Replay,
            "_apply",
            'case "preempt":\n            self.computed[request_id] = 0',
            'case "preempt":\n            pass',
        )
    ],
    "a copy is replayed as a second block": [Edit(Replay, "_apply", "self.holders[source].remove(request_id)", "pass")],
    "a draft is replayed as nothing": [Edit(Replay, "_apply", " + self._drafted.pop(request_id, 0)", "")],
}

# Killed by the tests of exported traces.
TRACE_MUTANTS: dict[str, list[Edit]] = {
    "a step begins when it lands": [
        Edit(chrome_trace._Writer, "_land", "self._steps.pop(event.step, self._now_us)", "self._now_us")
    ],
    "a span that is open is lost": [Edit(chrome_trace._Writer, "finished", "self._begin(request_id, None)", "pass")],
    "who left is still counted": [Edit(chrome_trace._Writer, "_begin", "self._counts[name] -= 1", "pass")],
}

# Killed by the tests of drafters.
TREE_MUTANTS: dict[str, list[Edit]] = {
    "a parent that comes later": [Edit(draft, "check_parents", "<= parent < node", "<= parent")],
    "the longest path one too short": [Edit(draft, "longest_path", "default=-1) + 1", "default=-1)")],
}
