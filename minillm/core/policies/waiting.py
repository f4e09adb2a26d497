"""The waiting requests, the next one first. What is asked costs at most the logarithm of their number.

Each lane of the order is a heap of its requests, and the lanes are a heap by their own rank. Both are
lazy: who left without being next leaves an entry behind that is dropped when it surfaces, or when such
entries are most of the heap; a lane whose rank has risen since it was filed is filed again when it
surfaces.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from minillm.core.policies.order import FirstComeOrder, Rank
from minillm.core.request import Request, Status


class _Entry(NamedTuple):
    rank: Rank
    epoch: int  # the request's when it was queued: it may have left, run, and be queued again since
    status: Status  # that it has as long as it is in this queue
    request: Request

    @property
    def waits(self) -> bool:
        return self.request.status is self.status and self.request.epoch == self.epoch


class WaitingQueue:
    """Requests that do not run, in the order's order."""

    def __init__(self, order: FirstComeOrder) -> None:
        self.num_requests = 0
        self.num_tokens = 0  # known to them, so to be computed before their next token unless cached
        self._order = order
        self._generation = order.generation
        self._lanes: dict[str, list[_Entry]] = {}
        self._turns: list[tuple[float, str]] = []  # (rank when filed, lane), each lane of `_lanes` once
        self._num_entries = 0
        self._last_lane = ""  # of the request that left last, to lift who comes to an empty queue

    def push(self, request: Request) -> None:
        """Queue a request, under the status that it has."""
        lane = self._order.lane(request)
        if not request.num_preemptions and not self._waits_in(lane):
            first = self.first()
            floor_lane = self._last_lane if first is None else self._order.lane(first)
            self._order.on_lane(lane, self._order.lane_rank(floor_lane))
        self.num_requests += 1
        self.num_tokens += request.num_known
        self._file(_Entry(self._order.rank(request), request.epoch, request.status, request))

    def first(self) -> Request | None:
        """Who is next."""
        if self._generation != self._order.generation:
            self._generation = self._order.generation
            self._rebuild()
        while self._turns:
            filed, lane = self._turns[0]
            entries = self._lanes[lane]
            while entries and not entries[0].waits:
                heapq.heappop(entries)
                self._num_entries -= 1
            rank = self._order.lane_rank(lane)
            if not entries:
                heapq.heappop(self._turns)
                del self._lanes[lane]
            elif rank > filed:
                heapq.heapreplace(self._turns, (rank, lane))
            else:
                return entries[0].request
        return None

    def remove(self, request: Request) -> None:
        """Take a request out, whether it is next or not. Call this before its status changes."""
        self._last_lane = self._order.lane(request)
        self.num_requests -= 1
        self.num_tokens -= request.num_known
        entries = self._lanes[self._last_lane]
        if entries[0].request is request:
            heapq.heappop(entries)
            self._num_entries -= 1
        elif self._num_entries > 2 * self.num_requests + 16:
            self._rebuild(leaving=request)

    def requests(self) -> list[Request]:
        """All that wait, in no order; for checks."""
        return [entry.request for entries in self._lanes.values() for entry in entries if entry.waits]

    def _file(self, entry: _Entry) -> None:
        lane = self._order.lane(entry.request)
        if lane not in self._lanes:
            self._lanes[lane] = []
            heapq.heappush(self._turns, (self._order.lane_rank(lane), lane))
        heapq.heappush(self._lanes[lane], entry)
        self._num_entries += 1

    def _waits_in(self, lane: str) -> bool:
        entries = self._lanes.get(lane)
        while entries and not entries[0].waits:
            heapq.heappop(entries)
            self._num_entries -= 1
        return bool(entries)

    def _rebuild(self, leaving: Request | None = None) -> None:
        """File everyone anew, by today's rank and without the entries of those who left."""
        waiting = [request for request in self.requests() if request is not leaving]
        self._lanes, self._turns, self._num_entries = {}, [], 0
        for request in waiting:
            self._file(_Entry(self._order.rank(request), request.epoch, request.status, request))
