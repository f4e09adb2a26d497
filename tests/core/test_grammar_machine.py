"""A grammar as a state machine: texts grow from any state that was ever reached (I40)."""

from __future__ import annotations

from grammar_callers import GrammarCallers, random_grammar_calls
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from random_choices import HypothesisDraw


class GrammarMachine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def setup(self, data: st.DataObject) -> None:
        self.callers = GrammarCallers(HypothesisDraw(data))

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.callers.act(HypothesisDraw(data))

    def teardown(self) -> None:
        if hasattr(self, "callers"):
            self.callers.finish()


TestGrammar = GrammarMachine.TestCase
TestGrammar.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_grammars_under_random_callers() -> None:
    random_grammar_calls(range(300))
