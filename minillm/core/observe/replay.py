"""The state of every block and table of a run, rebuilt from its event log alone."""

from __future__ import annotations

from collections.abc import Iterable

from minillm.core.blocks import NULL_BLOCK
from minillm.core.observe.trace import TraceEvent


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
