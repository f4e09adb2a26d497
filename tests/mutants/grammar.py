"""Faults in grammars: the audit of small random ones kills them."""

from __future__ import annotations

from mutation import Edit

from minillm.core.grammar.automaton import Automaton, Stack
from minillm.core.grammar.compiled import CompiledGrammar

GRAMMAR_MUTANTS: dict[str, list[Edit]] = {
    "the end allowed anywhere": [
        Edit(
            CompiledGrammar,
            "allowed",
            "self.vocabulary.eos_mask if self.is_accepting(state) else 0",
            "self.vocabulary.eos_mask",
        )
    ],
    "the budget not looked at": [Edit(CompiledGrammar, "allowed", "budget is None or", "True or")],
    "the budget spent before the end": [Edit(CompiledGrammar, "allowed", "if cost < budget", "if cost <= budget")],
    "what follows below costs nothing": [
        Edit(CompiledGrammar, "_find_allowed", "at.rest.cost if at.rest is not None else 0", "0")
    ],
    "tokens end within the rule they begin in": [
        Edit(CompiledGrammar, "_find_walk", "_Forest(beyond, trie) if beyond else None", "None")
    ],
    "tokens allowed that a rule cannot end before": [
        Edit(CompiledGrammar, "_find_walk", "if start.accepting and not at_bottom", "if not at_bottom")
    ],
    "finished while text may follow": [
        Edit(CompiledGrammar, "is_finished", "stack.frame.ended and stack.rest is None", "stack.frame.final")
    ],
    "whole though a rule is open": [
        Edit(Stack, "__init__", "frame.final and (rest is None or rest.accepting)", "frame.final")
    ],
    "a rule returns to nowhere": [Edit(Automaton, "_step", "at.rest if at.frame.final else None", "None")],
    "a rule returns before its end": [Edit(Automaton, "_step", "at.rest if at.frame.final else None", "at.rest")],
    "a call forgets what follows it": [Edit(Automaton, "_read", "rest if back.ended else Stack(back, rest)", "rest")],
    "an empty rule must be read": [Edit(Automaton, "_expand", "if rule in self._nullable", "if False")],
    "one repetition too few is enough": [Edit(Automaton, "_expand", "if low == 0:", "if low <= 1:")],
    "repetitions are not counted": [Edit(Automaton, "_expand", "None if high is None else high - 1", "high")],
    "bounds forgotten too soon": [Edit(Automaton, "_without_bounds", "expr.high > num_bytes", "expr.high > 0")],
}
