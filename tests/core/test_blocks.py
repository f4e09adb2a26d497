"""The pool on its own: a state machine against a model of sets."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from pool_callers import PoolCallers
from random_choices import HypothesisDraw

from minillm.core.blocks import BlockPool, PoolError


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.callers = PoolCallers()

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.callers.act(HypothesisDraw(data))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_pool_of_one_block_is_refused() -> None:
    with pytest.raises(ValueError, match="pool of 1 blocks"):
        BlockPool(1)


def test_check_finds_each_kind_of_damage() -> None:
    def damaged(**fields: object) -> BlockPool:
        pool = BlockPool(4)
        pool.allocate()
        for name, value in fields.items():
            setattr(pool, name, value)
        return pool

    damaged().check()
    for fields in (
        {"num_free": 3},
        {"ref_counts": [0, 0, 0, 0]},
        {"ref_counts": [0, 1, 1, 0]},
        {"ref_counts": [1, 1, 0, 0]},
        {"_next": [2, 0, 2, 0]},
        {"_prev": [3, 0, 0, 1]},
    ):
        with pytest.raises(PoolError):
            damaged(**fields).check()
