"""What must hold of every draft in a plan, and of an output whose ids depend on drafts; used by ``core_harness``."""

from __future__ import annotations

from minillm.core.plan import StepPlan
from minillm.core.request import Request
from minillm.core.sampling import uniform


def audit_draft(plan: StepPlan, row: int, request: Request, known: int) -> None:
    """The flat tokens from ``known`` on, to the end of the row, are a draft."""
    end = plan.query_start_loc[row + 1]
    assert known - plan.query_start_loc[row] == 1, "a draft behind tokens that are not computed"
    parents = plan.trees.get(row, range(-1, end - known - 1))
    assert len(parents) == end - known
    places = [request.num_known - 1]  # of the last known token, then of each drafted one, which may be its parent
    for node, parent in enumerate(parents):
        assert parent < node
        places.append(places[1 + parent] + 1)
    assert plan.positions[known - 1 : end] == places
    # The draw after the deepest one is a token of the output, too.
    assert max(places) + 2 <= request.max_total_tokens, "I30: more is drafted than can be output"
    draws = [draw for draw, token in enumerate(plan.logits_indices) if known - 1 <= token < end]
    assert [plan.logits_indices[draw] for draw in draws] == list(range(known - 1, end))
    sampled = request.params.temperature > 0
    numbers = [uniform(request.seed, place + 1 - request.num_prompt) if sampled else 0.0 for place in places]
    assert [plan.uniforms[draw] for draw in draws] == numbers, "a draw without the number of its output"


def audit_length(request: Request) -> None:
    """I30: nothing comes after a stop, and without one the output is as long as it may be."""
    ends = [i for i, token in enumerate(request.output_ids, 1) if token in request.stop_ids]
    if request.finish_reason == "stop":
        assert ends == [request.num_output]
        assert request.num_output >= request.params.min_tokens
    else:
        assert not ends
        assert request.finish_reason != "length" or request.num_known == request.max_total_tokens
