"""Faults in grammars: audits of small random ones kill them, and of ambiguous ones."""

from __future__ import annotations

from mutation import Edit

from minillm.grammar import automaton, frames
from minillm.grammar.automaton import Automaton, Callers, State
from minillm.grammar.compiled import CompiledGrammar
from minillm.grammar.frames import Frames
from minillm.grammar.walks import Walks

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
    "what follows below costs nothing": [Edit(CompiledGrammar, "_find_allowed", "callers.cost + cost", "cost")],
    "tokens end within the rule they begin in": [
        Edit(Walks, "_walk_the_trie", "(Forest(beyond, trie),) if beyond else ()", "()")
    ],
    "tokens allowed that a rule cannot end before": [
        Edit(Walks, "_walk_the_trie", "if state.accepting and not at_bottom and", "if not at_bottom and")
    ],
    "finished while text may follow": [
        Edit(CompiledGrammar, "is_finished", "state.accepting and state.ended", "state.accepting")
    ],
    "whole though a rule is open": [Edit(State, "__init__", "frame.final and callers.accepting", "frame.final")],
    "a rule returns before its end": [Edit(automaton, "reached", "if place[1].final:", "if True:")],
    "a call forgets what follows it": [Edit(Automaton, "_read", "self.frames.back(frame, rule)", "self.frames.end")],
    "an empty rule must be read": [Edit(Frames, "_expand", "if rule in self._nullable", "if False")],
    "one repetition too few is enough": [Edit(Frames, "_expand", "if low == 0:", "if low <= 1:")],
    "repetitions are not counted": [Edit(Frames, "_expand", "None if high is None else high - 1", "high")],
    "bounds forgotten too soon": [Edit(Frames, "_without_bounds", "expr.high > num_bytes", "expr.high > 0")],
}

AMBIGUITY_MUTANTS: dict[str, list[Edit]] = {
    "one reading of several": [Edit(Automaton, "_join", "frame if known is None else", "frame if True else")],
    "what is returned to costs nothing": [Edit(Callers, "__init__", "frame.cost + callers.cost", "frame.cost")],
    "one caller of several": [
        Edit(automaton, "reached", "found |= place[0].reached", "found |= {*[*place[0].reached][:1]}")
    ],
    "a rule returns to nowhere": [Edit(automaton, "reached", "if place[1].final:", "if False:")],
    "an end among the callers forgotten": [
        Edit(Automaton, "_without_ended", "any(callers.is_bottom for callers in ended)", "False")
    ],
    "an end beside other ways forgotten": [
        Edit(Automaton, "_returned", "if is_bottom:", "if is_bottom and not places:")
    ],
    "callers of what has ended forgotten": [Edit(Automaton, "_without_ended", "self._join(kept, back, frame)", "pass")],
    "callers told apart by their frames alone": [
        Edit(
            Automaton,
            "_callers_of",
            "(frozenset(returns.items()), is_bottom)",
            "(frozenset(returns.values()), is_bottom)",
        ),
        Edit(Automaton, "_callers_of", "Callers(key[0],", "Callers(returns.items(),"),
    ],
    "tokens lost that another reading brings": [
        Edit(CompiledGrammar, "_find_allowed", ".setdefault(below, {}).update(", "[below] = dict(")
    ],
    "a token with one repetition too many": [
        Edit(Walks, "_count", "number == counted.high", "number - 1 == counted.high")
    ],
    "a token with too few repetitions": [Edit(Walks, "_count", "number >= counted.low", "number >= counted.low - 1")],
    "no token behind the last repetition": [Edit(Walks, "_count", "number >= counted.low", "counted.high != number")],
    "repetitions still to come cost nothing": [Edit(Walks, "_count", "max(counted.low - number, 0) * each + ", "")],
    "a count of which none has begun costs nothing": [Edit(Walks, "_count", "counted.low * each + after", "after")],
    "what comes before a count read in any token": [Edit(Walks, "_count", "forests = walk.beyond", "pass")],
    "nodes looked up under other nodes": [Edit(Walks, "_entries", " if trie.parent[node] in nodes", "")],
    "least counts not compared": [Edit(frames, "_covers", "a <= c and d <= b", "d <= b")],
    "most counts not compared": [Edit(frames, "_covers", "a <= c and d <= b", "a <= c")],
    "counts of different bodies compared": [Edit(frames, "_shape", "expr = expr.body", "expr = _REPEATED")],
}
