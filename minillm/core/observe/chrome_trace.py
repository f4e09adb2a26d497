"""A run's event log as Chrome trace JSON, to be opened in Perfetto or ``chrome://tracing``.

One process has the steps and the counters, another a track for each request: spans of waiting, running and
being swapped out, with its tokens and other events as marks. Times are microseconds from the first event.
Format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minillm.core.hooks import Kind
from minillm.core.observe.trace import TraceEvent

_ENGINE, _REQUESTS = 1, 2  # processes

# The span of its request that an event begins; the one before it ends there. None ends it alone.
_SPANS: dict[Kind, str | None] = {
    "arrive": "waiting",
    "admit": "running",
    "fork": "running",
    "preempt": "waiting",
    "swap_out": "swapped out",
    "swap_in": "running",
    "retire": None,
    "finish": None,
    "error": None,
}


def chrome_trace(events: Iterable[TraceEvent]) -> dict[str, Any]:
    """The JSON object of a whole trace file. Open spans end with the last event."""
    writer = _Writer()
    for event in events:
        writer.add(event)
    return writer.finished()


class _Writer:
    """Takes events in their order."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = [_name("process_name", _ENGINE, 0, "engine")]
        self._entries += [_name("thread_name", _ENGINE, 0, "steps"), _name("process_name", _REQUESTS, 0, "requests")]
        self._tracks: dict[str, int] = {}
        self._spans: dict[str, tuple[str, float]] = {}  # by request: what it is in, and since when
        self._steps: dict[int, float] = {}  # planned and not landed: when it was planned
        self._first_s: float | None = None
        self._now_us = 0.0
        self._counts = {"waiting": 0, "running": 0, "swapped out": 0}

    def add(self, event: TraceEvent) -> None:
        """One more event; its time is no earlier than that of the one before."""
        if self._first_s is None:
            self._first_s = event.time_s
        self._now_us = (event.time_s - self._first_s) * 1e6
        if event.kind == "land":
            self._land(event)
            return
        if event.kind == "schedule":
            self._steps.setdefault(event.step, self._now_us)
        if event.kind in _SPANS and not event.group:  # of one request, whatever its layer groups do
            self._begin(event.request_id, _SPANS[event.kind])
        arguments = {name: value for name, value in event._asdict().items() if name not in ("time_s", "kind")}
        mark = {"name": event.kind, "ph": "i", "s": "t", "pid": _REQUESTS, "tid": self._track(event.request_id)}
        self._entries.append(mark | {"ts": self._now_us, "args": arguments})

    def finished(self) -> dict[str, Any]:
        for request_id in list(self._spans):
            self._begin(request_id, None)
        return {"traceEvents": self._entries, "displayTimeUnit": "ms"}

    def _land(self, event: TraceEvent) -> None:
        started_us = self._steps.pop(event.step, self._now_us)
        arguments = {"tokens": event.tokens, "used blocks": event.computed}
        self._entries.append(_span(f"step {event.step}", _ENGINE, 0, started_us, self._now_us, arguments))
        self._count("blocks", {"used": event.computed})

    def _begin(self, request_id: str, span: str | None) -> None:
        before = self._spans.pop(request_id, None)
        if before is not None:
            name, since_us = before
            self._counts[name] -= 1
            self._entries.append(_span(name, _REQUESTS, self._track(request_id), since_us, self._now_us, {}))
        if span is not None:
            self._spans[request_id] = (span, self._now_us)
            self._counts[span] += 1
        self._count("requests", dict(self._counts))

    def _count(self, name: str, values: dict[str, int]) -> None:
        self._entries.append({"name": name, "ph": "C", "pid": _ENGINE, "tid": 0, "ts": self._now_us, "args": values})

    def _track(self, request_id: str) -> int:
        if request_id not in self._tracks:
            self._tracks[request_id] = len(self._tracks) + 1
            self._entries.append(_name("thread_name", _REQUESTS, self._tracks[request_id], request_id))
        return self._tracks[request_id]


def _name(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


def _span(
    name: str, process: int, track: int, since_us: float, until_us: float, args: dict[str, Any]
) -> dict[str, Any]:
    where = {"name": name, "ph": "X", "pid": process, "tid": track}
    return where | {"ts": since_us, "dur": until_us - since_us, "args": args}
