"""What is kept of one engine's run: a row a step, a lane a request, the blocks' changes; bounded however long it runs.

Read off the engine's own trace after each step. Older steps are thinned by pairs, so that a run of any length
keeps its shape in the same memory.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from minillm.core.blocks import NULL_BLOCK
from minillm.core.engine import Engine
from minillm.core.observe.trace import TraceEvent
from minillm.core.request import Event, Request

MOST_STEPS = 8192  # rows kept; beyond it the older half is merged by pairs
MOST_DETAILS = 1024  # steps whose plan and blocks can still be pointed at
MOST_LANES = 128  # requests shown; older ones that ended go first
MOST_GAPS = 8192  # points of the latency plot, thinned as the steps are
MOST_TRACE = 100_000  # events of the trace that can be downloaded
MOST_SPANS = 200  # of a lane; the first ones are joined
MOST_TEXT = 2000  # characters of an answer that are kept
RECENT = 256  # gaps that the running percentiles look at
MOST_MAPPED = 1024  # blocks of a pool that is drawn block by block

# The row of a step. Times in seconds of the engine's clock; ``merged`` steps stand in one row.
COLUMNS = (
    "t0", "t1", "merged", "prefill", "decode", "drafted", "accepted", "running", "waiting",
    "held", "cached", "preempted", "p50_ms", "p99_ms", "memory_bytes",
)  # fmt: skip
_SUMMED = frozenset(["merged", "prefill", "decode", "drafted", "accepted"])
FREE, HELD, SHARED, CACHED = range(4)  # states of a block


@dataclass(slots=True)
class Lane:
    """A request as it is drawn: its spans end to end, its text, its latencies."""

    number: int
    arrival_s: float
    prompt: str
    prompt_tokens: int
    max_tokens: int
    status: str = "waiting"  # waiting, running, preempted, swapped, done, aborted, refused, failed
    spans: list[list[Any]] = field(
        default_factory=list
    )  # [kind, from, to]: prefill, decode, preempted, swapped; the rest waits
    text: str = ""
    output_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    ttft_s: float | None = None
    end_s: float | None = None
    last_token_s: float | None = None
    gaps: int = 0
    why: str = ""
    fresh: bool = True  # changed since it was last told of
    told_spans: int = 0  # spans and characters that were told of, and won't change
    told_text: int = 0

    def changes(self) -> dict[str, Any]:
        """Since this was asked last; ``from_span`` and ``from_text`` say from where on."""
        found = self.told()
        spans, text = found["spans"], found["text"]
        at_span = min(self.told_spans, len(spans))
        whole = len(text) >= MOST_TEXT  # it is cut at its beginning
        at_text = 0 if whole else min(self.told_text, len(text))
        self.told_spans, self.told_text = max(len(spans) - 1, 0), len(text)
        return {**found, "spans": spans[at_span:], "from_span": at_span, "text": text[at_text:], "from_text": at_text}

    def told(self) -> dict[str, Any]:
        return {
            "n": self.number, "arrival_s": round(self.arrival_s, 6), "prompt": self.prompt[:200],
            "prompt_tokens": self.prompt_tokens, "max_tokens": self.max_tokens, "status": self.status,
            "spans": [[kind, round(a, 6), round(b, 6)] for kind, a, b in self.spans],
            "text": self.text[-MOST_TEXT:], "output_tokens": self.output_tokens, "cached_tokens": self.cached_tokens,
            "preemptions": self.preemptions, "ttft_ms": None if self.ttft_s is None else round(self.ttft_s * 1e3, 3),
            "end_s": self.end_s, "why": self.why,
        }  # fmt: skip


class Percentiles:
    """Of the last ``size`` values, kept sorted."""

    def __init__(self, size: int = RECENT) -> None:
        self._size, self._order, self._sorted = size, deque[float](), list[float]()

    def add(self, value: float) -> None:
        self._order.append(value)
        insort(self._sorted, value)
        if len(self._order) > self._size:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]

    def at(self, share: float) -> float | None:
        """The nearest-rank percentile; None without values."""
        return self._sorted[min(int(share * len(self._sorted)), len(self._sorted) - 1)] if self._sorted else None


class Record:
    """The run of one engine. :meth:`step` takes in what a step did, :meth:`news` tells what was not told yet."""

    def __init__(self, engine: Engine, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.rows: list[list[Any]] = []
        self.gaps: list[tuple[float, float, int]] = []  # when, ms, request
        self.lanes: dict[int, Lane] = {}
        self.dropped_lanes = 0
        self.num_steps = 0
        self.trace = deque[TraceEvent](maxlen=MOST_TRACE)
        self.plans = deque[dict[str, Any]](maxlen=MOST_DETAILS)
        self._engine = engine
        self._numbers: dict[str, int] = {}
        num_blocks = engine.capacity.num_blocks
        self._holders: list[list[int]] = [[] for _ in range(num_blocks)]
        self._cached = [False] * num_blocks
        self.held = self.num_cached = 0  # blocks that a request holds; free ones with content that can be hit
        self._percentiles = Percentiles()
        self._new_rows: list[list[Any]] = []
        self._new_gaps: list[tuple[float, float, int]] = []
        self._new_plans: list[dict[str, Any]] = []
        engine.trace.events.clear()  # of a warm-up

    @property
    def mapped(self) -> bool:
        """Whether the pool is small enough to be drawn block by block."""
        return len(self._holders) - 1 <= MOST_MAPPED

    def add(self, number: int, request: Request, prompt: str) -> None:
        """A request that the engine has taken."""
        self._numbers[request.request_id] = number
        tokens, most = request.num_prompt, request.params.max_tokens
        self.lanes[number] = Lane(number, request.arrival_s, prompt, tokens, most)

    def refuse(self, number: int, arrival_s: float, prompt: str, why: str) -> None:
        """A request that the engine can never serve."""
        self.lanes[number] = Lane(number, arrival_s, prompt, 0, 0, status="refused", end_s=arrival_s, why=why)

    def step(self, start_s: float, end_s: float, events: list[Event], memory_bytes: int) -> None:
        """Take in one step that ran from ``start_s`` to ``end_s`` and told ``events``."""
        counts = {"prefill": 0, "decode": 0, "drafted": 0, "accepted": 0}
        plan: list[list[Any]] = []
        changed: set[int] = set()
        for event in self._engine.trace.events:
            self.trace.append(event)
            number = self._numbers.get(event.request_id, 0)
            if number in self.lanes:
                self._on_event(event, self.lanes[number], counts, plan, changed, start_s, end_s)
            elif event.kind == "evict":
                self._mark(event.blocks, False, changed)
        self._engine.trace.events.clear()
        tokens = self._take_tokens(events, end_s)
        ran = bool(plan)
        if ran:
            self.num_steps += 1
            self._add_row(start_s, end_s, counts, memory_bytes)
        if ran or changed:
            told = [[b, *self._state(b)] for b in sorted(changed)] if self.mapped else []
            self._add_plan(
                {"step": self.num_steps, "t1": round(end_s, 6), "plan": plan, "blocks": told, "text": tokens}
            )
        if len(self.lanes) > MOST_LANES:
            self._drop_lanes()

    def _on_event(
        self,
        event: TraceEvent,
        lane: Lane,
        counts: dict[str, int],
        plan: list[list[Any]],
        changed: set[int],
        start_s: float,
        end_s: float,
    ) -> None:
        number = lane.number
        match event.kind:
            case "schedule":
                decodes = event.tokens == 1 and event.computed >= lane.prompt_tokens
                kind = "decode" if decodes else "prefill"
                counts[kind] += event.tokens
                plan.append([number, kind, event.computed, event.tokens])
                self._extend(lane, kind, start_s, end_s)
            case "draft":
                counts["drafted"] += event.tokens
            case "verify":
                counts["accepted"] += event.tokens
            case "admit":
                lane.status = "running"
            case "hit":  # of its first admission or, preempted, of a later one
                lane.cached_tokens = max(lane.cached_tokens, event.tokens)
                self._hold(number, event.blocks, changed)
            case "allocate" | "fork":
                self._hold(number, event.blocks, changed)
            case "swap_in":
                lane.status = "running"
                self._hold(number, event.blocks, changed)
            case "copy":
                self._let_go(number, event.blocks[:1], changed)
                self._hold(number, event.blocks[1:], changed)
            case "free" | "leave":
                self._let_go(number, event.blocks, changed)
            case "index":
                self._mark(event.blocks, True, changed)
            case "evict":
                self._mark(event.blocks, False, changed)
            case "preempt":
                lane.status, lane.preemptions = "preempted", lane.preemptions + 1
                lane.spans.append([lane.status, start_s, end_s])
            case "swap_out":  # of one that was just preempted
                lane.status = lane.spans[-1][0] = "swapped"
            case "finish" | "error":
                lane.end_s = round(event.time_s, 6)
                lane.status = {"abort": "aborted", "stop": "done", "length": "done"}.get(event.note, "failed")
                lane.why = event.note if lane.status == "failed" else ""
            case _:
                pass
        lane.fresh = True

    def _extend(self, lane: Lane, kind: str, start_s: float, end_s: float) -> None:
        last = lane.spans[-1] if lane.spans else None
        if last is not None and last[0] in ("preempted", "swapped"):
            last[2] = start_s
        if last is not None and last[0] == kind and start_s - last[2] < 1e-9 + 0.5 * (end_s - start_s):
            last[2] = end_s
        else:
            lane.spans.append([kind, start_s, end_s])
            if len(lane.spans) > MOST_SPANS:
                lane.spans[:] = [[lane.spans[0][0], lane.spans[0][1], lane.spans[1][2]], *lane.spans[2:]]
                lane.told_spans = 0

    def _take_tokens(self, events: list[Event], end_s: float) -> list[list[Any]]:
        """Texts and latencies; returns [request, text] of the step's tokens."""
        texts: dict[int, str] = {}
        yielded: dict[int, int] = {}
        for event in events:
            number = self._numbers.get(event.request_id, 0)
            lane = self.lanes.get(number)
            if lane is None:
                continue
            lane.fresh = True
            lane.text = (lane.text + event.text)[-MOST_TEXT:]
            if event.kind == "token":
                yielded[number] = yielded.get(number, 0) + 1
                texts[number] = texts.get(number, "") + event.text
        for number, count in yielded.items():
            lane = self.lanes[number]
            lane.output_tokens += count
            if lane.last_token_s is None:
                lane.ttft_s = end_s - lane.arrival_s
            else:
                gap_s = end_s - lane.last_token_s
                lane.gaps += 1
                self._percentiles.add(gap_s)
                point = (round(end_s, 6), round(gap_s * 1e3, 4), number)
                self.gaps.append(point)
                self._new_gaps.append(point)
            lane.last_token_s = end_s
        if len(self.gaps) > MOST_GAPS:
            self.gaps[: MOST_GAPS // 2] = self.gaps[: MOST_GAPS // 2 : 2]
        return [[number, text] for number, text in texts.items()]

    def _add_row(self, start_s: float, end_s: float, counts: dict[str, int], memory_bytes: int) -> None:
        waiting = [lane for lane in self.lanes.values() if lane.status in ("preempted", "swapped")]
        size = self._engine.config.block_size
        wanted = sum(-(-(lane.prompt_tokens + lane.output_tokens) // size) for lane in waiting)
        p50, p99 = self._percentiles.at(0.5), self._percentiles.at(0.99)
        scheduler = self._engine.scheduler
        row = [
            round(start_s, 6), round(end_s, 6), 1, counts["prefill"], counts["decode"], counts["drafted"],
            counts["accepted"], len(scheduler.running), scheduler.waiting.num_requests,
            self.held * self.block_bytes, self.num_cached * self.block_bytes, wanted * self.block_bytes,
            None if p50 is None else round(p50 * 1e3, 4), None if p99 is None else round(p99 * 1e3, 4), memory_bytes,
        ]  # fmt: skip
        self.rows.append(row)
        self._new_rows.append(row)
        if len(self.rows) > MOST_STEPS:
            self.rows[: MOST_STEPS // 2] = thinned(self.rows[: MOST_STEPS // 2])
        if len(self._new_rows) > MOST_STEPS:  # nobody listens
            self._new_rows.clear()

    def _add_plan(self, plan: dict[str, Any]) -> None:
        self.plans.append(plan)
        self._new_plans.append(plan)
        if len(self._new_plans) > MOST_DETAILS:
            del self._new_plans[: MOST_DETAILS // 2]

    def _hold(self, number: int, blocks: tuple[int, ...], changed: set[int]) -> None:
        for block in blocks:
            if block != NULL_BLOCK:
                if not self._holders[block]:
                    self.held += 1
                    self.num_cached -= self._cached[block]
                self._holders[block].append(number)
                changed.add(block)

    def _let_go(self, number: int, blocks: tuple[int, ...], changed: set[int]) -> None:
        for block in blocks:
            if block != NULL_BLOCK:
                self._holders[block].remove(number)
                if not self._holders[block]:
                    self.held -= 1
                    self.num_cached += self._cached[block]
                changed.add(block)

    def _mark(self, blocks: tuple[int, ...], cached: bool, changed: set[int]) -> None:
        for block in blocks:
            if self._cached[block] != cached and not self._holders[block]:
                self.num_cached += 1 if cached else -1
            self._cached[block] = cached
            changed.add(block)

    def _state(self, block: int) -> tuple[int, int]:
        """State and first holder of a block."""
        holders = self._holders[block]
        if holders:
            return (SHARED if len(holders) > 1 else HELD, holders[0])
        return (CACHED if self._cached[block] else FREE, 0)

    def _drop_lanes(self) -> None:
        ended = [number for number, lane in self.lanes.items() if lane.end_s is not None]
        for number in ended[: len(self.lanes) - MOST_LANES]:
            del self.lanes[number]
            self.dropped_lanes += 1
        kept = {r: n for r, n in self._numbers.items() if n in self.lanes}
        self._numbers = kept

    def news(self) -> dict[str, Any]:
        """What happened since this was asked last."""
        lanes = [lane.changes() for lane in self.lanes.values() if lane.fresh]
        for lane in self.lanes.values():
            lane.fresh = False
        found: dict[str, Any] = {
            "rows": self._new_rows,
            "gaps": self._new_gaps,
            "plans": self._new_plans,
            "lanes": lanes,
        }
        found["dropped_lanes"] = self.dropped_lanes
        self._new_rows, self._new_gaps, self._new_plans = [], [], []
        return found

    def everything(self) -> dict[str, Any]:
        """All that is kept, for a page that has just come: blocks as they are, without their past."""
        self.news()
        blocks = [[b, *self._state(b)] for b in range(1, len(self._holders))] if self.mapped else []
        return {
            "rows": self.rows, "gaps": self.gaps, "plans": [{**p, "blocks": []} for p in list(self.plans)[-64:]],
            "lanes": [lane.told() for lane in self.lanes.values()], "blocks": blocks,
            "dropped_lanes": self.dropped_lanes,
        }  # fmt: skip


def thinned(rows: list[list[Any]]) -> list[list[Any]]:
    """Pairs of rows as one: the times of both, sums of what was done, the greater of what was there."""
    merged = []
    for first, second in zip(rows[::2], rows[1::2], strict=False):
        row = [first[0], second[1]]
        for name, a, b in zip(COLUMNS[2:], first[2:], second[2:], strict=True):
            if name in _SUMMED:
                row.append(a + b)
            else:
                row.append(max((v for v in (a, b) if v is not None), default=None))
        merged.append(row)
    return merged
