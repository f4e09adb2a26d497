"""What the pool of a prefix cache holds at moments of a run, the next to be evicted first, and what has been evicted.

Whether anybody asks for a content again is known once the run is over: an evictor has to guess it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

from minillm.core.kv.eviction import EvictionName
from minillm.core.observe.trace import TraceEvent
from visualizers.runs import prefix_trace
from visualizers.runs.bench import BLOCK_SIZE, Bench
from visualizers.runs.prefix_trace import Traffic, Workload

MOMENTS = 24  # of a run, at even times
CELLS = 80  # equal parts of the pool in a picture of it
SYSTEM, TALK, UNWANTED, EMPTY, HELD = (
    "system prompt",
    "ongoing conversation",
    "nobody asks again",
    "empty",
    "in use",
)
KINDS = (SYSTEM, TALK, UNWANTED, EMPTY, HELD)
Content = tuple[str, ...]  # what a block caches: whose, and of which text


@dataclass(frozen=True)
class Moment:
    """The pool at a time. ``cells`` are kinds, the next to be evicted first, those in use last; ``dead``, tokens."""

    time_s: float
    cells: tuple[str, ...]
    dead: Counter[str]


@dataclass(frozen=True)
class _Look:
    """The pool as it was seen: contents in the order of eviction (None for none), then the blocks in use."""

    time_s: float
    free: tuple[Content | None, ...]
    held: int


class _Watch:
    """Follows the events of an engine and looks at its pool at even times."""

    def __init__(self, bench: Bench, work: Workload, salted: bool, until_s: float) -> None:
        self._bench, self._work, self._salted = bench, work, salted
        self._times = [until_s * i / MOMENTS for i in range(MOMENTS + 1)]
        self._tables: dict[str, list[int]] = {}
        self._contents: dict[int, Content] = {}
        self.looks: list[_Look] = []
        self.deaths: list[tuple[float, Content]] = []

    def __call__(self) -> None:
        """After each step."""
        events = self._bench.engine.trace.events
        for event in events:
            self._follow(event)
        events.clear()
        while len(self.looks) <= MOMENTS and self._bench.engine.clock() >= self._times[len(self.looks)]:
            self.look()

    def look(self) -> None:
        pool = self._bench.engine.kv.pool
        free = tuple(self._contents.get(block) for block in pool.free_list())
        self.looks.append(_Look(self._times[len(self.looks)], free, pool.num_blocks - 1 - len(free)))

    def _follow(self, event: TraceEvent) -> None:
        table = self._tables.setdefault(event.request_id, [])
        match event.kind:
            case "hit" | "allocate":
                table.extend(event.blocks)
            case "free":
                gone = set(event.blocks)
                self._tables[event.request_id] = [block for block in table if block not in gone]
            case "index":
                for block in event.blocks:
                    self._contents[block] = self._content(event.request_id, table.index(block))
            case "evict":
                self.deaths += [(event.time_s, self._contents.pop(block)) for block in event.blocks]

    def _content(self, request: str, place: int) -> Content:
        if not request.startswith("c"):
            return ("document", request)
        talk = self._work.conversations[int(request[1:].split(".")[0])]
        tenant = talk.tenant if self._salted else ""
        if (place + 1) * BLOCK_SIZE <= len(talk.system):
            return ("system", tenant, str(talk.system[0]))
        return ("talk", request.split(".")[0])


@cache
def moments(traffic: Traffic, pool_tokens: int, policy: EvictionName) -> tuple[Moment, ...]:
    """The run at ``MOMENTS`` even times and at its start."""
    work, salted = prefix_trace.workload(traffic), traffic == "salts"
    bench, run = prefix_trace.prepared(traffic, pool_tokens, policy, record_trace=True)
    watch = _Watch(bench, work, salted, prefix_trace.serve(traffic, None).end_s)
    run(watch)
    while len(watch.looks) <= MOMENTS:  # a run that ends before the one with room for everything
        watch.look()
    last = _last_asked(bench, work, salted)
    return tuple(_moment(look, watch.deaths, last) for look in watch.looks)


def _last_asked(bench: Bench, work: Workload, salted: bool) -> dict[Content, float]:
    """When each content was looked for the last time."""
    found: dict[Content, float] = {}
    for request in bench.requests:
        if request.request_id.startswith("c"):
            name = request.request_id.split(".")[0]
            talk = work.conversations[int(name[1:])]
            start_s = request.admitted_s or 0.0
            for content in (("talk", name), ("system", talk.tenant if salted else "", str(talk.system[0]))):
                found[content] = max(start_s, found.get(content, 0.0))
    return found


def _moment(look: _Look, deaths: list[tuple[float, Content]], last: dict[Content, float]) -> Moment:
    def kind(content: Content | None, time_s: float) -> str:
        if content is None:
            return EMPTY
        if last.get(content, -1.0) <= time_s:
            return UNWANTED
        return SYSTEM if content[0] == "system" else TALK

    blocks = [kind(content, look.time_s) for content in look.free] + [HELD] * look.held
    cells = [blocks[(2 * i + 1) * len(blocks) // (2 * CELLS)] for i in range(CELLS)]
    dead = Counter(kind(content, time_s) for time_s, content in deaths if time_s <= look.time_s)
    return Moment(look.time_s, tuple(cells), Counter({name: BLOCK_SIZE * n for name, n in dead.items()}))
