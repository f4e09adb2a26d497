"""What a router hears: every block once, under its digest, and enough to notice that something is missing."""

from __future__ import annotations

import pytest
from kv_callers import make_request

from minillm.core.blocks import PoolError
from minillm.core.kv.block_keys import ExtraKey, digest128
from minillm.core.kv.events import BlockEvent, BlockRemoved, BlockStored, PrefixReplica, block_events
from minillm.core.kv_manager import KVManager


def serve(kv: KVManager, name: str, tokens: list[int]) -> None:
    request = make_request(name, tokens)
    assert kv.admit(request, kv.lookup(request))
    assert kv.reserve(request, len(tokens))
    request.num_computed_tokens = len(tokens)
    kv.commit(request)
    kv.release(request)


def heard(kv: KVManager) -> list[BlockEvent]:
    events: list[BlockEvent] = []
    block_events(kv).subscribe(events.append)
    return events


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_each_block_is_told_once_with_its_prefix_and_its_tokens(index: str) -> None:
    kv = KVManager(5, 2, prefix_index=index)  # type: ignore[arg-type]
    events = heard(kv)
    serve(kv, "a", [1, 2, 3, 4, 5])
    serve(kv, "again", [1, 2, 3, 4, 5])
    first, second = events
    one = digest128(b"\1\0\0\0\2\0\0\0")
    assert first == BlockStored(1, one, b"", (1, 2))
    assert second == BlockStored(2, digest128(one + b"\3\0\0\0\4\0\0\0"), one, (3, 4))
    serve(kv, "b", [7, 8, 9, 9, 9, 9])
    assert events[2] == BlockRemoved(3, second.digest)
    assert [type(event) for event in events[3:]] == [BlockStored] * 3


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_a_replica_that_missed_an_event_says_so_and_starts_again_from_a_snapshot(index: str) -> None:
    kv = KVManager(6, 2, prefix_index=index)  # type: ignore[arg-type]
    events = heard(kv)
    replica = PrefixReplica(2)
    serve(kv, "a", [1, 2, 3, 4, 5])
    serve(kv, "b", [7, 8, 9, 9, 9, 9, 1])
    assert replica.apply(events[0])
    assert replica.apply(events[0])  # doubled on its way: skipped
    assert not replica.apply(events[2])
    assert replica.cached_tokens([1, 2, 3, 4]) == 2
    replica.restart(block_events(kv).snapshot(), block_events(kv).number)
    assert len(replica) == len(kv.groups[0].index)
    told = len(events)
    serve(kv, "c", [6] * 8)
    assert all(replica.apply(event) for event in events[told:])
    for tokens in ([1, 2, 3, 4, 5], [7, 8, 9, 9, 9, 9, 1], [6] * 9):
        assert replica.cached_tokens(tokens[:-1]) == kv.lookup(make_request("probe", tokens)).num_tokens


def test_a_replica_tells_salts_apart() -> None:
    kv = KVManager(6, 2)
    events = heard(kv)
    request = make_request("a", [1, 2, 3], (ExtraKey("salt", "x"),))
    assert kv.admit(request, kv.lookup(request))
    assert kv.reserve(request, 3)
    request.num_computed_tokens = 3
    kv.commit(request)
    replica = PrefixReplica(2)
    assert all(replica.apply(event) for event in events)
    assert replica.cached_tokens([1, 2, 3], [ExtraKey("salt", "x")]) == 2
    assert replica.cached_tokens([1, 2, 3]) == 0


def test_events_asked_for_too_late_are_refused() -> None:
    kv = KVManager(6, 2)
    serve(kv, "a", [1, 2, 3])
    with pytest.raises(PoolError, match="1 blocks are indexed already"):
        block_events(kv)
