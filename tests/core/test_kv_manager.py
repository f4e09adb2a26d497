"""The KV manager on its own: random callers, and what each operation does to tables, blocks and copies."""

from __future__ import annotations

import pytest
from hypothesis import settings
from kv_machine import ManagerMachine, make_request

from minillm.core.blocks import PoolError
from minillm.core.kv_manager import KVManager
from minillm.core.request import Request

TestManager = ManagerMachine.TestCase
TestManager.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def started(kv: KVManager, tokens: list[int]) -> Request:
    """A request with all its tokens computed."""
    request = make_request(f"q{len(kv.tables)}", tokens)
    assert kv.admit(request, kv.lookup(request))
    assert kv.reserve(request, len(tokens))
    request.num_computed = len(tokens)
    kv.commit(request)
    return request


def forked(kv: KVManager, parent: Request, token_id: int) -> Request:
    child = make_request(f"q{len(kv.tables)}", [*parent.token_ids, token_id])
    child.num_computed = parent.num_computed
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
    copies = kv.take_copies()
    assert [source for source, _ in copies] == [shared, shared]
    assert kv.table("q2") == [full, shared]
    assert [kv.table("q1"), kv.table("q0")] == [[full, target] for _, target in copies]
    assert kv.take_copies() == []
    for request in (parent, *children):
        kv.release(request)
    assert kv.pool.num_used == 0


def test_a_fork_at_the_end_of_a_block_copies_nothing() -> None:
    kv = KVManager(9, 2)
    parent = started(kv, [1, 2, 3, 4])
    child = forked(kv, parent, 9)
    assert kv.reserve(parent, 5)
    assert kv.reserve(child, 5)
    assert kv.take_copies() == []
    assert kv.table("q0")[:2] == kv.table("q1")[:2]
    assert kv.table("q0")[2] != kv.table("q1")[2]


def test_without_a_block_for_the_copy_nothing_is_reserved() -> None:
    kv = KVManager(4, 4)
    parent = started(kv, [1, 2])
    child = forked(kv, parent, 9)
    started(kv, [7] * 8)  # the two other blocks
    assert not kv.reserve(child, 3)
    assert kv.take_copies() == []
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
    assert sorted(kv.take_copies()) == sorted((original, kv.table(r)[0]) for r in ("q1", "q2"))


def test_a_fork_that_is_none_is_refused() -> None:
    kv = KVManager(9, 4)
    parent = started(kv, [1, 2])
    child = make_request("child", [1, 2, 3])
    with pytest.raises(PoolError, match="child with 0 computed tokens cannot fork from q0 with 2"):
        kv.fork(parent, child)
    child.num_computed = 2
    kv.fork(parent, child)
    with pytest.raises(PoolError, match="the child without a table"):
        kv.fork(parent, child)
