"""What a request on the hash model must output, found without blocks, batches or steps, by the definitions."""

from __future__ import annotations

import math
from dataclasses import replace

from minillm.backends.hash_model import HashModel
from minillm.core.request import Request
from minillm.core.sampling import SamplingParams, uniform
from minillm.core.sampling.logprobs import token_logprobs
from minillm.core.sampling.shaping import Transform
from minillm.grammar import Grammar


def oracle(model: HashModel, request: Request, eos_ids: frozenset[int]) -> tuple[list[int], bool]:
    """The output that the request must have, found without blocks, batches or steps; and whether it ends in an
    error, for a token was needed and all were banned."""
    params, ids = request.params, list(request.prompt_ids)
    grammar = params.grammar
    stop_ids = stopping(params, eos_ids)
    if params.beam_width:
        assert request.group is not None
        found = expected_beams(model, request, stop_ids)
        seat = request.group.members.index(request)
        return (found[seat], False) if seat < len(found) else ([], True)
    while len(ids) < request.max_total_tokens:
        output = ids[request.num_prompt :]
        transform = expected_transform(params, ids[: request.num_prompt], output, stop_ids, model.capacity().vocab_size)
        left = {token for token in range(model.capacity().vocab_size) if token not in transform.banned}
        if grammar:
            allowed = grammar.allowed(state_after(grammar, output), request.max_total_tokens - len(ids))
            transform = replace(transform, allowed=allowed)
            left = {token for token in left if allowed >> token & 1}
        if not left:
            return output, True
        draw = uniform(request.seed, len(output)) if params.temperature > 0 else 0.0
        ids.append(model.next_id(ids, params, draw, transform))
        if ids[-1] in stop_ids or (grammar and grammar.is_finished(state_after(grammar, ids[request.num_prompt :]))):
            break
    return ids[request.num_prompt :], False


def stopping(params: SamplingParams, eos_ids: frozenset[int]) -> set[int]:
    if params.grammar:
        return set(params.grammar.eos_ids)
    return {*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)}


def state_after(grammar: Grammar, output: list[int]) -> object:
    """Read from the beginning, each time."""
    state = grammar.start()
    for token in output:
        state = grammar.advance(state, token)
        assert state is not None, f"{output} breaks the grammar at {token}"
    return state


def expected_transform(
    params: SamplingParams, prompt: list[int], output: list[int], stop_ids: set[int], vocab_size: int
) -> Transform:
    """By the definitions, token by token."""

    def is_banned(token: int) -> bool:
        longer = (*output, token)
        is_early_stop = len(output) < params.min_tokens and token in stop_ids
        return is_early_stop or any(longer[-len(word) :] == word for word in params.bad_words)

    return Transform(
        repetition_penalty=params.repetition_penalty,
        prompt_ids=set(prompt),
        output_counts={token: output.count(token) for token in output},
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        bias=dict(params.logit_bias),
        banned={token for token in range(vocab_size) if is_banned(token)},
    )


def audit_logprobs(model: HashModel, request: Request) -> None:
    """Log-probabilities are those of the raw logits after each prefix, whatever was cached, chunked or preempted."""
    params, ids, first = request.params, request.token_ids, request.num_prompt
    found = {first + i: one for i, one in enumerate(request.logprobs)}
    is_ranked = params.beam_width is not None or params.best_of is not None
    assert list(found) == (list(range(first, len(ids))) if params.logprobs is not None or is_ranked else [])
    if params.prompt_logprobs is not None:
        ended_early = request.finish_reason == "abort" or request.admitted_s is None
        assert len(request.prompt_logprobs) == first - 1 or ended_early
        found |= {1 + i: one for i, one in enumerate(request.prompt_logprobs)}
    for position, one in found.items():
        num_top = params.logprobs if position >= first else params.prompt_logprobs
        assert one == token_logprobs(model.logits_after(ids[:position]), ids[position], num_top or 0)


def expected_beams(model: HashModel, request: Request, stop_ids: set[int]) -> list[list[int]]:
    """The hypotheses of a beam search, best first, from all extensions of all beams, by the textbook."""
    params, prompt = request.params, list(request.prompt_ids)
    width, vocab = params.beam_width, range(model.capacity().vocab_size)
    assert width is not None
    beams: list[tuple[list[int], list[float]]] = [([], [])]  # tokens and their log-probabilities
    done: list[tuple[float, list[int]]] = []
    for length in range(1, request.max_total_tokens - len(prompt) + 1):
        extensions = []
        for order, (tokens, logprobs) in enumerate(beams):
            logits = model.logits_after(prompt + tokens)
            for token in vocab:
                if length > params.min_tokens or token not in stop_ids:
                    logprob = token_logprobs(logits, token, 0).logprob
                    total = math.fsum(logprobs) + logprob
                    extensions.append((-total, order, -logprob, token, ([*tokens, token], [*logprobs, logprob])))
        best = [(entry[3] in stop_ids, entry[4]) for entry in sorted(extensions)]
        ends = [beam for is_end, beam in best[:width] if is_end]
        beams = [beam for is_end, beam in best if not is_end][:width]
        is_last = length == request.max_total_tokens - len(prompt)
        if is_last and len(done) + len(ends) < width:
            ends += beams
        done += [(-math.fsum(p) / length**params.length_penalty, tokens) for tokens, p in ends]
        if len(done) >= width or not beams:
            break
    return [tokens for _, tokens in sorted(done, key=lambda entry: entry[0])[:width]]
