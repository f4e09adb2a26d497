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

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from minillm.core.blocks import NULL_BLOCK

Kind = Literal[
    "arrive",
    "hit",
    "admit",
    "fork",
    "copy",
    "evict",
    "allocate",
    "leave",
    "schedule",
    "draft",
    "verify",
    "index",
    "undo",
    "land",
    "drop",
    "token",
    "preempt",
    "retire",
    "swap_out",
    "swap_in",
    "host_free",
    "free",
    "abort",
    "finish",
    "error",
]


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
    group: int = 0  # of layers, whose blocks these are: `minillm.core.kv.layer_groups`


class Trace:
    """Appends events under the current step and time, which the engine sets. Disabled, it keeps nothing."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.events: list[TraceEvent] = []
        self.step = 0
        self.time_s = 0.0

    def mark(self, step: int, time_s: float) -> None:
        self.step = step
        self.time_s = time_s

    def emit(
        self,
        kind: Kind,
        request_id: str,
        blocks: Sequence[int] = (),
        tokens: int = 0,
        computed: int = 0,
        token_id: int = -1,
        note: str = "",
        group: int = 0,
    ) -> None:
        if self.enabled:
            blocks = tuple(blocks)
            self.events.append(
                TraceEvent(self.step, self.time_s, kind, request_id, blocks, tokens, computed, token_id, note, group)
            )


class GroupTrace(Trace):
    """What one layer group does, as events of another trace."""

    def __init__(self, trace: Trace, group: int) -> None:
        super().__init__(trace.enabled)
        self._trace, self._group = trace, group

    def emit(self, kind: Kind, request_id: str, *args: Any, **fields: Any) -> None:
        self._trace.emit(kind, request_id, *args, **{**fields, "group": self._group})


class Replay:
    """The state of every block and table, rebuilt from events alone."""

    def __init__(self, num_blocks: int) -> None:
        self.holders: list[list[str]] = [[] for _ in range(num_blocks)]  # request ids, first holder first
        self.cached = [False] * num_blocks
        self.tables: dict[str, list[int]] = {}
        self.host_tables: dict[str, list[int]] = {}  # of swapped requests
        self.computed: dict[str, int] = {}  # tokens in the cache once all steps planned so far have run
        self.known: dict[str, int] = {}  # tokens known, for requests that arrived and did not end
        self._drafted: dict[str, int] = {}  # tokens that will run behind those about to be scheduled
        self.waiting: set[str] = set()
        self.running: set[str] = set()
        self.groups: dict[int, Replay] = {}  # of the other layer groups: their tables, of the same blocks
        self.num_applied = 0

    def apply(self, events: Iterable[TraceEvent]) -> None:
        for event in events:
            self._apply(event)
            self.num_applied += 1

    def _apply(self, event: TraceEvent) -> None:
        request_id = event.request_id
        if event.group:
            self._group(event.group)._apply(event._replace(group=0))
            return
        match event.kind:
            case "arrive":
                self.known[request_id] = event.tokens
                self.waiting.add(request_id)
            case "hit" | "allocate":
                self.tables.setdefault(request_id, []).extend(event.blocks)
                self._hold(request_id, event.blocks)
                if event.kind == "hit":
                    self.computed[request_id] = event.tokens
            case "fork":
                self.tables[request_id] = list(event.blocks)
                self.known[request_id] = event.tokens
                self.computed[request_id] = event.computed
                self.running.add(request_id)
                self._hold(request_id, event.blocks)
            case "copy":
                source, target = event.blocks
                table = self.tables[request_id]
                table[table.index(source)] = target
                self.holders[source].remove(request_id)
                self.holders[target].append(request_id)
            case "index":
                for block in event.blocks:
                    self.cached[block] = True
            case "evict":
                for block in event.blocks:
                    self.cached[block] = False
            case "free":
                table = self.tables[request_id]
                for block in event.blocks:
                    if table.pop() != block:
                        raise ValueError(f"step {event.step}: {request_id} frees block {block} out of order")
                    if block != NULL_BLOCK:
                        self.holders[block].remove(request_id)
            case "leave":
                table = self.tables[request_id]
                for block in event.blocks:
                    table[table.index(block)] = NULL_BLOCK
                    self.holders[block].remove(request_id)
            case "swap_out":
                self.host_tables[request_id] = list(event.blocks)
                self.waiting.discard(request_id)
                self.computed[request_id] = event.computed
            case "swap_in":
                del self.host_tables[request_id]
                self.running.add(request_id)
                self.tables[request_id] = list(event.blocks)
                self._hold(request_id, event.blocks)
            case "host_free":
                del self.host_tables[request_id]
            case "draft":
                self._drafted[request_id] = event.tokens
            case "schedule":
                self.computed[request_id] = event.computed + event.tokens + self._drafted.pop(request_id, 0)
            case "verify" | "undo":
                self.computed[request_id] = event.computed
            case "token":
                self.known[request_id] += 1
            case "preempt":
                self.computed[request_id] = 0
                self.running.remove(request_id)
                self.waiting.add(request_id)
            case "finish" | "error" | "retire":
                self.known.pop(request_id, None)
                self.computed.pop(request_id, None)
                self.tables.pop(request_id, None)
                self.waiting.discard(request_id)
                self.running.discard(request_id)
            case "admit":
                self.waiting.remove(request_id)
                self.running.add(request_id)
                self.computed.setdefault(request_id, 0)

    def _group(self, group: int) -> Replay:
        if group not in self.groups:
            self.groups[group] = Replay(0)
            self.groups[group].holders, self.groups[group].cached = self.holders, self.cached
        return self.groups[group]

    def _hold(self, request_id: str, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block != NULL_BLOCK:
                self.holders[block].append(request_id)
