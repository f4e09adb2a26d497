"""Pool and prefix index on their own: a state machine against a model of sets, and the index's claims."""

from __future__ import annotations

import pytest
from core_harness import six_bits
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minillm.core.blocks import BlockPool, PoolError
from minillm.core.prefix import PrefixIndex, digest128


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


def filled(*chains: list[list[int]]) -> tuple[BlockPool, PrefixIndex, list[list[int]]]:
    """An index with these chains of two-token blocks, and their block ids."""
    pool = BlockPool(20)
    index = PrefixIndex(pool, 2, digest128)
    ids = []
    for chain in chains:
        link, blocks = index.root(()), []
        for tokens in chain:
            blocks.append(pool.allocate())
            link, _ = index.insert(link, blocks[-1], tokens, ())
        ids.append(blocks)
    return pool, index, ids


def test_a_match_is_the_longest_chain_of_whole_blocks() -> None:
    _, index, [blocks] = filled([[1, 1], [2, 2], [3, 3]])
    assert index.match([1, 1, 2, 2, 3, 3, 4], (), 3)[0] == blocks
    assert index.match([1, 1, 2, 2, 3, 3], (), 2)[0] == blocks[:2]
    assert index.match([1, 1, 2, 9, 3, 3], (), 3)[0] == blocks[:1]
    assert index.match([2, 2], (), 1)[0] == []  # not a beginning


def test_i10_a_child_of_an_evicted_block_is_out_of_reach() -> None:
    pool, index, [blocks] = filled([[1, 1], [2, 2]])
    index.remove(blocks[0])
    assert index.match([1, 1, 2, 2], (), 2)[0] == []
    # The same content comes back in another block: the old child still claims the old parent, and misses.
    fresh = pool.allocate()
    index.insert(index.root(()), fresh, [1, 1], ())
    assert index.match([1, 1, 2, 2], (), 2)[0] == [fresh]
    index.check()


def test_i10_a_parent_in_the_same_block_with_a_later_epoch_is_another_parent() -> None:
    pool, index, [blocks] = filled([[1, 1], [2, 2]])
    index.remove(blocks[0])
    pool.release(blocks[0], to_front=True)
    assert pool.allocate() == blocks[0]
    index.insert(index.root(()), blocks[0], [1, 1], ())
    assert index.match([1, 1, 2, 2], (), 2)[0] == [blocks[0]]


def test_equal_content_is_indexed_once_and_chains_meet() -> None:
    pool, index, [blocks] = filled([[1, 1], [2, 2]])
    twin = pool.allocate()
    link, displaced = index.insert(index.root(()), twin, [1, 1], ())
    assert (link.block, displaced) == (blocks[0], None)
    assert twin not in index
    # The twin's next block hangs under the indexed one, so a later request finds both.
    own = pool.allocate()
    index.insert(link, own, [7, 7], ())
    assert index.match([1, 1, 7, 7], (), 2)[0] == [blocks[0], own]


def test_colliding_digests_cost_a_hit_and_nothing_else() -> None:
    pool = BlockPool(200)
    index = PrefixIndex(pool, 1, lambda data: b"")  # every prefix has the same digest
    first, second = pool.allocate(), pool.allocate()
    index.insert(index.root(()), first, [1], ())
    _, displaced = index.insert(index.root(()), second, [2], ())
    assert displaced == first
    assert index.match([1], (), 1)[0] == []
    assert index.match([2], (), 1)[0] == [second]
    index.check()


def test_a_chain_is_valid_until_its_last_block_is_removed() -> None:
    _, index, [blocks] = filled([[1, 1], [2, 2]])
    _, link = index.match([1, 1, 2, 2], (), 2)
    assert index.is_valid(link)
    index.remove(blocks[1])
    assert not index.is_valid(link)
    assert index.is_valid(index.root(()))


def test_check_finds_a_digest_that_names_another_block() -> None:
    _, index, [blocks] = filled([[1, 1], [2, 2]])
    index._block_of[index._entry_of[blocks[0]].digest] = blocks[1]
    with pytest.raises(PoolError, match="names another block"):
        index.check()
    _, index, [blocks] = filled([[1, 1]])
    index._entry_of[blocks[0]] = index._entry_of[blocks[0]]._replace(tokens=b"1234")
    with pytest.raises(PoolError, match="a part of its 2 tokens"):
        index.check()
    _, index, [blocks] = filled([[1, 1]])
    index._block_of.clear()
    with pytest.raises(PoolError, match="0 digests for 1"):
        index.check()


def test_the_short_hash_of_the_fuzz_does_collide() -> None:
    assert len({six_bits(bytes([i])) for i in range(200)}) <= 64
