"""Which requests run in a step, and how many tokens of each. There are no phases.

A request has tokens known and tokens computed; a step closes part of the gap under one token budget.
Decodes come first, so none is held up by a prompt; then prompts that are half read; what is left of the
budget goes to waiting requests. A running request that finds no block preempts the one that the order
ranks last, which later computes its tokens again or, with swapping, finds its K/V on the host; where the
host is full, it computes, too. A step that preempted admits nobody: the room it made is spoken for. Neither
does a step that leaves someone swapped out, for they come back first. The one exception is a request that
outranks everybody preempted or swapped out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minillm.core.builder import PlanBuilder
from minillm.core.config import EngineConfig
from minillm.core.hooks import Trace
from minillm.core.kv.tables import Hit
from minillm.core.kv_manager import KVManager
from minillm.core.outputs.group import together
from minillm.core.policies.batching import ContinuousPolicy, QueueView
from minillm.core.policies.order import FirstComeOrder
from minillm.core.policies.waiting import WaitingQueue
from minillm.core.request import OutputGroup, Request, Status
from minillm.core.step import Scheduled, Step
from minillm.speculate.speculator import Speculator

# Most tokens in a step of a prompt whose log-probabilities are wanted. Each has a row of logits, as long as the
# vocabulary: in float32 and with 50,000 tokens, 256 rows take 51 MB.
SCORED_CHUNK = 256


@dataclass(slots=True)
class _Decisions:
    """What is decided of a step while it is planned."""

    budget: int  # tokens left
    decodes: list[Request] = field(default_factory=list)  # plain requests, one token each
    parts: dict[str, Scheduled] = field(default_factory=dict)  # of the others, by request id
    preempted: list[Request] = field(default_factory=list)


class Scheduler:
    """Owns the queue and the running list; all block work goes through the KV manager."""

    def __init__(
        self,
        config: EngineConfig,
        kv: KVManager,
        policy: ContinuousPolicy,
        order: FirstComeOrder,
        trace: Trace,
        *,
        vocab_size: int,
        speculator: Speculator | None = None,
    ) -> None:
        self.running: list[Request] = []  # in order of admission
        self.waiting = WaitingQueue(order)  # new, or preempted with nothing computed
        self.swapped = WaitingQueue(order)
        self.num_preemptions = 0
        self.num_admitted_tokens = 0  # known to the requests when they were admitted, summed up
        self._config = config
        self._kv = kv
        self._policy = policy
        self._order = order
        self._trace = trace
        self._builder = PlanBuilder(config, kv, trace, vocab_size, speculator)
        self._groups: list[OutputGroup] = []  # those not finished that have a member queued or running
        self._speculator = speculator
        self._decisions: _Decisions | None = None  # the step being put together
        self._admitting: list[Request] = []  # who is looked at

    def add(self, request: Request) -> None:
        """Queue a new or preempted request."""
        request.status = Status.WAITING
        self.waiting.push(request)
        self._policy.on_wait(request)
        if request.group is not None and request.group not in self._groups:
            self._groups.append(request.group)

    def remove(self, request: Request) -> None:
        """Take a request out for good, wherever it is, and release its blocks."""
        self._take_out(request, Status.FINISHED)
        if request.group in self._groups and request.group.is_finished:
            self._groups.remove(request.group)

    def adopt(self, request: Request) -> None:
        """Run a request that forked from a running one. Its place was kept free for it."""
        request.status = Status.RUNNING
        self.running.append(request)

    def retire(self, request: Request) -> None:
        """Take a running request out for now: it has nothing computed, and may be forked again."""
        self._take_out(request, Status.PENDING)
        request.num_computed_tokens = 0
        self._trace.emit("retire", request.request_id)

    def _take_out(self, request: Request, status: Status) -> None:
        if request.status is Status.WAITING:
            self.waiting.remove(request)
        elif request.status is Status.SWAPPED:
            self.swapped.remove(request)
        elif request.status is Status.RUNNING:
            self.running.remove(request)
        request.status = status
        request.epoch += 1
        request.num_in_flight = 0
        self._kv.release(request)

    def wake_s(self, now_s: float, more_to_come: bool) -> float | None:
        """When waiting requests may become admissible although nothing else happens."""
        return self._policy.wake_s(self._view(now_s, more_to_come))

    def schedule(self, step: int, now_s: float, more_to_come: bool) -> Step | None:
        """Plan one step, or None when nothing can run: an empty step is legal."""
        self._admitting = []
        self._decisions = decided = _Decisions(self._config.max_batch_tokens)
        self._order.on_step(now_s, self.running)
        self._schedule_others(self._schedule_decodes(decided), decided)
        self._swap_in(decided)
        self._admit_waiting(decided, now_s, more_to_come)
        self._admitting = []
        if not decided.decodes and not decided.parts:
            return None
        if self._speculator is not None:
            self._speculator.draft(decided.parts.values(), decided.budget)
        parts = list(decided.parts.values())
        plan = self._builder.build(step, decided.decodes, parts)
        if self._speculator is not None:
            plan.wants_hidden = self._speculator.wants_hidden
        epochs = [request.epoch for request in decided.decodes]
        return Step(plan, decided.decodes, epochs, parts, self._kv.copies.take())

    def planning(self) -> list[Request]:
        """Who has a part in the step planned last, and who was looked at for admission: they fail if that raised."""
        if self._decisions is None:
            return []
        return [*self._decisions.decodes, *(part.request for part in self._decisions.parts.values()), *self._admitting]

    def take_back(self, step: Step) -> None:
        """A planned step that will not run, the last one planned: its requests are as they were before it."""
        shares = [(r, epoch, 1) for r, epoch in zip(step.decodes, step.epochs, strict=True)]
        shares += [(p.request, p.epoch, p.num_scheduled_tokens + len(p.draft.token_ids)) for p in step.parts]
        for request, epoch, num_tokens in shares:
            if request.epoch == epoch:
                request.num_in_flight -= num_tokens
                tokens = request.num_computed_tokens + request.num_in_flight
                self._kv.rewind(request, tokens)
                self._trace.emit("undo", request.request_id, tokens=num_tokens, computed=tokens)
        self._kv.copies.put_back(step.copies)

    def _schedule_decodes(self, decided: _Decisions) -> list[Request]:
        """A token for each plain request that needs one. Returns the others that run and have tokens to compute.

        The loop that every token of every answer goes through, so it looks up little, and that once.
        """
        size, decodes = self._kv.block_size, decided.decodes
        tables, ref_counts = self._kv.block_tables, self._kv.pool.ref_counts
        running, drafts, others = Status.RUNNING, self._speculator is not None, []
        for request in self.running.copy():
            if request.status is not running:  # preempted for an earlier one
                continue
            start = request.num_computed_tokens + request.num_in_flight
            gap = len(request.token_ids) - start
            if gap > 1 or not request.is_plain or drafts:
                if gap > 0:  # else what it does next depends on its draw, which is not known yet
                    others.append(request)
                continue
            # Its token is a draw in flight. The last one is never computed, for nothing is drawn after it.
            if gap < 1 and (start + 1 >= request.max_total_tokens or request.abort_requested):
                continue
            needs_room = start % size == 0 or ref_counts[tables[request.request_id].blocks[-1]] > 1
            if needs_room and not self._make_room(request, start + 1, decided):
                continue
            request.num_in_flight += 1
            decodes.append(request)
        decided.budget = self._config.max_batch_tokens - len(decided.decodes)
        return others

    def _schedule_others(self, others: list[Request], decided: _Decisions) -> None:
        """Decodes that are not plain, then prompts, in the order's order."""
        decodes: list[Request] = []
        prompts: list[Request] = []
        for request in others:
            start = request.num_computed_tokens + request.num_in_flight
            (decodes if request.num_known - start == 1 else prompts).append(request)
        prompts.sort(key=self._order.standing)
        for request in decodes + prompts:
            if request.status is not Status.RUNNING:  # preempted for an earlier one
                continue
            start = request.num_computed_tokens + request.num_in_flight
            num_tokens = self._chunk(request, request.num_known - start, decided.budget)
            if num_tokens and self._make_room(request, start + num_tokens, decided):
                self._take(request, num_tokens, decided)

    def _make_room(self, request: Request, num_tokens: int, decided: _Decisions) -> bool:
        """Reserve blocks for a running request, preempting whoever ranks last; False if that was the request."""
        while not self._kv.reserve(request, num_tokens):
            victim = max(self.running, key=self._order.standing)
            self._preempt(victim, decided)
            if request.status is not Status.RUNNING:
                return False
        return True

    def _swap_in(self, decided: _Decisions) -> None:
        """Bring back those whose K/V is on the host, as room allows, but not in a step that preempted."""
        while (request := self.swapped.first()) is not None and not decided.preempted:
            num_tokens = self._chunk(request, request.num_known - request.num_computed_tokens, decided.budget)
            if not num_tokens or not self._has_place(request, 1, 0) or not self._kv.swap.swap_in(request):
                return
            self.swapped.remove(request)
            request.status = Status.RUNNING
            self.running.append(request)
            self._policy.on_admit()
            self._kv.reserve(request, request.num_computed_tokens + num_tokens)  # swap_in made sure of the room
            self._take(request, num_tokens, decided)

    def _admit_waiting(self, decided: _Decisions, now_s: float, more_to_come: bool) -> None:
        quota = self._policy.admissible(self._view(now_s, more_to_come))
        while quota > 0:
            request = self.waiting.first()
            if request is None:
                return
            first_swapped = self.swapped.first()
            if first_swapped is not None and not self._order.outranks(request, first_swapped):
                return
            # The hits come before the budget: tokens found in the cache cost none of it.
            self._admitting = [request] if request.group is None else together(request)
            hits = [(one, self._kv.lookup(one)) for one in self._admitting]
            if self._order.preempts:
                self._give_way(request, hits, decided)
            if not all(self._order.outranks(request, preempted) for preempted in decided.preempted):
                return
            # The first in line waits for room rather than being overtaken.
            if not self._fits(hits, decided.budget):
                return
            for one, hit in hits:  # all hits are held before anything is allocated
                self._admit(one, hit, now_s)
            for one, _ in hits:
                num_tokens = self._chunk(one, one.num_known - one.num_computed_tokens, decided.budget)
                if num_tokens:
                    self._kv.reserve(one, one.num_computed_tokens + num_tokens)  # there is room for it
                    self._take(one, num_tokens, decided)
            quota -= len(hits)

    def _fits(self, hits: list[tuple[Request, Hit]], budget: int, places: int = 0, blocks: int = 0) -> bool:
        """Whether the waiting requests can be admitted together, with ``places`` and ``blocks`` given back."""
        first, hit = hits[0]
        free = self._kv.pool.num_free
        needed = sum(self._kv.needed(one, its_hit) for one, its_hit in hits)
        has_budget = self._chunk(first, first.num_known - hit.num_tokens, budget) > 0
        return has_budget and needed <= free + blocks and self._has_place(first, len(hits), places)

    def _give_way(self, request: Request, hits: list[tuple[Request, Hit]], decided: _Decisions) -> None:
        """Preempt running requests that ``request`` outranks, the last ones first, until it can be admitted.

        Nobody is preempted if that would not be enough.
        """
        if self._fits(hits, decided.budget):
            return
        victims = sorted((r for r in self.running if self._order.outranks(request, r)), key=self._order.standing)
        tokens = sum(self._tokens_given(r, decided) for r in victims)
        blocks = sum(self._kv.num_held(r) for r in victims)  # at most: others may share them
        if self._fits(hits, decided.budget + tokens, len(victims), blocks):
            while victims and not self._fits(hits, decided.budget):
                if victims[-1].status is Status.RUNNING:  # not preempted with another
                    self._preempt(victims[-1], decided)
                victims.pop()

    def _has_place(self, request: Request, count: int, given_back: int) -> bool:
        """Whether the batch has ``count`` places, and places for the members of their group that will join."""
        taken = len(self.running) - given_back + sum(group.num_joining for group in self._groups)
        needed = count if request.group is None else count + request.group.num_bringing
        # Each of them is to have its token in every step, so there is a place for each in the budget, too.
        return taken + needed <= min(self._config.max_running_requests, self._config.max_batch_tokens)

    def _admit(self, request: Request, hit: Hit, now_s: float) -> None:
        self.waiting.remove(request)
        self.num_admitted_tokens += request.num_known
        self._kv.admit(request, hit)
        request.status = Status.RUNNING
        request.num_computed_tokens = hit.num_tokens
        if request.admitted_s is None:
            request.admitted_s = now_s
            request.num_cached = hit.num_tokens
        self.running.append(request)
        self._order.on_admit(request)
        self._policy.on_admit()
        self._trace.emit("admit", request.request_id, tokens=request.num_known)

    def _chunk(self, request: Request, gap: int, budget: int) -> int:
        """Tokens to run of a gap: without chunked prefill all of them or none."""
        if not self._config.chunked_prefill:
            return gap if gap <= budget else 0
        if gap > 1:
            used = self._config.max_batch_tokens - budget
            gap = min(gap, self._config.chunk_size or gap, self._order.max_chunk(request, used))
            if request.wants_prompt_logits:
                gap = min(gap, SCORED_CHUNK)
        return min(gap, budget)

    def _take(self, request: Request, num_tokens: int, decided: _Decisions) -> None:
        start = request.num_computed_tokens + request.num_in_flight
        decided.parts[request.request_id] = Scheduled(request, start, num_tokens, request.epoch)
        decided.budget -= num_tokens
        request.num_in_flight += num_tokens

    def _tokens_given(self, request: Request, decided: _Decisions) -> int:
        """Tokens of this step that a request was given so far."""
        part = decided.parts.get(request.request_id)
        return part.num_scheduled_tokens if part is not None else int(request in decided.decodes)

    def _preempt(self, request: Request, decided: _Decisions) -> None:
        """Back to the queue, the request and those that cannot go on without it."""
        for one in [request] if request.group is None else together(request):
            self._preempt_one(one, decided)

    def _preempt_one(self, request: Request, decided: _Decisions) -> None:
        """What it was given of this step is undone; what was computed before is swapped out or lost."""
        self._trace.emit("preempt", request.request_id, computed=request.num_computed_tokens)
        decided.budget += self._tokens_given(request, decided)
        decided.parts.pop(request.request_id, None)
        if request in decided.decodes:
            decided.decodes.remove(request)
        decided.preempted.append(request)
        self.running.remove(request)
        request.num_in_flight = 0
        request.epoch += 1
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._policy.on_preempt()
        if self._swaps(request) and self._kv.swap.swap_out(request):
            request.num_swaps += 1
            request.status = Status.SWAPPED
            self.swapped.push(request)
        else:
            self._kv.release(request)
            request.num_computed_tokens = 0
            self.add(request)

    def _swaps(self, request: Request) -> bool:
        """Beams are not swapped, for they can only come back together."""
        is_beam = request.group is not None and request.group.beams is not None
        return self._config.preemption == "swap" and request.num_computed_tokens > 0 and not is_beam

    def _view(self, now_s: float, more_to_come: bool) -> QueueView:
        return QueueView(now_s, self.waiting.num_requests, len(self.running), more_to_come)
