"""The event log of a run: every decision of the control plane, enough to replay the state of every block.

Kinds, and what their fields mean:

- ``arrive``: the request can be seen. ``tokens`` of its prompt.
- ``hit``: its table starts with these cached ``blocks``, shared from now on. ``tokens`` they hold.
- ``admit``: it leaves the queue. ``tokens`` known to it.
- ``fork``: its table starts with these ``blocks`` of the request in ``note``. ``tokens`` known to it, of which
  ``computed`` are in the cache.
- ``copy``: the first of two ``blocks`` in its table is replaced by the second, a copy: another table holds it.
- ``evict``: these ``blocks`` lose the cached content they had.
- ``allocate``: these ``blocks`` are appended to its table.
- ``leave``: no token to come reads these ``blocks``, the first ones of its table: the null block takes their place.
- ``schedule``: ``tokens`` of it run in this step, after ``computed`` tokens whose K/V is in the cache.
- ``draft``: so many unverified ``tokens`` run behind those scheduled.
- ``verify``: so many ``tokens`` of its draft were accepted: ``computed`` tokens are in the cache now.
- ``index``: these ``blocks`` of it are full and computed: others may hit them now.
- ``undo``: ``tokens`` of it were scheduled and will not run, for a step before failed. So many are ``computed``.
- ``land``: the step's results are there, of no one request. ``tokens`` ran; ``computed`` blocks are in use.
- ``drop``: what the step computed for it is stale, for it ended or was preempted since.
- ``token``: ``token_id`` was appended.
- ``preempt``: it goes back to the queue; ``computed`` tokens are lost unless they stay cached.
- ``retire``: a beam that others have crowded out; its request waits to be a fork of one of them.
- ``swap_out``: its ``computed`` tokens are in these host ``blocks`` from now on; its table goes by a ``free``.
  ``tokens`` slots are copied: less than the blocks have where some of them were on the host already.
- ``swap_in``: its table is back, in these ``blocks``, and its host blocks are given up. ``computed`` tokens,
  ``tokens`` slots copied: the other blocks were still there.
- ``host_free``: it gives up these host ``blocks`` without coming back.
- ``free``: its table ends without these ``blocks``, last first. A block may still be held by others.
- ``abort``: it is to end, once the step in flight that writes to its blocks has landed.
- ``finish``, ``error``: its end. ``note`` is the reason or the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from minillm.core.hooks import Kind, Trace


class TraceEvent(NamedTuple):
    """One decision. Fields that a kind does not use keep their defaults."""

    step: int
    time_s: float
    kind: Kind
    request_id: str
    blocks: tuple[int, ...] = ()
    tokens: int = 0
    computed: int = 0
    token_id: int = -1
    note: str = ""
    group: int = 0  # the cache group whose blocks these are


class EventLog(Trace):
    """Appends events under the current step and time, which the engine sets."""

    enabled = True

    def __init__(self) -> None:
        super().__init__()
        self.events: list[TraceEvent] = []
        self.step = 0
        self.time_s = 0.0

    def mark(self, step: int, time_s: float) -> None:
        self.step = step
        self.time_s = time_s

    def emit(self, kind: Kind, request_id: str, blocks: Sequence[int] = (), *args: Any, **fields: Any) -> None:
        self.events.append(TraceEvent(self.step, self.time_s, kind, request_id, tuple(blocks), *args, **fields))


class GroupTrace(Trace):
    """What one cache group does, as events of another trace."""

    enabled = True

    def __init__(self, trace: Trace, group: int) -> None:
        super().__init__()
        self._trace, self._group = trace, group

    def emit(self, kind: Kind, request_id: str, *args: Any, **fields: Any) -> None:
        self._trace.emit(kind, request_id, *args, **{**fields, "group": self._group})


def group_trace(trace: Trace, group: int) -> Trace:
    """What cache group ``group`` writes to: its events carry its number."""
    return GroupTrace(trace, group) if group and trace.enabled else trace
