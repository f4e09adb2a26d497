"""The one place where sampled tokens are appended to a request and checked for its end.

Token by token, so a step that brings several (speculation) commits nothing after a stop. In this order:
stopping id (end of sequence or of ``stop_token_ids``), stop string, an output that is whole by its grammar,
``max_tokens``, the longest sequence. A stopping id is among the output ids and not in the text; a stop
string ends the text before it. As in vLLM, ``min_tokens`` bans the stopping ids from the first so many draws
(`minillm.core.sampling.draws`), so that the output has at least so many tokens besides; a stop string counts once so
many tokens are out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minillm.core.detokenizer import Detokenizer
from minillm.core.request import FinishReason, Request
from minillm.core.sampling.constraint import advance
from minillm.core.sampling.logprobs import TokenLogprobs
from minillm.grammar.expressions import GrammarLimitError


@dataclass(slots=True)
class Committed:
    """Tokens appended, each with the text it released, and why the request ended, if it did."""

    tokens: list[tuple[int, str]]
    finish_reason: FinishReason | None = None
    last_text: str = ""  # released by the end itself
    error: str = ""  # with the reason "error"


def commit_tokens(
    request: Request,
    token_ids: Sequence[int],
    *,
    detokenizer: Detokenizer | None,
    time_s: float,
    logprobs: Sequence[TokenLogprobs] = (),
) -> Committed:
    """Append ``token_ids`` up to the first that ends the request, and as many of ``logprobs``, if there are any."""
    committed = Committed([])
    for token_id in token_ids:
        request.token_ids.append(token_id)
        request.token_times_s.append(time_s)
        text, reason, committed.error = _text_and_reason(request, token_id, detokenizer)
        committed.tokens.append((token_id, text))
        if reason is not None:
            committed.finish_reason = reason
            # A stop string in the text has nothing held back; an id or a length may cut within a character.
            # At an error the engine asks for it, as it does for a request that it cuts off.
            committed.last_text = detokenizer.flush() if detokenizer is not None and reason != "error" else ""
            break
    request.logprobs.extend(logprobs[: len(committed.tokens)])
    for _, text in committed.tokens:
        request.text += text
    request.text += committed.last_text
    return committed


def _text_and_reason(
    request: Request, token_id: int, detokenizer: Detokenizer | None
) -> tuple[str, FinishReason | None, str]:
    """Also the error that goes with the reason "error"."""
    params = request.params
    num_output = request.num_output
    is_whole, error = False, ""
    if params.grammar is not None:
        try:
            is_whole = advance(request, token_id)
        except GrammarLimitError as limit:
            error = str(limit)
    if token_id in request.stop_ids:
        return "", "stop", ""
    text = ""
    if detokenizer is not None:
        text, stopped = detokenizer.push(token_id, may_stop=num_output >= params.min_tokens)
        if stopped:
            return text, "stop", ""
    if error:
        return text, "error", error
    if is_whole:
        return text, "stop", ""
    if num_output >= params.max_tokens or request.num_known >= request.max_total_tokens:
        return text, "length", ""
    return text, None, ""
