"""Faults in sampling and in several outputs of a prompt."""

from __future__ import annotations

import sampling_reference
from mutation import Edit

from minillm.core import builder as rows
from minillm.core import sampling
from minillm.core.commit import Committer
from minillm.core.kv_manager import KVManager
from minillm.core.lifecycle import Lifecycle
from minillm.core.outputs import beams
from minillm.core.outputs.beams import BeamSearch
from minillm.core.sampling import draws
from minillm.core.sampling.shaping import Transform
from minillm.core.scheduler import Scheduler

# Killed by the audited fuzz.
DRAW_MUTANTS: dict[str, list[Edit]] = {
    "penalties count the prompt": [Edit(draws, "transform_for", "Counter(output)", "Counter(request.token_ids)")],
    "repetition forgets the prompt": [
        Edit(draws, "transform_for", "request.distinct_prompt_ids if params.repetition_penalty != 1 else ()", "()")
    ],
    "an end before min_tokens": [Edit(draws, "transform_for", "< params.min_tokens", "< 0")],
    "no end right after min_tokens": [Edit(draws, "transform_for", "< params.min_tokens", "<= params.min_tokens")],
    "bias lost": [Edit(draws, "transform_for", "bias=dict(params.logit_bias)", "bias={}")],
    "bad word known by its end": [
        Edit(draws, "_completing", "if before == list(output[len(output) - len(before) :]):", "if True:")
    ],
    "prompt token scored by itself": [Edit(draws, "_add_prompt_draws", "[position + 1]", "[position]")],
    "prompt tokens scored twice": [
        Edit(draws, "_add_prompt_draws", "max(start, len(request.prompt_logprobs))", "start")
    ],
    "others of a cut group stay": [Edit(Lifecycle, "end", "group.depends_on(request)", "False")],
    "prompt scores from the cache": [Edit(KVManager, "_lookup", " or request.wants_prompt_logits", "")],
}  # fmt: skip

# Killed by workloads of searches and samples that hardly fit.
OUTPUT_MUTANTS: dict[str, list[Edit]] = {
    "beams swapped one by one": [Edit(Scheduler, "_swaps", "and not is_beam", "")],
    "beams preempted apart": [Edit(Scheduler, "_preempt", "together(request)", "[request]")],
    "beams admitted apart": [Edit(Scheduler, "_admit_waiting", "together(request)", "[request]")],
    "scheduled with no token": [Edit(Scheduler, "_admit_waiting", "if num_tokens:", "if True:")],
    "room for the first beam alone": [
        Edit(Scheduler, "_fits", "for one, its_hit in hits", "for one, its_hit in hits[:1]")
    ],
    "ends of any rank": [Edit(BeamSearch, "select", "elif place < self.width:", "else:")],
    "score not normalized": [Edit(BeamSearch, "_finish", " / len(tokens) ** length_penalty", "")],
    "search goes on": [Edit(BeamSearch, "select", "len(self.hypotheses) >= self.width", "False")],
    "beams left out at the end": [Edit(BeamSearch, "select", "if is_last and len", "if False and len")],
    "two beams on a seat": [Edit(BeamSearch, "reseat", "if parent not in seats:", "if True:")],
    "dead beams keep their blocks": [Edit(BeamSearch, "reseat", "scheduler.retire(member)", "pass")],
    "ranked by the last token": [Edit(BeamSearch, "_ranked", "-(so_far + logprob)", "-logprob")],
    "early ends taken": [Edit(BeamSearch, "_ranked", "beam.num_output < beam.params.min_tokens", "False")],
    "too few candidates": [Edit(rows, "add_draws", "width + len(request.stop_ids)", "width")],
    "fork forgets the output": [Edit(beams, "fork", "parent.token_ids.copy()", "list(parent.prompt_ids)")],
    "fork forgets the score": [Edit(beams, "fork", "parent.logprobs.copy()", "[]")],
    "samples draw one number": [Edit(draws, "_add_next_draws", "_add_draw(plan, member,", "_add_draw(plan, request,")],
    "samples take no place": [Edit(Scheduler, "_has_place", "count + request.group.num_bringing", "count")],
    "places owed are given away": [
        Edit(Scheduler, "_has_place", " + sum(group.num_joining for group in self._groups)", "")
    ],
    "an ended sample goes on": [Edit(Committer, "_drawing", "if not member.is_finished:", "if True:")],
}  # fmt: skip

# Killed by random logits, transforms and parameters.
SAMPLING_MUTANTS: dict[str, list[Edit]] = {
    "presence counted": [
        Edit(Transform, "penalties", "n * self.frequency_penalty + self.presence_penalty", "n * self.presence_penalty")
    ],
    "repetition rewards below zero": [Edit(sampling_reference, "shaped", "if logit > 0", "if True")],
    "mask the wrong way": [Edit(sampling_reference, "shaped", "(i & 7)", "(7 - (i & 7))")],
    "bias for a logit": [Edit(sampling_reference, "shaped", "result[token_id] += bias", "result[token_id] = bias")],
    "ties by the higher id": [Edit(sampling_reference, "distribution", "(-w[1], w[0])", "(-w[1], -w[0])")],
    "top-k not renormalized": [
        Edit(sampling_reference, "distribution", "ranked = _normalized(ranked)\n    if params.top_p", "if params.top_p")
    ],
    "nucleus without the token that reaches it": [
        Edit(sampling_reference, "distribution", "(ranked, params.top_p)]", "(ranked, params.top_p) - 1 or 1]")
    ],
    "min-p of 1": [Edit(sampling_reference, "distribution", "params.min_p * ranked[0][1]", "params.min_p")],
    "typical before min-p": [
        Edit(sampling_reference, "distribution", "_normalized(_typical(ranked, params.typical_p))",
             "_normalized(_typical(_normalized(weights), params.typical_p))")
    ],
    "typical out of order": [Edit(sampling, "_typical", "sorted(kept)", "kept")],
    "typical is likely": [
        Edit(sampling, "_typical", "abs(-math.log(ranked[place][1]) - entropy)", "-ranked[place][1]")
    ],
}  # fmt: skip
