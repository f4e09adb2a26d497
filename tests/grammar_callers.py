"""Texts that grow from any state of a grammar, old or new, against a recognizer by definition.

A draft that is rejected, a beam that is dropped, a request that is preempted: each goes on from a state that
others have gone on from before. States are values, so nothing of that may be felt.
"""

from __future__ import annotations

import random

from grammar_harness import Recognizer, ids_of, random_grammar
from random_choices import Draw, SeededDraw

from minillm.grammar import CompiledGrammar, GrammarError
from minillm.grammar.automaton import State


class GrammarCallers:
    """One small grammar, and every state that was reached: how, and what its mask was."""

    def __init__(self, draw: Draw) -> None:
        while True:  # most can be compiled
            self.case = random_grammar(random.Random(draw.integer(0, 2**32)))
            try:
                self.grammar = CompiledGrammar(self.case.rules, self.case.vocabulary)
            except GrammarError:
                continue
            break
        self.truth = Recognizer(self.case.rules)
        start = self.grammar.start()
        self.reached: list[tuple[State, bytes, int]] = [(start, b"", self.grammar.allowed(start))]

    def act(self, draw: Draw) -> None:
        draw.choice([self.grow, self.grow, self.refuse, self.look_back])(draw)

    def grow(self, draw: Draw) -> None:
        """One token more, from any state so far."""
        state, text, mask = draw.choice(self.reached[-6:])
        vocabulary = self.grammar.vocabulary
        assert bool(mask & vocabulary.eos_mask) == self.truth.matches(text), "I40: the end, where the text is whole"
        choices = [token for token in ids_of(mask) if token not in vocabulary.eos_ids]
        if not choices or len(text) > 12:
            return
        token = draw.choice(choices)
        after = self.grammar.advance(state, token)
        assert after is not None, "I40: a token of the mask is refused"
        whole = text + (vocabulary.tokens[token] or b"")
        assert self.grammar.is_accepting(after) == self.truth.matches(whole), "I40: accepting"
        allowed = self.grammar.allowed(after)
        assert allowed, "I40: a text that cannot be completed"
        self.reached.append((after, whole, allowed))

    def refuse(self, draw: Draw) -> None:
        """A token outside the mask leads nowhere, and leaves the state as it is."""
        state, _, mask = draw.choice(self.reached)
        token = draw.integer(0, self.grammar.vocabulary.size - 1)
        assert (self.grammar.advance(state, token) is not None) == bool(mask >> token & 1), "I40: mask and step differ"

    def look_back(self, draw: Draw) -> None:
        """An old state is as good as new, and equal texts lead to equal states."""
        state, text, mask = draw.choice(self.reached)
        assert self.grammar.allowed(state) == mask, "I40: a rollback is not the identity"
        assert self.grammar.is_accepting(state) == self.truth.matches(text)
        for other, same, other_mask in self.reached:
            assert same != text or (other == state and other_mask == mask), "I40: one text, two states"

    def finish(self) -> None:
        """Each text so far can be made whole in as many tokens as its state says."""
        for state, _, _ in self.reached[-3:]:
            budget = self.grammar.tokens_to_finish(state)
            while budget:
                choices = ids_of(self.grammar.allowed(state, budget) & ~self.grammar.vocabulary.eos_mask)
                if not choices:
                    break
                after = self.grammar.advance(state, choices[-1])
                assert after is not None
                state, budget = after, budget - 1
            assert self.grammar.is_accepting(state), "I40: cut"


def random_grammar_calls(seeds: range, acts: int = 25) -> None:
    """Small grammars under random callers, fast and the same each time."""
    for seed in seeds:
        draw = SeededDraw(seed)
        callers = GrammarCallers(draw)
        for _ in range(acts):
            callers.act(draw)
        callers.finish()
