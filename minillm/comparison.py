"""Whether speculation changed an output: the same prompts once more without it, and where the ids part.

They may part where two tokens are as likely as each other but for rounding: verifying several tokens at once adds
up the same products in another order than one token alone does. So a difference comes with its margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minillm.core.request import RequestError
from minillm.core.sampling import SamplingParams

if TYPE_CHECKING:
    from minillm.completion import Completion
    from minillm.llm import LLM


@dataclass(frozen=True)
class Comparison:
    """One output with speculation beside the one without."""

    equal: bool  # all ids are
    position: int | None  # the first output token that differs, counted from 0
    token_id: int | None  # at that position, with speculation; None where that output ended
    plain_token_id: int | None  # at that position, without
    # By how much the model prefers the plain token there, in nats: the difference of the two logits, in one pass
    # over the tokens before. None where it did not decide: at a temperature above 0, under penalties or a bias.
    margin: float | None
    plain_e2e_s: float | None
    plain_tokens_per_s: float | None


def compare(
    llm: LLM, prompts: Sequence[str], params: SamplingParams, outputs: Sequence[Completion]
) -> list[Comparison]:
    """Run ``prompts`` without speculation, and put what comes out beside ``outputs``, which came with it.

    The engine of ``llm`` is restarted: what it knew of earlier requests is gone, and it speculates no more.
    ``ValueError`` for parameters under which the two may differ by right.
    """
    check_comparable(params, None if llm.speculate is None else llm.speculate.verification)
    llm.restart(None)
    plain = llm.generate(prompts, params)
    return [_compared(llm, params, one, other) for one, other in zip(outputs, plain, strict=True)]


def check_comparable(params: SamplingParams, verification: str | None) -> None:
    """``ValueError`` where speculation gives other ids by right."""
    if verification == "rejection" and params.temperature > 0:
        raise ValueError(
            f"verification is 'rejection' at temperature {params.temperature:g}: it keeps the distribution, not the "
            "ids, so there is nothing to compare; use verification 'draw', or temperature 0"
        )


def _compared(llm: LLM, params: SamplingParams, one: Completion, plain: Completion) -> Comparison:
    ids, others = one.token_ids, plain.token_ids
    same = next((i for i, (a, b) in enumerate(zip(ids, others, strict=False)) if a != b), min(len(ids), len(others)))
    equal = ids == others
    token_id = ids[same] if same < len(ids) else None
    plain_token_id = others[same] if same < len(others) else None
    margin = None
    if token_id is not None and plain_token_id is not None and _logits_decide(params):
        margin = _margin(llm, [*llm.encode(one.prompt), *ids[:same]], plain_token_id, token_id)
    return Comparison(equal, None if equal else same, token_id, plain_token_id, margin, plain.e2e_s, plain.tokens_per_s)


def _logits_decide(params: SamplingParams) -> bool:
    """Whether the token with the highest raw logit of those allowed is taken."""
    return params.temperature == 0 and not params.has_penalties and not params.logit_bias


def _margin(llm: LLM, before: list[int], first: int, second: int) -> float | None:
    """The logit of ``first`` after ``before`` less that of ``second``; None where there is no room to score them."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    try:  # as part of a prompt they need room for an output behind them
        requests = [llm.engine.add_request([*before, token_id], params) for token_id in (first, second)]
    except RequestError:
        return None
    for _ in llm.engine.run():
        pass
    scores = [request.prompt_logprobs[-1].logprob for request in requests]
    return scores[0] - scores[1]
