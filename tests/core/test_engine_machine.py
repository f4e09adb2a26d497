"""A live engine as a state machine: requests come and are aborted between any two steps, under all audits."""

from __future__ import annotations

import pytest
from engine_callers import EngineCallers, random_engine_calls
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from random_choices import HypothesisDraw


class EngineMachine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def setup(self, data: st.DataObject) -> None:
        self.callers = EngineCallers(HypothesisDraw(data))

    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        self.callers.submit(HypothesisDraw(data))

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.callers.act(HypothesisDraw(data))

    @rule()
    def step(self) -> None:
        self.callers.step()

    def teardown(self) -> None:
        if hasattr(self, "callers"):
            self.callers.finish()


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_live_engines_under_random_callers() -> None:
    random_engine_calls(range(300))


@pytest.mark.slow
def test_live_engines_under_random_callers_for_long() -> None:
    random_engine_calls(range(1000, 9000))
