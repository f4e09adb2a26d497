"""What a request must be like to be taken: every refusal names the numbers and the way out."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from minillm.core.config import EngineConfig, check_positive
from minillm.core.kv.block_keys import ExtraKey
from minillm.core.kv_manager import KVManager
from minillm.core.request import RequestError
from minillm.core.sampling import SamplingParams


def longest_request(config: EngineConfig, model_limit: int) -> int:
    """Tokens that prompt and output may have together; ``ValueError`` if the configuration cannot serve them."""
    length = model_limit if config.max_model_len is None else config.max_model_len
    if length > model_limit:
        raise ValueError(f"max_model_len is {length:,}, the model takes {model_limit:,}: lower it")
    if not config.chunked_prefill and config.max_batch_tokens < length:
        raise ValueError(
            f"without chunked_prefill a prompt runs in one step, but max_batch_tokens {config.max_batch_tokens:,} "
            f"is under max_model_len {length:,}: raise the first, lower the second, or chunk"
        )
    return length


def check_prompt(prompt_ids: Sequence[int], vocab_size: int, max_model_len: int) -> list[int]:
    """The prompt as a list of ints. ``RequestError`` if it is empty, too long or has ids outside the vocabulary."""
    try:
        prompt = [operator.index(token_id) for token_id in prompt_ids]
    except TypeError as error:
        raise RequestError(f"the prompt is no sequence of token ids: {error}") from None
    if not prompt:
        raise RequestError("the prompt is empty: give at least one token, for example the beginning of text")
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        bad = next(token_id for token_id in prompt if not 0 <= token_id < vocab_size)
        raise RequestError(
            f"prompt token {bad} at position {prompt.index(bad)} is outside the vocabulary of {vocab_size:,} ids: "
            f"use the model's own tokenizer"
        )
    if len(prompt) >= max_model_len:
        raise RequestError(
            f"prompt has {len(prompt):,} tokens, the engine takes {max_model_len:,} with at least one output "
            f"token: shorten it by {len(prompt) - max_model_len + 1:,}, or raise max_model_len where it was lowered"
        )
    return prompt


def check_extra_keys(keys: Sequence[ExtraKey], salt: str | None, num_prompt: int) -> tuple[ExtraKey, ...]:
    """The keys, if they start within the prompt and the salt can be one; else ``RequestError``."""
    try:
        _ = None if salt is None else ExtraKey("salt", salt)
    except ValueError as error:
        raise RequestError(str(error)) from None
    for key in keys:
        if not isinstance(key, ExtraKey):
            raise RequestError(f"extra_keys has {key!r}: give ExtraKey(kind, value)")
        if key.start >= num_prompt:
            raise RequestError(
                f"{key.kind} key starts at token {key.start}, the prompt has {num_prompt:,}: "
                "give the place of its first token in the prompt"
            )
    return tuple(keys)


def check_room(num_prompt: int, max_total_tokens: int, kv: KVManager, beams: int = 1) -> None:
    """``RequestError`` unless the request, alone in the pool, comes to its end. Its last token is never written.

    ``beams`` advance together, so that there must be room for all of them even when they share no block.
    """
    needed = beams * kv.most_blocks(0, max_total_tokens - 1)
    total, block_size = kv.pool.num_blocks - 1, kv.block_size
    if needed > total:
        most = total // (beams * len(kv.groups)) * block_size + 1 - num_prompt
        way_out = f"lower max_tokens to {most:,}" if most > 0 else "shorten the prompt"
        whose = "" if beams == 1 else f" for each of {beams} beams"
        raise RequestError(
            f"prompt of {num_prompt:,} tokens and up to {max_total_tokens - num_prompt:,} output tokens{whose} need "
            f"{needed:,} KV blocks of {block_size}, the pool has {total:,}: {way_out} or raise num_blocks"
        )


def check_places(params: SamplingParams, config: EngineConfig) -> None:
    """``RequestError`` unless all outputs of a prompt can run together."""
    name = "beam_width" if params.beam_width else "best_of" if params.best_of else "n"
    for limit in ("max_running_requests", "max_batch_tokens"):
        if params.num_sequences > getattr(config, limit):
            raise RequestError(
                f"{name} is {params.num_sequences:,}, which run together with a token each in a step, but {limit} is "
                f"{getattr(config, limit):,}: change one of them"
            )


def check_service(
    config: EngineConfig, priority: int, tenant: str, ttft_slo_s: float | None, tpot_slo_s: float | None
) -> None:
    """``RequestError`` unless the fields that steer the order are valid and the engine's order looks at them."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RequestError(f"priority is {priority!r}: give a whole number, higher is served first")
    if priority and config.order != "priority":
        raise RequestError(
            f"priority is {priority}, but the engine's order is {config.order!r}, which does not look at it: "
            f"configure order='priority' or leave it out"
        )
    if not isinstance(tenant, str):
        raise RequestError(f"tenant is {tenant!r}: give a string, or leave it out")
    for name, value in (("ttft_slo_s", ttft_slo_s), ("tpot_slo_s", tpot_slo_s)):
        if value is not None:
            try:
                check_positive(name, value, "seconds")
            except ValueError as error:
                raise RequestError(str(error)) from None


def check_params(params: SamplingParams, vocab_size: int, *, has_tokenizer: bool) -> None:
    """``RequestError`` for parameters that this vocabulary, or an engine without text, cannot follow."""
    if params.stop and not has_tokenizer:
        raise RequestError(f"stop strings {params.stop!r} need text: give the engine a tokenizer")
    words = [word for word in params.bad_words if isinstance(word, str)]
    if words:
        raise RequestError(
            f"bad_words {words!r} are text, the engine takes token ids: encode them, as LLM.generate does"
        )
    named = {
        "stop_token_ids": params.stop_token_ids,
        "logit_bias": dict(params.logit_bias),
        "bad_words": [token_id for word in params.bad_words for token_id in word],
    }
    for name, ids in named.items():
        for token_id in ids:
            if isinstance(token_id, int) and token_id >= vocab_size:
                raise RequestError(
                    f"{name} has token {token_id}, the vocabulary has {vocab_size:,} ids: use the model's own tokenizer"
                )
    if params.grammar is not None and params.grammar.vocab_size > vocab_size:
        raise RequestError(
            f"the grammar is compiled for {params.grammar.vocab_size:,} ids, the vocabulary has {vocab_size:,}: "
            "compile it for the model's own tokenizer"
        )
    for name in ("logprobs", "prompt_logprobs"):
        wanted = getattr(params, name) or 0
        if wanted > vocab_size:
            raise RequestError(f"{name} is {wanted:,}, the vocabulary has {vocab_size:,} ids: ask for at most so many")
