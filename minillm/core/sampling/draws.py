"""What a request that is not plain asks of a step's logits: where it draws, what shapes that, what is wanted back.

All of it follows from the request's token ids and its parameters. Nothing is counted along the way, so
chunks, preemption and a prefix hit cannot change it. It costs time in proportion to the output, and only
for requests that ask for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minillm.core.plan import StepPlan
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams, uniform
from minillm.core.sampling.constraint import allowed_tokens, limit_reached
from minillm.core.sampling.shaping import Transform

if TYPE_CHECKING:
    from minillm.core.step import Scheduled

_GIVEN = SamplingParams(temperature=0)  # for draws at which nothing is drawn: the cheapest there is


def add_draws(plan: StepPlan, part: Scheduled, vocab_size: int) -> None:
    """Append the draws of a part whose tokens are the last of ``plan.token_ids``, and count them in the part.

    A part whose next token cannot be drawn gets no draw and an error. The draws after drafted tokens come later
    (``add_drafted_draws``).
    """
    request, end = part.request, part.start + part.num_scheduled_tokens
    before = len(plan.logits_indices)
    if request.params.prompt_logprobs is not None:
        _add_prompt_draws(plan, request, part.start, end, request.params.prompt_logprobs)
    if end == request.num_known:
        transform, part.error = _next_transform(request, vocab_size)
        if not part.error and request.group is not None and request.group.beams is not None:
            draw = _append(plan, len(plan.token_ids) - 1, _GIVEN, 0.0)
            # All beams to come may extend this one, and every end may be among its most likely tokens.
            wanted = max(request.group.beams.width + len(request.stop_ids), request.params.logprobs or 0)
            plan.logprobs[draw] = min(wanted, vocab_size)
        elif not part.error:
            _add_next_draws(plan, request, transform)
    part.num_draws = len(plan.logits_indices) - before


def _next_transform(request: Request, vocab_size: int) -> tuple[Transform | None, str]:
    """What shapes the request's next draw, or why there cannot be one."""
    transform = transform_for(request)
    if transform is None or not bans_all(transform, vocab_size):
        return transform, ""
    return transform, limit_reached(request) or (
        f"output token {request.num_output:,} cannot be drawn: stop ids before min_tokens, bad_words and the "
        f"grammar ban all {vocab_size:,} tokens; leave some of them out"
    )


def _add_prompt_draws(plan: StepPlan, request: Request, start: int, end: int, num_top: int) -> None:
    """The logits after token p are about token p + 1. What an earlier admission found is not asked for again."""
    first = len(plan.token_ids) - end  # flat index of the request's token 0, could it be in the plan
    for position in range(max(start, len(request.prompt_logprobs)), min(end, request.num_prompt - 1)):
        draw = _append(plan, first + position, _GIVEN, 0.0)
        plan.logprobs[draw] = num_top
        plan.targets[draw] = request.token_ids[position + 1]


def _add_next_draws(plan: StepPlan, request: Request, transform: Transform | None) -> None:
    """A draw from the logits after the last known token, or one for each member that parts from it here."""
    group = request.group
    members = [request] if group is None or group.has_forked else group.members
    for member in members:
        _add_draw(plan, member, len(plan.token_ids) - 1, 0, transform)


def add_drafted_draws(plan: StepPlan, part: Scheduled) -> None:
    """Append a draw after each of the part's drafted tokens, the last of ``plan.token_ids``, in case it is accepted."""
    draft = part.draft
    first = len(plan.token_ids) - len(draft.token_ids)
    for node in range(len(draft.token_ids)):
        transform = part.draft_transforms[node] if part.draft_transforms else None
        _add_draw(plan, part.request, first + node, len(draft.path(node)), transform)
    part.num_draws += len(draft.token_ids)


def _add_draw(plan: StepPlan, request: Request, token: int, ahead: int, transform: Transform | None) -> None:
    """A draw after the flat ``token``, for the output that comes when ``ahead`` more than the known ones are out."""
    params = request.params
    number = uniform(request.seed, request.num_output + ahead) if params.temperature > 0 else 0.0
    draw = _append(plan, token, params, number)
    if transform is not None:
        plan.transforms[draw] = transform
    if params.logprobs is not None or params.best_of is not None:
        plan.logprobs[draw] = params.logprobs or 0


def _append(plan: StepPlan, token: int, params: SamplingParams, number: float) -> int:
    plan.logits_indices.append(token)
    plan.sampling.append(params)
    plan.uniforms.append(number)
    return len(plan.logits_indices) - 1


def transform_for(request: Request, ahead: Sequence[int] = ()) -> Transform | None:
    """What shapes the next output token, or the one after the tokens ``ahead``, which are not known yet (drafts).

    The repetition penalty counts prompt and output, as in Hugging Face transformers and vLLM; presence and
    frequency penalties the output alone, as vLLM and the OpenAI API do.
    """
    params = request.params
    banned: set[int] = set()
    if request.num_output + len(ahead) < params.min_tokens:
        banned |= request.stop_ids
    output: list[int] = []
    if params.bad_words or params.has_penalties:
        output = [*request.output_ids, *ahead]
        banned |= _completing(params.bad_words, output)
    transform = Transform(
        repetition_penalty=params.repetition_penalty,
        prompt_ids=request.distinct_prompt_ids if params.repetition_penalty != 1 else (),
        output_counts=Counter(output) if params.has_penalties else {},
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        bias=dict(params.logit_bias),
        banned=banned,
        allowed=allowed_tokens(request, ahead),
    )
    return transform if transform.changes_anything else None


def _completing(words: Sequence[str | tuple[int, ...]], output: Sequence[int]) -> set[int]:
    """Last tokens of the words whose other tokens end the output."""
    found: set[int] = set()
    for word in words:
        if not isinstance(word, str):  # the engine refuses text
            *before, last = word
            if before == list(output[len(output) - len(before) :]):
                found.add(last)
    return found


def bans_all(transform: Transform, vocab_size: int) -> bool:
    """Whether no token is left that may be drawn."""
    if transform.allowed is None:
        return len(transform.banned) >= vocab_size
    return not transform.allowed & ~sum(1 << token_id for token_id in transform.banned)
