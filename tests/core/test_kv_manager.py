"""The KV manager on its own: random callers, and what each operation does to tables, blocks and copies."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from kv_callers import Callers, make_request, random_calls
from random_choices import HypothesisDraw

from minillm.core.blocks import PoolError
from minillm.core.kv_manager import KVManager
from minillm.core.observe.integrity import check_kv
from minillm.core.request import Request


class ManagerMachine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def setup(self, data: st.DataObject) -> None:
        self.callers = Callers(HypothesisDraw(data))

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.callers.act(HypothesisDraw(data))


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_the_manager_under_random_callers() -> None:
    random_calls(range(300))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_the_manager_under_random_callers_for_long(block: int) -> None:
    random_calls(range(1000 + block * 5000, 1000 + (block + 1) * 5000))


def fresh_id(kv: KVManager) -> str:
    return next(f"q{i}" for i in count() if f"q{i}" not in kv.block_tables and f"q{i}" not in kv.swap.tables)


def started(kv: KVManager, tokens: list[int]) -> Request:
    """A request with all its tokens computed."""
    request = make_request(fresh_id(kv), tokens)
    assert kv.admit(request, kv.lookup(request))
    assert kv.reserve(request, len(tokens))
    request.num_computed_tokens = len(tokens)
    kv.commit(request)
    return request


def forked(kv: KVManager, parent: Request, token_id: int) -> Request:
    child = make_request(fresh_id(kv), [*parent.token_ids, token_id])
    child.num_computed_tokens = parent.num_computed_tokens
    kv.fork(parent, child)
    return child


def test_the_last_holder_of_a_shared_block_writes_in_place() -> None:
    kv = KVManager(9, 4)
    parent = started(kv, [1, 2, 3, 4, 5])
    children = [forked(kv, parent, i) for i in range(2)]
    full, shared = kv.table("q0")
    assert kv.pool.num_used == 2
    for request in (children[0], parent):
        assert kv.reserve(request, 6)
    assert kv.reserve(children[1], 6)
    copies = kv.copies.take()
    assert [source for source, _ in copies] == [shared, shared]
    assert kv.table("q2") == [full, shared]
    assert [kv.table("q1"), kv.table("q0")] == [[full, target] for _, target in copies]
    assert kv.copies.take() == []
    for request in (parent, *children):
        kv.release(request)
    assert kv.pool.num_used == 0


def test_a_fork_at_the_end_of_a_block_copies_nothing() -> None:
    kv = KVManager(9, 2)
    parent = started(kv, [1, 2, 3, 4])
    child = forked(kv, parent, 9)
    assert kv.reserve(parent, 5)
    assert kv.reserve(child, 5)
    assert kv.copies.take() == []
    assert kv.table("q0")[:2] == kv.table("q1")[:2]
    assert kv.table("q0")[2] != kv.table("q1")[2]


def test_without_a_block_for_the_copy_nothing_is_reserved() -> None:
    kv = KVManager(4, 4)
    parent = started(kv, [1, 2])
    child = forked(kv, parent, 9)
    started(kv, [7] * 8)  # the two other blocks
    assert not kv.reserve(child, 3)
    assert kv.copies.take() == []
    assert kv.table("q1") == kv.table("q0")
    kv.release(parent)  # the child is the last holder now: it needs no block
    assert kv.reserve(child, 3)


def test_a_fork_shares_no_block_that_was_reserved_for_tokens_in_flight() -> None:
    kv = KVManager(9, 2)
    parent = started(kv, [1, 2, 3])
    assert kv.reserve(parent, 7)
    child = forked(kv, parent, 9)
    assert kv.table("q1") == kv.table("q0")[:2]
    assert kv.reserve(child, 4)
    assert kv.table("q1")[1] != kv.table("q0")[1]


def test_the_copy_of_a_copy_is_taken_from_the_original() -> None:
    """Two copies between two steps, the second of the first one's target: no order of copying may matter."""
    kv = KVManager(9, 4)
    parent = started(kv, [1, 2])
    child = forked(kv, parent, 9)
    [original] = kv.table("q0")
    assert kv.reserve(child, 3)
    grandchild = forked(kv, child, 8)
    assert kv.reserve(grandchild, 3)
    assert sorted(kv.copies.take()) == sorted((original, kv.table(r)[0]) for r in ("q1", "q2"))


def test_a_fork_that_is_none_is_refused() -> None:
    kv = KVManager(9, 4)
    parent = started(kv, [1, 2])
    child = make_request("child", [1, 2, 3])
    with pytest.raises(PoolError, match="child with 0 computed tokens cannot fork from q0 with 2"):
        kv.fork(parent, child)
    child.num_computed_tokens = 2
    kv.fork(parent, child)
    with pytest.raises(PoolError, match="the child without a table"):
        kv.fork(parent, child)


# --- swapping ---------------------------------------------------------------------------------------------


def test_a_swapped_table_comes_back_by_copies_of_what_is_gone() -> None:
    kv = KVManager(6, 2, num_host_blocks=4)
    request = started(kv, [1, 2, 3, 4, 5])
    old = list(kv.table("q0"))
    assert kv.swap.swap_out(request)
    assert (kv.pool.num_used, kv.host.num_free, request.num_computed_tokens) == (0, 1, 5)
    assert kv.copies.take() == [(block, 6 + i) for i, block in enumerate(old)]
    other = started(kv, [9] * 8)  # takes four of the five blocks: the cached ones lose their content but for one
    kv.release(other)
    assert kv.swap.swap_in(request)
    table = kv.table("q0")
    assert table[0] == old[0]  # still cached, so it joined the table as it was
    assert kv.copies.take() == [(7, table[1]), (8, table[2])]
    assert kv.host.num_free == 4
    check_kv(kv)


def test_content_of_several_tables_is_copied_to_the_host_once() -> None:
    kv = KVManager(20, 2, num_host_blocks=9)
    parent = started(kv, [1, 2, 3, 4, 5])
    child = forked(kv, parent, 9)
    assert kv.swap.swap_out(parent)
    assert len(kv.copies.take()) == 3
    assert kv.swap.swap_out(child)
    assert len(kv.copies.take()) == 1  # the last block still fills up: each table has its own
    assert kv.host.num_free == 9 - 4
    kv.release(started(kv, [7] * 38))  # the whole pool: nothing that was cached is left
    assert kv.swap.swap_in(parent)
    assert len(kv.copies.take()) == 3
    assert kv.swap.swap_in(child)
    assert len(kv.copies.take()) == 1
    assert kv.table(child.request_id)[:2] == kv.table(parent.request_id)[:2]
    assert kv.table(child.request_id)[2] != kv.table(parent.request_id)[2]
    assert kv.host.num_free == 9


def test_a_block_that_others_hold_stays_and_is_not_copied_back() -> None:
    kv = KVManager(9, 2, num_host_blocks=4, prefix_caching=False)
    parent = started(kv, [1, 2, 3, 4, 5])
    child = forked(kv, parent, 9)
    assert kv.swap.swap_out(child)
    assert kv.swap.swap_in(child)
    assert kv.table("q1")[:2] == kv.table("q0")[:2]
    kv.release(parent)
    assert kv.swap.swap_out(child)
    kv.copies.take()
    assert kv.swap.swap_in(child)  # held by nobody and not indexed, a free block may be anyone's
    assert [target for _, target in kv.copies.take()] == kv.table("q1")


def test_without_room_on_either_side_nothing_is_swapped() -> None:
    kv = KVManager(5, 2, num_host_blocks=2)
    request = started(kv, [1, 2, 3, 4, 5])
    assert not kv.swap.swap_out(request)
    assert (kv.copies.take(), kv.host.num_free, len(kv.table("q0"))) == ([], 2, 3)
    kv.rewind(request, 5)
    small = started(kv, [6, 7])
    assert kv.swap.swap_out(small)
    small.token_ids += [8, 9]  # two blocks for the known tokens, one is free
    kv.copies.take()
    assert not kv.swap.swap_in(small)
    assert (kv.copies.take(), kv.pool.num_free, kv.host.num_free) == ([], 1, 1)
    kv.release(request)
    assert kv.swap.swap_in(small)
    check_kv(kv)


def test_a_swapped_request_that_leaves_gives_its_host_blocks_back() -> None:
    kv = KVManager(9, 2, num_host_blocks=2)
    request = started(kv, [1, 2, 3])
    assert kv.swap.swap_out(request)
    copies = kv.copies.take()
    assert kv.swap.swapped_by(copies) == ["q0"]
    assert kv.swap.swapped_by([(1, 2)]) == []
    kv.release(request)
    assert (kv.host.num_free, (request.request_id in kv.swap.tables), kv.swap.swapped_by(copies)) == (2, False, [])
    with pytest.raises(PoolError, match="host block 9 is released, but no table holds it"):
        kv.host.release([9])


def test_a_table_swapped_out_and_in_before_the_next_step_is_copied_from_where_it_was() -> None:
    kv = KVManager(9, 2, num_host_blocks=2, prefix_caching=False)
    request = started(kv, [1, 2, 3])
    old = list(kv.table("q0"))
    assert kv.swap.swap_out(request)
    assert kv.swap.swap_in(request)
    assert [(source, target) for source, target in kv.copies.take() if target < 9] == [
        pair for pair in zip(old, kv.table("q0"), strict=True) if pair[0] != pair[1]
    ]


def test_check_finds_host_blocks_that_disagree() -> None:
    def swapped() -> KVManager:
        kv = KVManager(9, 2, num_host_blocks=3)
        assert kv.swap.swap_out(started(kv, [1, 2, 3]))
        check_kv(kv)
        return kv

    kv = swapped()
    kv.host._ref_counts[2] = 1
    with pytest.raises(PoolError, match="host blocks are held"):
        check_kv(kv)
    kv = swapped()
    kv.host._free.append(9)
    with pytest.raises(PoolError, match="free host blocks"):
        check_kv(kv)
    kv = swapped()
    kv.host._host_of.clear()
    with pytest.raises(PoolError, match="twins"):
        check_kv(kv)
    kv = swapped()
    again = make_request("q0", [1, 2, 3])
    assert kv.admit(again, kv.lookup(again))
    with pytest.raises(PoolError, match="on the device and one on the host"):
        check_kv(kv)
