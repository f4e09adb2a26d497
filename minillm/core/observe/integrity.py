"""What must hold of requests, tables, index and pool between any two steps."""

from __future__ import annotations

from minillm.core.errors import EngineError
from minillm.core.kv_manager import KVManager
from minillm.core.request import Status
from minillm.core.scheduler import Scheduler


def check_integrity(scheduler: Scheduler, kv: KVManager) -> None:
    """Raise ``EngineError`` or ``PoolError`` unless requests, tables, index and pool agree."""
    kv.check()
    running = scheduler.running
    swapped = scheduler.swapped.requests()
    if len(swapped) != scheduler.swapped.num_requests or not all(map(kv.is_swapped, swapped)):
        raise EngineError(f"{len(swapped)} requests are swapped out, the queue counts them otherwise")
    if set(kv.tables) != {request.request_id for request in running}:
        raise EngineError(f"tables of {sorted(kv.tables)}, but {len(running)} requests run")
    for request in running:
        holds_still = request.group is not None and request.group.beams is not None
        if (
            request.status is not Status.RUNNING
            or not 0 <= request.num_computed_tokens < request.num_known + holds_still
        ):
            raise EngineError(
                f"{request.request_id} is {request.status.value}, {request.num_computed_tokens} of "
                f"{request.num_known} tokens computed"
            )
        if request.group is not None and request.group.beams is not None and request.group.beams.have_parted:
            raise EngineError(f"of the beams of {request.group.members[0].request_id} some run and some do not")
        tokens = request.num_computed_tokens + request.num_in_flight
        for blocks in [one.table(request.request_id) for one in (kv, *kv.others)]:
            if len(blocks) != kv.blocks_for(tokens):
                raise EngineError(f"{request.request_id} holds {len(blocks)} blocks for {tokens} tokens")
