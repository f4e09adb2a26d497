"""What a request's grammar says about its next token. The state follows from the output tokens and from nothing
else, so chunks, preemption and batch mates cannot change it; it is kept with the request to save the walk."""

from __future__ import annotations

from collections.abc import Sequence

from minillm.core.request import Request, RequestError
from minillm.grammar.expressions import GrammarLimitError


class GrammarBreachError(RuntimeError):
    """A token was committed that the grammar does not allow: the backend did not follow the plan's mask."""


def check_budget(request: Request) -> None:
    """``RequestError`` if an output that matches the grammar may not fit in the tokens that the request has."""
    grammar, available = request.params.grammar, request.max_total_tokens - request.num_prompt
    needed = 0 if grammar is None else grammar.tokens_to_finish(request.grammar_state)
    if needed > available:
        raise RequestError(
            f"the shortest output that matches the grammar takes up to {needed:,} tokens, the request has "
            f"{available:,}: raise max_tokens to at least {needed:,}, or shorten the prompt"
        )


def allowed_tokens(request: Request, ahead: Sequence[int] = ()) -> int | None:
    """The tokens that may follow the output and then ``ahead`` (drafts, not known yet), a bit each.

    None without a grammar; and behind a draft that the grammar does not allow, for nothing is drawn there.
    No token at all at a limit of the grammar (``limit_reached``).
    """
    grammar, state = request.params.grammar, request.grammar_state
    if grammar is None:
        return None
    try:
        for token_id in ahead:
            state = grammar.advance(state, token_id)
            if state is None:
                return None
        return grammar.allowed(state, _tokens_left(request) - len(ahead))
    except GrammarLimitError:
        return 0


def limit_reached(request: Request) -> str:
    """Why the grammar cannot say what may follow the output; empty if it can."""
    grammar = request.params.grammar
    if grammar is not None:
        try:
            grammar.allowed(request.grammar_state, _tokens_left(request))
        except GrammarLimitError as error:
            return str(error)
    return ""


def advance(request: Request, token_id: int) -> bool:
    """Take over one more output token, which is already counted in; whether nothing may follow it.

    ``GrammarLimitError`` if the grammar cannot follow it; then the output counts as not whole.
    """
    grammar, state = request.params.grammar, request.grammar_state
    if grammar is None:
        raise ValueError(f"{request.request_id} has no grammar")
    request.grammar_state = None
    after = grammar.advance(state, token_id)
    if after is None:
        raise GrammarBreachError(
            f"{request.request_id}: output token {request.num_output - 1:,} is {token_id}, which the grammar does not "
            "allow there: the backend must draw within the plan's masks"
        )
    left = _tokens_left(request) + 1
    request.grammar_cut = request.grammar_cut or grammar.allowed(state, left) != grammar.allowed(state)
    request.grammar_state = after
    return grammar.is_finished(after)


def _tokens_left(request: Request) -> int:
    return request.max_total_tokens - request.num_known
