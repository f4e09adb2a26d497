"""The pool on its own: a state machine against a model of sets."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minillm.core.blocks import BlockPool, PoolError


class PoolMachine(RuleBasedStateMachine):
    """The pool against a dict of counts and a list in the order of release."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.counts: dict[int, int] = {}
        self.free = [1, 2, 3, 4, 5]
        self.epochs = dict.fromkeys(range(6), 0)

    @precondition(lambda self: self.free)
    @rule()
    def allocate(self) -> None:
        expected = self.free.pop(0)
        assert self.pool.allocate() == expected
        self.counts[expected] = 1
        self.epochs[expected] += 1

    @precondition(lambda self: not self.free)
    @rule()
    def allocate_from_nothing(self) -> None:
        with pytest.raises(PoolError, match="all 5 blocks are used"):
            self.pool.allocate()

    @rule(block=st.integers(1, 5))
    def touch(self, block: int) -> None:
        self.pool.touch(block)
        if block in self.free:
            self.free.remove(block)
        self.counts[block] = self.counts.get(block, 0) + 1

    @rule(block=st.integers(1, 5), to_front=st.booleans())
    def release(self, block: int, to_front: bool) -> None:
        if not self.counts.get(block):
            with pytest.raises(PoolError, match=f"block {block} is released"):
                self.pool.release(block, to_front=to_front)
            return
        self.counts[block] -= 1
        assert self.pool.release(block, to_front=to_front) == (self.counts[block] == 0)
        if not self.counts[block]:
            self.free.insert(0 if to_front else len(self.free), block)

    @rule(block=st.sampled_from([-1, 0, 6]))
    def null_and_unknown_blocks_are_refused(self, block: int) -> None:
        with pytest.raises(PoolError, match=r"outside 1 \.\. 5"):
            self.pool.touch(block)
        with pytest.raises(PoolError, match=r"outside 1 \.\. 5"):
            self.pool.release(block, to_front=True)

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        assert self.pool.free_list() == self.free
        assert [self.pool.ref_counts[b] for b in range(1, 6)] == [self.counts.get(b, 0) for b in range(1, 6)]
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_used == 5 - len(self.free)
        assert dict(enumerate(self.pool.epochs)) == self.epochs


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
