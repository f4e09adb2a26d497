"""What a finished request is to its user: text, ids, why it ended, what it cost, and how likely its tokens were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minillm.core.detokenizer import TokenBytes, name_bytes
from minillm.core.observe.metrics import request_metrics
from minillm.core.request import Request
from minillm.core.sampling.logprobs import TokenLogprobs


@dataclass(frozen=True)
class LikelyToken:
    """A token and its log-probability in the raw distribution: before penalties, masks and temperature."""

    token_id: int
    token: str  # bytes that are no text by themselves, such as half a character, are U+FFFD; "" without a token
    logprob: float  # natural logarithm


@dataclass(frozen=True)
class ScoredToken(LikelyToken):
    """A token of an output or a prompt, and the most likely ones in its place."""

    rank: int  # 1 is the most likely
    top: list[LikelyToken]


@dataclass(frozen=True)
class Completion:
    """One output. Times are seconds of the engine's clock, counted from the request's arrival."""

    prompt: str
    index: int  # among the outputs of the prompt
    text: str
    token_ids: list[int]
    finish_reason: str  # "stop", "length", "abort" or "error"
    prompt_tokens: int
    cached_tokens: int  # tokens of the prompt that the prefix cache held
    preemptions: int
    ttft_s: float | None  # to the first token
    tpot_s: float | None  # (end to end - TTFT) / (tokens - 1); None for a single token
    e2e_s: float | None
    tokens_per_s: float | None  # 1 / TPOT: the decode rate, the first token left out
    tokens_per_step: float | None  # output tokens over the steps that yielded any: 1 without speculation
    acceptance_rate: float | None = None  # of all drafted tokens, branches of trees counted; None if none were
    error: str = ""
    matches_grammar: bool | None = None  # whether the text is whole by its grammar; None without one
    grammar_cut: bool = False  # whether the tokens left kept the grammar from going on as it could have
    logprobs: list[ScoredToken] | None = None  # of each output token, if they were asked for
    cumulative_logprob: float | None = None  # of the whole output, where that is known
    prompt_logprobs: list[ScoredToken | None] | None = None  # of each prompt token; None for the first


def completion(prompt: str, request: Request, tokenizer: TokenBytes, index: int = 0) -> Completion:
    """What became of a finished request."""
    measured, params = request_metrics(request), request.params
    is_scored = len(request.logprobs) == request.num_output > 0
    prompt_logprobs = _scored(request.prompt_logprobs, tokenizer)
    return Completion(
        prompt=prompt,
        index=index,
        text=request.text,
        token_ids=request.output_ids,
        finish_reason=request.finish_reason or "abort",
        prompt_tokens=request.num_prompt,
        cached_tokens=request.num_cached,
        preemptions=request.num_preemptions,
        ttft_s=measured.ttft_s,
        tpot_s=measured.tpot_s,
        e2e_s=measured.e2e_s,
        tokens_per_s=1 / measured.tpot_s if measured.tpot_s else None,
        tokens_per_step=measured.output_tokens / measured.output_steps if measured.output_steps else None,
        acceptance_rate=measured.accepted_tokens / measured.drafted_tokens if measured.drafted_tokens else None,
        error=request.error,
        matches_grammar=request.matches_grammar,
        grammar_cut=request.grammar_cut,
        logprobs=_scored(request.logprobs, tokenizer) if params.logprobs is not None else None,
        cumulative_logprob=request.cumulative_logprob if is_scored else None,
        prompt_logprobs=[None, *prompt_logprobs] if params.prompt_logprobs is not None else None,
    )


def _scored(found: Sequence[TokenLogprobs], tokenizer: TokenBytes) -> list[ScoredToken]:
    def text(token_id: int) -> str:
        return (name_bytes(tokenizer, token_id) or b"").decode("utf-8", errors="replace")

    return [
        ScoredToken(
            one.token_id,
            text(one.token_id),
            one.logprob,
            one.rank,
            [LikelyToken(token_id, text(token_id), logprob) for token_id, logprob in one.top],
        )
        for one in found
    ]
