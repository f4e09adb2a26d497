"""What must hold of requests, tables, index and pool between any two steps."""

from __future__ import annotations

from minillm.core.blocks import PoolError
from minillm.core.errors import EngineError
from minillm.core.kv_manager import KVManager
from minillm.core.request import Status
from minillm.core.scheduler import Scheduler


def check_integrity(scheduler: Scheduler, kv: KVManager) -> None:
    """Raise ``EngineError`` or ``PoolError`` unless requests, tables, index and pool agree."""
    check_kv(kv)
    running = scheduler.running
    swapped = scheduler.swapped.requests()
    names = {request.request_id for request in swapped}
    if len(swapped) != scheduler.swapped.num_requests or names != kv.swap.tables.keys():
        raise EngineError(f"{len(swapped)} requests are swapped out, the queue counts them otherwise")
    if set(kv.block_tables) != {request.request_id for request in running}:
        raise EngineError(f"tables of {sorted(kv.block_tables)}, but {len(running)} requests run")
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
        for blocks in [group.tables[request.request_id].blocks for group in kv.groups]:
            if len(blocks) != -(-tokens // kv.block_size):
                raise EngineError(f"{request.request_id} holds {len(blocks)} blocks for {tokens} tokens")


def check_kv(kv: KVManager) -> None:
    """Raise ``PoolError`` unless pool, indexes, tables and host blocks agree."""
    kv.pool.check()
    held = [0] * kv.pool.num_blocks
    for group in kv.groups:
        group.index.check()
        for request_id, table in group.tables.items():
            blocks, skipped = table.blocks[table.num_skipped :], table.blocks[: table.num_skipped]
            if any(skipped) or not all(blocks):
                raise PoolError(f"{request_id} has skipped {table.num_skipped} blocks, its table is {table.blocks}")
            for block in blocks:
                held[block] += 1
        if both := group.tables.keys() & kv.swap.tables.keys():
            raise PoolError(f"{sorted(both)} have a table on the device and one on the host")
    for block in kv.holds.held():
        held[block] += 1
    if held != kv.pool.ref_counts:
        raise PoolError(f"blocks are held {held} times by tables and others, the pool counts {kv.pool.ref_counts}")
    kv.host.check([swapped.hosts for tables in kv.swap.tables.values() for swapped in tables])
