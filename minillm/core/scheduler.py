"""Which requests run in a step, and how many tokens of each. There are no phases.

A request has tokens known and tokens computed; a step closes part of the gap under one token budget.
Running requests come first, so a decode is never held up by a prompt; what is left of the budget goes
to waiting ones. A running request that finds no block preempts the one that came last, which later
computes its tokens again. A step that preempted admits nobody: the room it made is spoken for.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from minillm.core.config import EngineConfig
from minillm.core.kv_manager import KVManager
from minillm.core.plan import StepPlan
from minillm.core.policy import Policy, QueueView
from minillm.core.request import Request, Status
from minillm.core.sampling import uniform
from minillm.core.trace import Trace


@dataclass(slots=True)
class Scheduled:
    """A request's share of a step: tokens ``start .. start + num_tokens - 1`` of its sequence."""

    request: Request
    start: int
    num_tokens: int
    epoch: int  # the request's when planned: a result for an older one is dropped
    num_draws: int = 0  # how many of the plan's draws are its own


@dataclass(slots=True)
class Step:
    """A planned step: what the backend gets, and what commit needs to know again."""

    plan: StepPlan
    scheduled: list[Scheduled]
    copies: list[tuple[int, int]] = field(default_factory=list)  # of blocks, before the plan runs


class Scheduler:
    """Owns the queue and the running list; all block work goes through the KV manager."""

    def __init__(self, config: EngineConfig, kv: KVManager, policy: Policy, trace: Trace) -> None:
        self.running: list[Request] = []  # in order of admission
        self.num_waiting = 0
        self.num_preemptions = 0
        self._config = config
        self._kv = kv
        self._policy = policy
        self._trace = trace
        # A heap by the policy's rank. An entry counts if its request waits and was not queued again
        # since (its epoch): who is aborted while waiting leaves an entry behind, dropped when it surfaces.
        self._queue: list[tuple[tuple[float, int], int, Request]] = []

    def add(self, request: Request) -> None:
        """Queue a new or preempted request."""
        request.status = Status.WAITING
        self.num_waiting += 1
        heapq.heappush(self._queue, (self._policy.key(request), request.epoch, request))

    def remove(self, request: Request) -> None:
        """Take a request out for good, wherever it is, and release its blocks."""
        if request.status is Status.WAITING:
            self.num_waiting -= 1
        elif request.status is Status.RUNNING:
            self.running.remove(request)
        request.status = Status.FINISHED
        self._kv.release(request)

    def wake_s(self, now_s: float, more_to_come: bool) -> float | None:
        """When waiting requests may become admissible although nothing else happens."""
        return self._policy.wake_s(self._view(now_s, more_to_come))

    def schedule(self, step: int, now_s: float, more_to_come: bool) -> Step | None:
        """Plan one step, or None when nothing can run: an empty step is legal."""
        scheduled: dict[str, Scheduled] = {}
        budget, preempted = self._schedule_running(scheduled)
        if not preempted:
            self._admit_waiting(scheduled, budget, now_s, more_to_come)
        if not scheduled:
            return None
        return Step(self._plan(step, scheduled), list(scheduled.values()), self._kv.take_copies())

    def _schedule_running(self, scheduled: dict[str, Scheduled]) -> tuple[int, bool]:
        """Give each running request its tokens. Returns the budget left, and whether anyone was preempted."""
        budget = self._config.max_batch_tokens
        preempted = False
        for request in list(self.running):
            if request.status is not Status.RUNNING:  # preempted for an earlier one in this loop
                continue
            num_tokens = self._chunk(request.num_known - request.num_computed, budget)
            if num_tokens == 0:
                continue
            while not self._kv.reserve(request, request.num_computed + num_tokens):
                victim = max(self.running, key=self._policy.key)
                undone = scheduled.pop(victim.request_id, None)
                if undone is not None:
                    budget += undone.num_tokens
                    victim.num_in_flight -= 1
                self._preempt(victim)
                preempted = True
                if victim is request:
                    break
            else:
                self._take(request, num_tokens, scheduled)
                budget -= num_tokens
        return budget, preempted

    def _admit_waiting(self, scheduled: dict[str, Scheduled], budget: int, now_s: float, more_to_come: bool) -> None:
        quota = self._policy.admissible(self._view(now_s, more_to_come))
        while quota > 0 and budget > 0 and len(self.running) < self._config.max_running_requests:
            request = self._first_waiting()
            if request is None:
                return
            # The hit comes before the budget: tokens found in the cache cost none of it.
            hit = self._kv.lookup(request)
            num_tokens = self._chunk(request.num_known - hit.num_tokens, budget)
            # The first in line waits for room rather than being overtaken.
            if num_tokens == 0 or not self._kv.admit(request, hit):
                return
            heapq.heappop(self._queue)
            self.num_waiting -= 1
            request.status = Status.RUNNING
            request.num_computed = hit.num_tokens
            if request.admitted_s is None:
                request.admitted_s = now_s
                request.num_cached = hit.num_tokens
            self.running.append(request)
            self._policy.on_admit()
            self._trace.emit("admit", request.request_id, tokens=request.num_known)
            self._kv.reserve(request, request.num_computed + num_tokens)  # admit made sure of the room
            self._take(request, num_tokens, scheduled)
            budget -= num_tokens
            quota -= 1

    def _chunk(self, gap: int, budget: int) -> int:
        """Tokens to run of a gap: without chunked prefill all of them or none."""
        if gap <= budget:
            return gap
        return budget if self._config.chunked_prefill else 0

    def _take(self, request: Request, num_tokens: int, scheduled: dict[str, Scheduled]) -> None:
        start = request.num_computed
        scheduled[request.request_id] = Scheduled(request, start, num_tokens, request.epoch)
        request.num_in_flight += 1

    def _preempt(self, request: Request) -> None:
        self._trace.emit("preempt", request.request_id, computed=request.num_computed)
        self.running.remove(request)
        self._kv.release(request)
        request.num_computed = 0
        request.epoch += 1
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._policy.on_preempt()
        self.add(request)

    def _first_waiting(self) -> Request | None:
        while self._queue:
            _, epoch, request = self._queue[0]
            if request.status is Status.WAITING and request.epoch == epoch:
                return request
            heapq.heappop(self._queue)
        return None

    def _view(self, now_s: float, more_to_come: bool) -> QueueView:
        first = self._first_waiting()
        oldest_s = first.arrival_s if first is not None else now_s
        return QueueView(now_s, self.num_waiting, len(self.running), oldest_s, more_to_come)

    def _plan(self, step: int, scheduled: dict[str, Scheduled]) -> StepPlan:
        size = self._kv.block_size
        plan = StepPlan(step=step, block_size=size)
        for part in scheduled.values():
            request, start, end = part.request, part.start, part.start + part.num_tokens
            table = self._kv.table(request.request_id)
            self._trace.emit("schedule", request.request_id, tokens=part.num_tokens, computed=start)
            plan.request_ids.append(request.request_id)
            if part.num_tokens == 1:  # a decode step: the common case, without ranges
                plan.token_ids.append(request.token_ids[start])
                plan.positions.append(start)
                plan.slots.append(table[start // size] * size + start % size)
            else:
                plan.token_ids.extend(request.token_ids[start:end])
                plan.positions.extend(range(start, end))
                plan.slots.extend(table[p // size] * size + p % size for p in range(start, end))
            plan.query_starts.append(len(plan.token_ids))
            plan.context_lengths.append(end)
            plan.block_tables.append(table.copy())
            # Logits of the last known token give the next one; a chunk that ends before it gives none.
            if end == request.num_known:
                params = request.params
                part.num_draws = 1
                plan.sample_tokens.append(len(plan.token_ids) - 1)
                plan.sampling.append(params)
                draws = params.temperature > 0
                plan.uniforms.append(uniform(request.seed, request.num_output) if draws else 0.0)
        return plan
