"""Grammars for a loaded model: its tokenizer's vocabulary, and the choice of who computes the masks.

``minillm`` is the engine's own (`minillm.grammar`): every output is whole, for the tokens left are kept in
view. ``llguidance`` is a library in Rust behind the same interface: it knows more of JSON Schema, and is faster
where masks are computed for the first time; it does not look at the tokens left, so an output may be cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from minillm.core.detokenizer import text_bytes
from minillm.grammar import CompiledGrammar, Grammar, GrammarError, Vocabulary
from minillm.grammar.gbnf import gbnf_rules
from minillm.grammar.json_schema import json_schema_rules
from minillm.grammar.regex import regex_rules
from minillm.models.tokenizer import Tokenizer

Kind = Literal["json_schema", "regex", "gbnf"]
GrammarEngine = Literal["minillm", "llguidance"]
GRAMMAR_ENGINES: tuple[GrammarEngine, ...] = get_args(GrammarEngine)

_RULES: Mapping[Kind, Any] = {"json_schema": json_schema_rules, "regex": regex_rules, "gbnf": gbnf_rules}


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """The tokens that a text can be made of. ``vocab_size`` is the model's, which may pad or cut the tokenizer's."""
    tokens: list[bytes | None] = [None] * vocab_size
    for token_id in range(min(tokenizer.vocab_size, vocab_size)):
        tokens[token_id] = text_bytes(tokenizer, token_id) or None
    return Vocabulary(tokens, {token_id for token_id in tokenizer.eos_ids if token_id < vocab_size})


def compile_grammar(kind: Kind, source: Any, vocabulary: Vocabulary, engine: GrammarEngine = "minillm") -> Grammar:
    """A grammar of one kind from its source: a schema (parsed or text), a pattern, or the text of a GBNF file.

    Raises:
        GrammarError: the source is damaged, or says what the engine does not support.
        ModuleNotFoundError: ``llguidance`` is asked for and not installed.
    """
    if engine == "llguidance":
        from minillm.library_grammar import LibraryGrammar

        return LibraryGrammar(kind, source, vocabulary)
    if engine != "minillm":
        raise GrammarError(f"grammar engine {engine!r} is unknown: choose from {', '.join(GRAMMAR_ENGINES)}")
    return CompiledGrammar(_RULES[kind](source), vocabulary)


def check_source(kind: Kind, source: Any) -> None:
    """``GrammarError`` if the engine's own reader refuses the source: found without a model."""
    _RULES[kind](source)
