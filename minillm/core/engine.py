"""The engine loop: plan a step, let the backend run it, commit its tokens, tell the outside.

It owns requests from submission to their one terminal event. ``plan_step`` and ``commit_step`` are the
two halves of ``step``; nothing but the plan and its result lies between them.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from minillm.backends.base import Backend
from minillm.core.admission import (
    check_extra_keys,
    check_params,
    check_places,
    check_prompt,
    check_room,
    check_service,
    longest_request,
)
from minillm.core.beams import BeamSearch
from minillm.core.block_keys import ExtraKey, Hash, digest128
from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.constraint import check_budget
from minillm.core.detokenizer import Detokenizer, TokenBytes
from minillm.core.group import Group, fork
from minillm.core.kv_manager import KVManager
from minillm.core.load import LoadShedder
from minillm.core.logprobs import TokenLogprobs
from minillm.core.metrics import RunMetrics, StepSample, run_metrics
from minillm.core.order import FirstComeOrder, make_order
from minillm.core.plan import StepPlan, StepResult
from minillm.core.policy import make_policy
from minillm.core.request import Event, FinishReason, Request, RequestError, Status
from minillm.core.sampling import SamplingParams, derived_seed, uniform
from minillm.core.scheduler import Scheduled, Scheduler, Step
from minillm.core.speculate.accept import draws_that_count
from minillm.core.speculate.draft import DraftError
from minillm.core.speculate.speculator import Speculation, Speculator
from minillm.core.step_times import StepTimes
from minillm.core.stops import commit_tokens
from minillm.core.trace import Trace

__all__ = ["Engine", "EngineError", "Event", "KVUsage", "Request", "RequestError"]


class EngineError(RuntimeError):
    """The engine or its backend broke a rule: a fault of the code, not of a request."""


@dataclass(frozen=True, slots=True)
class KVUsage:
    """KV memory now; the null block is not counted."""

    used_blocks: int  # held by running requests
    cached_blocks: int  # free, with content that a later request may hit
    total_blocks: int
    used_bytes: int
    total_bytes: int
    used_host_blocks: int = 0  # held by swapped requests
    total_host_blocks: int = 0


@dataclass(slots=True)
class _InFlight:
    """A step between planning and commit."""

    step: Step
    result: Callable[[], StepResult]  # waits for it


class Engine:
    """One model on one backend, serving requests one step at a time. Not thread-safe."""

    def __init__(
        self,
        backend: Backend,
        config: EngineConfig | None = None,
        *,
        eos_ids: Set[int] = frozenset(),
        tokenizer: TokenBytes | None = None,
        clock: Callable[[], float] = time.perf_counter,
        hash_function: Hash = digest128,
        speculation: Speculation | None = None,
    ) -> None:
        """Load ``backend`` with the configured blocks. ``hash_function`` is the prefix index's.

        A drafter belongs to one engine.
        """
        self.config = config = config if config is not None else EngineConfig()
        self.backend = backend
        backend.load(block_size=config.block_size, num_blocks=config.num_blocks, num_host_blocks=config.num_host_blocks)
        self.capacity = capacity = backend.capacity()
        self.max_model_len = longest_request(config, capacity.max_model_len)
        self.clock = clock
        self.trace = Trace(config.record_trace)
        self.kv = KVManager(
            capacity.num_blocks,
            config.block_size,
            num_host_blocks=capacity.num_host_blocks,
            prefix_caching=config.prefix_caching,
            prefix_index=config.prefix_index,
            eviction=config.eviction,
            crossover_tokens=capacity.crossover_tokens,
            trace=self.trace,
            hash_function=hash_function,
        )
        self.step_times = StepTimes()
        self._load = LoadShedder(config, self.step_times)
        self.order = make_order(config, self.step_times)
        self.speculator = None if speculation is None else Speculator(speculation, self.kv, self.trace, capacity)
        self.scheduler = Scheduler(
            config,
            self.kv,
            make_policy(config),
            self.order,
            self.trace,
            vocab_size=capacity.vocab_size,
            speculator=self.speculator,
        )
        self.requests: dict[str, Request] = {}
        self.num_steps = 0
        self._eos_ids = frozenset(i for i in eos_ids if 0 <= i < capacity.vocab_size)
        self._tokenizer = tokenizer
        self._detokenizers: dict[str, Detokenizer] = {}
        self._pending: list[tuple[float, int, Request]] = []  # heap of arrivals that were not looked at yet
        self._num_unfinished = 0
        self._outbox: list[Event] = []  # events made outside a commit, delivered by the next step
        self._flight: deque[_InFlight] = deque()  # steps handed to the backend, the oldest first
        self._num_planned = 0
        self._last_ids: list[int] = []  # the draws of the step that landed last
        self._charges = type(self.order).on_token is not FirstComeOrder.on_token
        self._samples: list[StepSample] = []

    def add_request(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        arrival_s: float | None = None,
        salt: str | None = None,
        extra_keys: Sequence[ExtraKey] = (),
        priority: int = 0,
        tenant: str = "",
        ttft_slo_s: float | None = None,
        tpot_slo_s: float | None = None,
    ) -> Request:
        """Submit a prompt; ``RequestError`` if it can never be served.

        ``arrival_s`` on the engine's clock may lie in the future: the request is out of sight until then.
        With several outputs the request returned is the first of ``request.group.members``; the others have its
        id and ``/1``, ``/2``, ..., and each has its own events. Requests of different ``salt`` share no cached
        block, and blocks are told apart by ``extra_keys`` as well: what the K/V of prompt tokens depends on
        besides their ids. ``priority``, ``tenant`` and the two objectives
        steer the orders that look at them (`minillm.core.order`).
        """
        check_service(self.config, priority, tenant, ttft_slo_s, tpot_slo_s)
        index = len(self.requests)
        request_id = f"r{index}" if request_id is None else request_id
        names = [request_id, *(f"{request_id}/{sample}" for sample in range(1, params.num_sequences))]
        for name in names:
            if name in self.requests:
                raise RequestError(f"request id {name!r} is taken: choose another, or leave it out")
        prompt = check_prompt(prompt_ids, self.capacity.vocab_size, self.max_model_len)
        max_total = min(len(prompt) + params.max_tokens, self.max_model_len)
        check_params(params, self.capacity.vocab_size, has_tokenizer=self._tokenizer is not None)
        check_room(len(prompt), max_total, self.capacity.num_blocks, self.config.block_size, params.beam_width or 1)
        check_places(params, self.config)
        if arrival_s is not None and not math.isfinite(arrival_s):
            raise RequestError(f"arrival_s is {arrival_s}: give finite seconds of the engine's clock")
        arrival_s = self.clock() if arrival_s is None else arrival_s
        # A seed of its own, so that equal prompts without a seed draw differently.
        seed = params.seed if params.seed is not None else int(uniform(self.config.seed, index) * 2**53)
        stop_ids, extra_keys = self._stop_ids(params), check_extra_keys(extra_keys, len(prompt))
        requests = [
            Request(
                request_id=name,
                prompt_ids=prompt,
                params=params,
                arrival_s=arrival_s,
                index=index + sample,
                seed=derived_seed(seed, sample),
                max_total_tokens=max_total,
                stop_ids=stop_ids,
                salt=salt,
                extra_keys=extra_keys,
                priority=priority,
                tenant=tenant,
                ttft_slo_s=ttft_slo_s,
                tpot_slo_s=tpot_slo_s,
            )
            for sample, name in enumerate(names)
        ]
        check_budget(requests[0])
        if len(requests) > 1 or params.beam_width:
            group = Group(requests, BeamSearch(requests) if params.beam_width else None)
            for request in requests:
                request.group = group
                request.prompt_logprobs = requests[0].prompt_logprobs  # one list: the prompt is computed once
            requests[0].is_plain = False  # until the others part from it
        for request in requests:
            if self._tokenizer is not None:
                self._detokenizers[request.request_id] = Detokenizer(self._tokenizer, params.stop)
            self.requests[request.request_id] = request
        self._num_unfinished += len(requests)
        heapq.heappush(self._pending, (arrival_s, index, requests[0]))
        return requests[0]

    def _stop_ids(self, params: SamplingParams) -> frozenset[int]:
        """The ids that end an output; one set for all requests that add none."""
        if params.grammar is not None:
            return params.grammar.eos_ids  # allowed only where the output may end
        own = params.stop_token_ids
        if params.ignore_eos:
            return frozenset(own)
        return self._eos_ids.union(own) if own else self._eos_ids

    def has_work(self) -> bool:
        """Whether a request has not ended, or an event is still to be delivered."""
        return self._num_unfinished > 0 or bool(self._outbox) or bool(self._flight)

    def abort(self, request_id: str) -> bool:
        """End a request; its terminal event comes with the next step. False if it is unknown or has ended.

        By the id of the first of several outputs, or of any hypothesis of a beam search, all of them end.
        """
        request = self.requests.get(request_id)
        if request is None:
            return False
        group = request.group
        whole = group is not None and (group.beams is not None or request is group.members[0])
        return any([self._abort(member) for member in (group.members if group is not None and whole else [request])])

    def _abort(self, request: Request) -> bool:
        if request.is_finished or request.abort_requested:
            return False
        if request.num_in_flight:
            self._end_when_it_lands(request)
        else:
            self._outbox.append(self._end(request, "abort", self.clock()))
        return True

    def _end_when_it_lands(self, request: Request) -> None:
        """The backend may be writing to its blocks: they are released when the step lands."""
        request.abort_requested = True
        request.epoch += 1  # so that commit looks at it
        self.trace.emit("abort", request.request_id)

    def step(self) -> list[Event]:
        """Land the oldest step in flight and return its events: none if nothing can run now.

        Before it waits for that step, it plans and submits as many more as ``overlap`` allows. With a
        ``VirtualClock``, a step that finds nothing to do jumps to the next time when there is.
        """
        self._launch()
        while not self._flight and not self._outbox and isinstance(self.clock, VirtualClock):
            wake_s = self.next_wake_s()
            if wake_s is None or wake_s <= self.clock():
                break
            self.clock.advance_to(wake_s)
            self._launch()
        if self._flight:
            return self._land()
        events, self._outbox = self._outbox, []
        return events

    def _launch(self) -> None:
        """Plan steps and hand them to the backend, until one is in flight and ``overlap`` more behind it."""
        submit = getattr(self.backend, "submit", None) if self.config.overlap else None
        while len(self._flight) <= self.config.overlap:
            step = self.plan_step()
            if step is None:
                return
            flight = _InFlight(step, partial(self._run, step))
            self._flight.append(flight)
            if submit is not None:
                with self._ends_requests_on_error():
                    if step.copies:
                        self.backend.copy_blocks(step.copies)
                    flight.result = submit(step.plan)

    def _run(self, step: Step) -> StepResult:
        """A step of a backend that cannot be submitted to: it runs when it is its turn to land."""
        for token, draw in step.plan.drawn.items():
            step.plan.token_ids[token] = self._last_ids[draw]
        step.plan.drawn.clear()
        if step.copies:
            self.backend.copy_blocks(step.copies)
        return self.backend.run(step.plan)

    def _land(self) -> list[Event]:
        """Wait for the oldest step in flight. Interrupted, it stays in flight: running it again changes nothing."""
        flight = self._flight[0]
        with self._ends_requests_on_error():
            result = flight.result()
            self._check_result(flight.step, result)
        self._flight.popleft()
        self._last_ids = result.token_ids
        return self.commit_step(flight.step, result)

    @contextmanager
    def _ends_requests_on_error(self) -> Iterator[None]:
        """If the backend raises, the requests of all steps in flight end with an error; the others go on.

        So do those that were to be swapped out before a step, for their K/V may not have reached the host.
        """
        try:
            yield
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            for step in [flight.step for flight in self._flight]:
                self._fail([self.requests[r] for r in self.kv.swapped_by(step.copies)] + step.requests, message)
            self.num_steps += len(self._flight)
            self._flight.clear()
            raise

    def run(self) -> Iterator[Event]:
        """Step until every request has ended; sleeps while none has arrived."""
        idle_steps = 0
        while self.has_work():
            steps_before = self.num_steps
            events = self.step()
            yield from events
            if self.num_steps > steps_before or events:
                idle_steps = 0
                continue
            wake_s = self.next_wake_s()
            if wake_s is not None and not isinstance(self.clock, VirtualClock):
                time.sleep(max(0.0, wake_s - self.clock()))
                continue
            idle_steps += 1
            if idle_steps > 2:  # one is legal: a step in which everyone was preempted
                raise EngineError(
                    f"{self._num_unfinished} requests cannot go on: {self.kv.pool.num_free} blocks are free, "
                    f"{len(self.scheduler.running)} requests run, {self.scheduler.waiting.num_requests} wait, "
                    f"{self.scheduler.swapped.num_requests} are swapped out"
                )

    def plan_step(self) -> Step | None:
        """Look at arrivals and plan the next step; the backend may write to its slots from now on."""
        now_s = self.clock()
        self.trace.mark(self._num_planned, now_s)
        newcomers = []
        while self._pending and self._pending[0][0] <= now_s:
            request = heapq.heappop(self._pending)[2]
            if not request.is_finished:
                self.trace.emit("arrive", request.request_id, tokens=request.num_prompt)
                self.scheduler.add(request)
                newcomers.append(request)
        try:
            step = self.scheduler.schedule(self._num_planned, now_s, self._next_arrival_s() is not None)
        except DraftError as error:
            self._fail([request for request in self.scheduler.running if request.num_in_flight], str(error))
            raise EngineError(str(error)) from error
        if step is not None:
            self._num_planned += 1
        self._shed(newcomers, now_s)
        return step

    def _shed(self, newcomers: Sequence[Request], now_s: float) -> None:
        """End the newcomers that would wait in a queue that is too long. Who was admitted at once never waited."""
        waiting = self.scheduler.waiting
        self._load.observe(now_s, self.scheduler.num_admitted_tokens, waiting.num_requests)
        stayed = [request for request in newcomers if request.status is Status.WAITING]
        if not stayed:
            return
        unread = sum(request.num_known - request.num_computed for request in self.scheduler.running)
        for request, why in self._load.refused(stayed, waiting.num_requests, waiting.num_tokens, unread):
            self._outbox.append(self._end(request, "error", now_s, error=why))

    def commit_step(self, step: Step, result: StepResult) -> list[Event]:
        """Take over what the backend computed: tokens, ends, blocks to index, metrics."""
        now_s = self.clock()
        self.trace.mark(step.plan.step, now_s)
        num_requests, num_tokens = len(step.plan.request_ids), len(step.plan.token_ids)
        self.trace.emit("land", "", tokens=num_tokens, computed=self.kv.pool.num_used)
        events, self._outbox = self._outbox, []
        self._commit_decodes(step, result.token_ids, now_s, events)
        draw = len(step.decodes)  # the first of a part's draws
        for part in step.parts:
            request, first_draw, draw = part.request, draw, draw + part.num_draws
            if request.epoch != part.epoch:
                self._drop_result(request, now_s, events)
                continue
            request.num_in_flight -= part.num_tokens + len(part.draft.token_ids)
            request.num_computed = part.start + part.num_tokens
            self.kv.commit(request)
            if not request.is_plain or part.draft.token_ids:
                self._commit_draws(part, step.plan, result, first_draw, now_s, events)
            elif part.num_draws:
                self._commit_token(request, result.token_ids[first_draw], now_s, events)
        for part in step.parts:  # once all beams of this step have made their offer
            if part.request.group is not None and part.request.group.beams is not None:
                self._advance(part.request.group.beams, now_s, events)
        self.num_steps += 1
        self.step_times.observe(num_tokens, result.elapsed_s)
        self._samples.append(StepSample(now_s, result.elapsed_s, num_requests, num_tokens, self.kv.pool.num_used))
        if self.config.debug_checks:
            self.check()
        return events

    def _commit_decodes(self, step: Step, token_ids: Sequence[int], now_s: float, events: list[Event]) -> None:
        """One token for each plain decode. A token that ends nothing and has no text is done here, and quickly."""
        size, has_text, traced, charges = self.config.block_size, self._tokenizer, self.trace.enabled, self._charges
        for request, epoch, token_id in zip(step.decodes, step.epochs, token_ids, strict=False):
            if request.epoch != epoch:
                self._drop_result(request, now_s, events)
                continue
            request.num_in_flight -= 1
            request.num_computed += 1
            if request.num_computed % size == 0:
                self.kv.commit(request)
            known = request.token_ids
            if (
                has_text
                or traced
                or charges
                or token_id in request.stop_ids
                or len(known) + 1 >= request.max_total_tokens
            ):
                self._commit_token(request, token_id, now_s, events)
            else:
                known.append(token_id)
                request.token_times_s.append(now_s)
                request.chunk_sizes.append(1)
                events.append(Event(request.request_id, "token", now_s, token_id))

    def _drop_result(self, request: Request, now_s: float, events: list[Event]) -> None:
        """It ended or was preempted since the step was planned: its blocks are gone. Or an abort waited for this."""
        self.trace.emit("drop", request.request_id)
        if request.abort_requested and not request.is_finished:
            events.append(self._end(request, "abort", now_s))

    def next_wake_s(self) -> float | None:
        """When something may become runnable although no one calls: an arrival, or a policy's deadline."""
        arrival_s = self._next_arrival_s()
        policy_s = self.scheduler.wake_s(self.clock(), arrival_s is not None)
        return min((t for t in (arrival_s, policy_s) if t is not None), default=None)

    def metrics(self) -> RunMetrics:
        return run_metrics(self.requests.values(), self._samples, self.scheduler.num_preemptions)

    def kv_usage(self) -> KVUsage:
        pool = self.kv.pool
        block_bytes = self.config.block_size * self.capacity.kv_bytes_per_token
        total = pool.num_blocks - 1
        cached = sum(pool.ref_counts[block] == 0 for block in self.kv.index.blocks())
        host = self.kv.host
        return KVUsage(
            used_blocks=pool.num_used,
            cached_blocks=cached,
            total_blocks=total,
            used_bytes=pool.num_used * block_bytes,
            total_bytes=total * block_bytes,
            used_host_blocks=host.num_blocks - host.num_free,
            total_host_blocks=host.num_blocks,
        )

    def check(self) -> None:
        """Raise ``EngineError`` or ``PoolError`` unless requests, tables, index and pool agree. Between steps."""
        self.kv.check()
        running = self.scheduler.running
        swapped = self.scheduler.swapped.requests()
        if len(swapped) != self.scheduler.swapped.num_requests or not all(map(self.kv.is_swapped, swapped)):
            raise EngineError(f"{len(swapped)} requests are swapped out, the queue counts them otherwise")
        if set(self.kv.tables) != {request.request_id for request in running}:
            raise EngineError(f"tables of {sorted(self.kv.tables)}, but {len(running)} requests run")
        for request in running:
            blocks = self.kv.table(request.request_id)
            holds_still = request.group is not None and request.group.beams is not None
            if request.status is not Status.RUNNING or not 0 <= request.num_computed < request.num_known + holds_still:
                raise EngineError(
                    f"{request.request_id} is {request.status.value}, {request.num_computed} of "
                    f"{request.num_known} tokens computed"
                )
            if request.group is not None and request.group.beams is not None and request.group.beams.have_parted:
                raise EngineError(f"of the beams of {request.group.members[0].request_id} some run and some do not")
            tokens = request.num_computed + request.num_in_flight
            if len(blocks) != self.kv.blocks_for(tokens):
                raise EngineError(f"{request.request_id} holds {len(blocks)} blocks for {tokens} tokens")

    def _check_result(self, step: Step, result: StepResult) -> None:
        wanted = len(step.plan.sample_tokens)
        if len(result.token_ids) != wanted:
            raise EngineError(f"step {step.plan.step} wants {wanted} tokens, got {len(result.token_ids)}")
        if wanted and not 0 <= min(result.token_ids) <= max(result.token_ids) < self.capacity.vocab_size:
            raise EngineError(f"step {step.plan.step} sampled an id outside the vocabulary: {result.token_ids}")

    def _commit_draws(
        self, part: Scheduled, plan: StepPlan, result: StepResult, first_draw: int, now_s: float, events: list[Event]
    ) -> None:
        """Log-probabilities of prompt tokens, and what was drawn after the last one known, for each who draws there."""
        request = part.request
        draws = range(first_draw, first_draw + part.num_draws)
        request.prompt_logprobs.extend(result.logprobs[draw] for draw in draws if draw in plan.targets)
        draws = range(draws.start + sum(draw in plan.targets for draw in draws), draws.stop)
        if part.error:
            events.append(self._end(request, "error", now_s, error=part.error))
        elif draws and request.group is not None and request.group.beams is not None:
            request.group.beams.offer(request, result.logprobs[draws[0]])
        elif part.draft.token_ids:
            self._commit_draft(part, result, draws, now_s, events)
        elif draws:
            for draw, member in zip(draws, self._drawing(request), strict=True):
                if not member.is_finished:
                    self._commit_token(member, result.token_ids[draw], now_s, events, result.logprobs.get(draw))

    def _commit_draft(
        self, part: Scheduled, result: StepResult, draws: Sequence[int], now_s: float, events: list[Event]
    ) -> None:
        """The tokens that the target accepts of a draft, and the one drawn after them."""
        if self.speculator is None:
            raise EngineError(f"{part.request.request_id} has a draft without speculation")
        path = self.speculator.accept(part, [result.token_ids[draw] for draw in draws])
        draws = [draws[i] for i in draws_that_count(path)]
        tokens = [result.token_ids[draw] for draw in draws]
        logprobs = [result.logprobs[draw] for draw in draws if draw in result.logprobs]
        self._commit_tokens(part.request, tokens, now_s, events, logprobs, part, path)

    def _drawing(self, request: Request) -> list[Request]:
        """The request, or all members of its group when they part here: then they run from now on."""
        group = request.group
        if group is None or group.has_forked:
            return [request]
        group.has_forked = True
        request.is_plain = request.params.is_plain
        for member in group.members[1:]:
            if not member.is_finished:
                fork(request, member, self.kv, self.scheduler)
        return group.members

    def _advance(self, beams: BeamSearch, now_s: float, events: list[Event]) -> None:
        """The next step of a beam search, if all its beams are ready for it, or its outputs if that was the last."""
        if not beams.is_ready or any(beam.is_finished for beam in beams.beams):
            return
        extensions = beams.select()
        if not beams.is_done:
            beams.reseat(extensions, self.kv, self.scheduler)
            for beam in beams.beams:
                self.trace.emit("token", beam.request_id, token_id=beam.token_ids[-1])
            return
        found = beams.best()
        for member, hypothesis in zip(beams.members, found, strict=False):
            del member.token_ids[member.num_prompt :]
            member.logprobs.clear()
            self._commit_tokens(member, [t.token_id for t in hypothesis.tokens], now_s, events, hypothesis.tokens)
        for member in beams.members[len(found) :]:
            error = f"only {len(found)} hypotheses exist: lower beam_width"
            events.append(self._end_one(member, "error", now_s, error=error))

    def _commit_token(
        self,
        request: Request,
        token_id: int,
        now_s: float,
        events: list[Event],
        logprobs: TokenLogprobs | None = None,
    ) -> None:
        self.trace.emit("token", request.request_id, token_id=token_id)
        self._commit_tokens(request, (token_id,), now_s, events, () if logprobs is None else (logprobs,))

    def _commit_tokens(
        self,
        request: Request,
        token_ids: Sequence[int],
        now_s: float,
        events: list[Event],
        logprobs: Sequence[TokenLogprobs],
        part: Scheduled | None = None,
        path: Sequence[int] = (),
    ) -> None:
        """Append tokens up to the first that ends the request. With ``part``, all but the last are those of its
        draft on ``path``."""
        request_id = request.request_id
        committed = commit_tokens(
            request, token_ids, detokenizer=self._detokenizers.get(request_id), time_s=now_s, logprobs=logprobs
        )
        request.chunk_sizes.append(len(committed.tokens))
        if part is not None:
            self._keep_accepted(part, path[: len(committed.tokens) - 1])
        for i, (token, text) in enumerate(committed.tokens):
            self.order.on_token(request)
            events.append(Event(request_id, "token", now_s, token, text, logprobs=logprobs[i] if logprobs else None))
        if committed.finish_reason is not None:
            events.append(self._end(request, committed.finish_reason, now_s, committed.last_text))

    def _keep_accepted(self, part: Scheduled, path: Sequence[int]) -> None:
        """Bring the K/V of the accepted ``path`` of a draft together, and give back the rest of its slots."""
        request, first, size = part.request, part.start + part.num_tokens, self.config.block_size
        for token_id in request.token_ids[first:]:
            self.trace.emit("token", request.request_id, token_id=token_id)
        # All but the newest token went through the model, in this step or before.
        request.num_computed = request.num_known - 1
        table = self.kv.table(request.request_id)
        # A tree's tokens lie in the tree's order: those of a path that is not its first one have others between.
        places = [(first + node, first + i) for i, node in enumerate(path) if node != i]
        if places:
            slots = [(table[a // size] * size + a % size, table[b // size] * size + b % size) for a, b in places]
            self.backend.copy_slots(slots)
        self.kv.commit(request)
        self.kv.rewind(request, request.num_computed)
        self.trace.emit("verify", request.request_id, tokens=len(path), computed=request.num_computed)

    def _end(self, request: Request, reason: FinishReason, now_s: float, text: str = "", error: str = "") -> Event:
        """End a request, and those of its group that depend on it when it is cut off."""
        event = self._end_one(request, reason, now_s, text, error)
        group = request.group
        if group is not None and reason in ("abort", "error") and group.depends_on(request):
            for member in group.members:
                if member.num_in_flight:
                    self._end_when_it_lands(member)
                elif not member.is_finished:
                    self._outbox.append(self._end_one(member, reason, now_s, error=error))
        return event

    def _end_one(self, request: Request, reason: FinishReason, now_s: float, text: str = "", error: str = "") -> Event:
        """The only way out of a request: blocks released, one terminal event."""
        request_id = request.request_id
        self.scheduler.remove(request)
        if self.speculator is not None:
            self.speculator.forget(request_id)
        detokenizer = self._detokenizers.pop(request_id, None)
        if detokenizer is not None and reason in ("abort", "error"):
            text = detokenizer.flush()
            request.text += text
        if request.group is not None and request.group.beams is not None and reason in ("abort", "error"):
            del request.token_ids[request.num_prompt :]  # a beam that was cut off: nobody was told of its tokens
            request.logprobs.clear()
        request.finish_reason = reason
        request.finished_s = now_s
        request.error = error
        self._num_unfinished -= 1
        kind: Literal["finish", "error"] = "error" if reason == "error" else "finish"
        self.trace.emit(kind, request_id, note=error or reason)
        return Event(request_id, kind, now_s, text=text, finish_reason=reason, error=error)

    def _fail(self, requests: Sequence[Request], error: str) -> None:
        """The backend or a drafter raised in a step of these requests: those that have not ended do."""
        now_s = self.clock()
        for request in requests:
            request.num_in_flight = 0  # nothing of it will land
        for request in requests:
            if not request.is_finished:
                self._outbox.append(self._end(request, "error", now_s, error=error))

    def _next_arrival_s(self) -> float | None:
        while self._pending and self._pending[0][2].is_finished:  # aborted before it arrived
            heapq.heappop(self._pending)
        return self._pending[0][0] if self._pending else None
