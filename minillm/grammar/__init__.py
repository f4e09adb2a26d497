"""Grammars for generation: which tokens may come next, so that the whole output matches.

``compile_regex``, ``compile_json_schema`` and ``compile_gbnf`` make a ``Grammar`` for one vocabulary. The path of
a grammar: ``regex``, ``json_schema`` or ``gbnf`` make ``expressions``; ``rules`` turns characters into bytes and
refuses what cannot work; ``automaton`` reads bytes, within a rule by its ``frames``; ``compiled`` asks it about
every token of the ``vocabulary`` at once.
"""

from __future__ import annotations

from typing import Any, Protocol

from minillm.grammar.compiled import CompiledGrammar
from minillm.grammar.expressions import GrammarError, GrammarLimitError
from minillm.grammar.gbnf import gbnf_rules
from minillm.grammar.json_schema import json_schema_rules
from minillm.grammar.regex import regex_rules
from minillm.grammar.vocabulary import Vocabulary

__all__ = ["CompiledGrammar", "Grammar", "GrammarError", "GrammarLimitError", "Vocabulary"]
__all__ += ["compile_gbnf", "compile_json_schema", "compile_regex"]


class Grammar(Protocol):
    """What the engine asks of a grammar. A state is an immutable value: who keeps the old one can go back."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an output."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token that a mask may have."""

    def start(self) -> Any:
        """The state before the first token."""

    def allowed(self, state: Any, budget: int | None = None) -> int:
        """The tokens that may come next: bit ``i`` is token ``i``. The end is among them where the output may end.

        ``budget`` is the number of tokens left, this one included. Where the grammar knows how to finish
        within it, only tokens are allowed after which it still can.
        """

    def advance(self, state: Any, token_id: int) -> Any | None:
        """The state after one more token, or None if the token is not allowed here.

        ``GrammarLimitError``, here and from ``allowed``, where the output can be read in too many ways.
        """

    def is_accepting(self, state: Any) -> bool:
        """Whether the output so far is whole, so that it may end here."""

    def is_finished(self, state: Any) -> bool:
        """Whether the output so far is whole and nothing can follow it."""

    def tokens_to_finish(self, state: Any) -> int:
        """So many tokens are enough to make the output whole; 0 also where that is not known."""


def compile_regex(pattern: str, vocabulary: Vocabulary) -> CompiledGrammar:
    """Outputs that the whole of ``pattern`` matches. ``GrammarError`` for what it cannot say."""
    return CompiledGrammar(regex_rules(pattern), vocabulary)


def compile_json_schema(schema: dict[str, Any] | bool | str, vocabulary: Vocabulary) -> CompiledGrammar:
    """Outputs that are JSON and satisfy a schema, parsed or as text. ``GrammarError`` names an unsupported keyword."""
    return CompiledGrammar(json_schema_rules(schema), vocabulary)


def compile_gbnf(text: str, vocabulary: Vocabulary) -> CompiledGrammar:
    """Outputs that the rule ``root`` of a GBNF grammar matches. ``GrammarError`` names the line."""
    return CompiledGrammar(gbnf_rules(text), vocabulary)
