"""Grammars computed by the library llguidance, behind the interface of `minillm.grammar`.

Needs the extra: ``pip install "inference-handbook[grammar]"``. https://github.com/guidance-ai/llguidance

Two differences can be seen. Where only one text can follow, the library's mask has the one token that spells it
as the tokenizer would, and not its shorter beginnings. And it does not look at the tokens left.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from minillm.grammar import GrammarError, Vocabulary

# White space as in the engine's own: at most one space, after a comma and a colon.
_JSON = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}


class LibraryState:
    """A matcher that nobody advances any more, so that it is a value: who goes on takes a copy."""

    __slots__ = ("mask", "matcher")

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher
        self.mask: int | None = None  # once it was asked for


class LibraryGrammar:
    """One grammar for one vocabulary.

    Raises:
        GrammarError: what the library says about a source that it does not take.
        ModuleNotFoundError: the library is not installed; the message names the extra.
    """

    def __init__(self, kind: Any, source: Any, vocabulary: Vocabulary) -> None:
        try:
            import llguidance
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "the package 'llguidance' is not installed: pip install \"inference-handbook[grammar]\", or use the "
                "engine's own grammars"
            ) from error
        self._vocabulary = vocabulary
        text = source if isinstance(source, str) else json.dumps(source)
        try:
            if kind == "json_schema":
                compiled = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=_JSON)
            else:
                compiled = llguidance.grammar_from(kind, text)
        except ValueError as error:
            raise GrammarError(f"llguidance: {error}") from error
        matcher = llguidance.LLMatcher(_tokenizer(vocabulary), compiled, log_level=0)
        if matcher.is_error():
            raise GrammarError(f"llguidance: {matcher.get_error()}")
        self._start = LibraryState(matcher)

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._vocabulary.eos_ids

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.size

    def start(self) -> LibraryState:
        return self._start

    def allowed(self, state: LibraryState, budget: int | None = None) -> int:
        """The tokens that may come next. The library cannot look at ``budget``."""
        if state.mask is None:
            state.mask = int.from_bytes(state.matcher.compute_bitmask(), "little") & ((1 << self.vocab_size) - 1)
        return state.mask

    def advance(self, state: LibraryState, token_id: int) -> LibraryState | None:
        if not 0 <= token_id < self.vocab_size or state.matcher.validate_tokens([token_id]) != 1:
            return None
        matcher = state.matcher.deep_copy()
        return LibraryState(matcher) if matcher.consume_token(token_id) else None

    def is_accepting(self, state: LibraryState) -> bool:
        return bool(state.matcher.is_accepting())

    def is_finished(self, state: LibraryState) -> bool:
        return bool(state.matcher.is_stopped())

    def tokens_to_finish(self, state: LibraryState) -> int:
        """Not known to the library."""
        return 0


@lru_cache(maxsize=2)
def _tokenizer(vocabulary: Vocabulary) -> Any:
    """The library's tree of all tokens, which takes longer to make than most grammars: once for each vocabulary."""
    import llguidance

    tokens = llguidance.TokenizerWrapper(_Tokens(vocabulary))
    return llguidance.LLTokenizer(tokens, n_vocab=vocabulary.size, eos_token=sorted(vocabulary.eos_ids))


class _Tokens:
    """A vocabulary as the library reads it. Text is cut into the longest tokens that there are, left to right."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens) if token}
        self._longest = vocabulary.longest
        self.eos_token_id = min(vocabulary.eos_ids)
        self.bos_token_id = None
        self.tokens: Sequence[bytes] = [token or b"" for token in vocabulary.tokens]
        self.special_token_ids = [token_id for token_id, token in enumerate(vocabulary.tokens) if not token]

    def __call__(self, text: bytes) -> list[int]:
        found, at = [], 0
        while at < len(text):
            ends = range(min(len(text), at + self._longest), at, -1)
            end = next((end for end in ends if text[at:end] in self._ids), None)
            if end is None:  # a byte that no token spells
                at += 1
                continue
            found.append(self._ids[text[at:end]])
            at = end
        return found
