"""Faults in the detokenizer and in the one place where an output ends: random texts kill them."""

from __future__ import annotations

import text_callers
from mutation import Edit

from minillm.core import stops
from minillm.core.detokenizer import Detokenizer

TEXT_MUTANTS: dict[str, list[Edit]] = {
    "half a character comes out": [
        Edit(
            Detokenizer,
            "push",
            "self._decoder.decode(text_bytes(self._tokenizer, token_id))",
            "text_bytes(self._tokenizer, token_id).decode('utf-8', 'replace')",
        )
    ],
    "half a stop comes out": [Edit(Detokenizer, "_release", "self._stop_prefix_length(text)", "0")],
    "a character too few is held back": [
        Edit(Detokenizer, "_stop_prefix_length", "self._stop)) - 1", "self._stop)) - 2")
    ],
    "the shortest beginning of a stop is held back": [
        Edit(Detokenizer, "_stop_prefix_length", "range(longest, 0, -1)", "range(1, longest + 1)")
    ],
    "stops within one piece only": [Edit(Detokenizer, "_find_stop", "max(0, seen - len(stop) + 1)", "seen")],
    "of several stops the first to begin": [
        Edit(Detokenizer, "_find_stop", "(start + len(stop), start)", "(start, start)")
    ],
    "what was held back is lost": [Edit(Detokenizer, "flush", "self._held + self", "self")],
    "half a character behind the stop": [Edit(Detokenizer, "_release", "self._decoder.reset()", "pass")],
    "the stop is in the text": [Edit(Detokenizer, "_release", "text[:cut], True", "text, True")],
    "a stop string before min_tokens": [
        Edit(stops, "_text_and_reason", "may_stop=num_output >= params.min_tokens", "may_stop=True")
    ],
    "one token more than max_tokens": [
        Edit(stops, "_text_and_reason", "num_output >= params.max_tokens", "num_output > params.max_tokens")
    ],
    "the end of the sequence goes on": [
        Edit(stops, "_text_and_reason", "if token_id in request.stop_ids:", "if False:")
    ],
    "tokens after the end": [Edit(text_callers, "commit_tokens", "break", "pass")],
}
