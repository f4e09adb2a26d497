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

from minillm.core.backend import Backend, LayerSplitter
from minillm.core.clock import VirtualClock
from minillm.core.commit import Committer
from minillm.core.config import EngineConfig
from minillm.core.detokenizer import Detokenizer, TokenBytes
from minillm.core.errors import EngineError
from minillm.core.hooks import NO_TRACE
from minillm.core.kv.block_keys import ExtraKey, Hash, digest128
from minillm.core.kv_manager import KVManager
from minillm.core.lifecycle import Lifecycle
from minillm.core.observe.integrity import check_integrity
from minillm.core.observe.metrics import RunMetrics, StepSample, run_metrics
from minillm.core.observe.trace import EventLog
from minillm.core.outputs.beams import BeamSearch
from minillm.core.outputs.group import Group
from minillm.core.plan import StepResult
from minillm.core.policies.admission import (
    check_extra_keys,
    check_params,
    check_places,
    check_prompt,
    check_room,
    check_service,
    longest_request,
)
from minillm.core.policies.batching import make_policy
from minillm.core.policies.load import LoadShedder
from minillm.core.policies.order import make_order
from minillm.core.policies.step_times import StepTimes
from minillm.core.request import Event, Request, RequestError, Status
from minillm.core.sampling import SamplingParams, derived_seed, uniform
from minillm.core.sampling.constraint import check_budget
from minillm.core.scheduler import Scheduler
from minillm.core.step import Step
from minillm.speculate.draft import DraftError
from minillm.speculate.speculator import Speculation, Speculator

__all__ = ["Engine", "EngineError", "Event", "KVUsage", "Request", "RequestError"]


@dataclass(frozen=True, slots=True)
class KVUsage:
    """KV memory now; the null block is not counted."""

    used_blocks: int  # held by running requests, and for transfers
    cached_blocks: int  # free, with content that a later request may hit
    total_blocks: int
    used_bytes: int
    total_bytes: int
    used_host_blocks: int = 0  # held by swapped requests
    total_host_blocks: int = 0


@dataclass(slots=True, eq=False)
class _InFlight:
    """A step between planning and commit."""

    step: Step
    result: Callable[[], StepResult]  # waits for it
    is_submitted: bool = False  # whether the backend has it; else it runs when its result is asked for


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
        if config.free_behind_window and isinstance(backend, LayerSplitter):
            backend.split_layers()
        backend.load(block_size=config.block_size, num_blocks=config.num_blocks, num_host_blocks=config.num_host_blocks)
        self.capacity = capacity = backend.capacity()
        self.max_model_len = longest_request(config, capacity.max_model_len)
        self.clock = clock
        self.trace = EventLog() if config.record_trace else NO_TRACE
        keeps_all = not config.free_behind_window or (speculation is not None and speculation.drafter.uses_slots)
        self.kv = KVManager(
            capacity.num_blocks,
            config.block_size,
            num_host_blocks=capacity.num_host_blocks,
            prefix_caching=config.prefix_caching,
            prefix_index=config.prefix_index,
            eviction=config.eviction,
            crossover_tokens=capacity.crossover_tokens,
            window=None if keeps_all else capacity.window,
            other_windows=capacity.other_windows,
            span_tokens=config.span_tokens,
            trace=self.trace,
            hash_function=hash_function,
        )
        self.step_times = StepTimes()
        self._load = LoadShedder(config, self.step_times) if config.sheds_load else None
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
        self._lifecycle = Lifecycle(self.scheduler, self.speculator, self.trace, clock, config.keep_ended)
        self._committer = Committer(
            backend, self.kv, self.scheduler, self.speculator, self.order, self._lifecycle, self.trace
        )
        self.requests = self._lifecycle.requests
        self.num_steps = 0
        self._eos_ids = frozenset(i for i in eos_ids if 0 <= i < capacity.vocab_size)
        self._tokenizer = tokenizer
        self._pending: list[tuple[float, int, Request]] = []  # heap of arrivals that were not looked at yet
        self._flight: deque[_InFlight] = deque()  # steps handed to the backend, the oldest first
        self._num_planned = 0
        self._is_idle = False  # whether the last step found nothing to do
        self._last_ids: list[int] = []  # the draws of the step that landed last
        self._samples: deque[StepSample] = deque(maxlen=config.keep_ended)

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
        steer the orders that look at them (`minillm.core.policies.order`).
        """
        check_service(self.config, priority, tenant, ttft_slo_s, tpot_slo_s)
        index = self._lifecycle.num_submitted
        names = self._lifecycle.names(request_id, params.num_sequences)
        prompt = check_prompt(prompt_ids, self.capacity.vocab_size, self.max_model_len)
        max_total = min(len(prompt) + params.max_tokens, self.max_model_len)
        check_params(params, self.capacity.vocab_size, has_tokenizer=self._tokenizer is not None)
        check_room(len(prompt), max_total, self.kv, params.beam_width or 1)
        check_places(params, self.config)
        if arrival_s is not None and not math.isfinite(arrival_s):
            raise RequestError(f"arrival_s is {arrival_s}: give finite seconds of the engine's clock")
        arrival_s = self.clock() if arrival_s is None else arrival_s
        # A seed of its own, so that equal prompts without a seed draw differently.
        seed = params.seed if params.seed is not None else int(uniform(self.config.seed, index) * 2**53)
        stop_ids, extra_keys = self._stop_ids(params), check_extra_keys(extra_keys, salt, len(prompt))
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
        if params.grammar is not None:
            check_budget(requests[0])
        if len(requests) > 1 or params.beam_width:
            group = Group(requests, BeamSearch(requests) if params.beam_width else None)
            for request in requests:
                request.group = group
                request.prompt_logprobs = requests[0].prompt_logprobs  # one list: the prompt is computed once
            requests[0].is_plain = False  # until the others part from it
        texts = [Detokenizer(self._tokenizer, params.stop) if self._tokenizer else None for _ in requests]
        for request, detokenizer in zip(requests, texts, strict=True):  # nothing raises from here on
            self._lifecycle.add(request, detokenizer)
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

    @property
    def num_planned(self) -> int:
        """Steps planned so far: those behind ``num_steps`` are in flight, and may read and write any block."""
        return self._num_planned

    def has_work(self) -> bool:
        """Whether a request has not ended, or an event is still to be delivered."""
        return self._lifecycle.num_unfinished > 0 or bool(self._lifecycle.outbox) or bool(self._flight)

    def abort(self, request_id: str) -> bool:
        """End a request; its terminal event comes with the next step. False if it is unknown or has ended.

        By the id of the first of several outputs, or of any hypothesis of a beam search, all of them end.
        """
        return self._lifecycle.abort(request_id)

    def step(self) -> list[Event]:
        """Land the oldest step in flight and return its events: none if nothing can run now.

        Before it waits for that step, it plans and submits as many more as ``overlap`` allows. With a
        ``VirtualClock``, a step that finds nothing to do jumps to the next time when there is.
        """
        self._launch()
        while not self._flight and not self._lifecycle.outbox and isinstance(self.clock, VirtualClock):
            wake_s = self.next_wake_s()
            if wake_s is None or wake_s <= self.clock():
                break
            self.clock.advance_to(wake_s)
            self._launch()
        if self._flight:
            self._is_idle = False
            return self._land()
        self._is_idle = not self._lifecycle.outbox
        return self._lifecycle.take_events()

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
                with self._ends_requests_on_error(flight):
                    if step.copies:
                        self.backend.copy_blocks(step.copies)
                    flight.result = submit(step.plan)
                    flight.is_submitted = True

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
        with self._ends_requests_on_error(flight):
            result = flight.result()
            self._check_result(flight.step, result)
        self._flight.popleft()
        self._last_ids = result.token_ids
        return self.commit_step(flight.step, result)

    @contextmanager
    def _ends_requests_on_error(self, flight: _InFlight) -> Iterator[None]:
        """If the backend raises, the requests of that step end with an error, and no others.

        So do those that were to be swapped out before the step, for their K/V may not have reached the host. Later
        steps that the backend has not seen are taken back, for what they would read of the step was not computed.
        Of those that it has, the ones that nobody is left to hear of are not waited for.
        """
        try:
            yield
        except Exception as error:
            swapped = [self.requests[request_id] for request_id in self.kv.swap.swapped_by(flight.step.copies)]
            self._lifecycle.fail([*swapped, *flight.step.requests], error)
            self._flight.remove(flight)
            self.num_steps += 1
            for later in list(self._flight)[::-1]:
                if not later.is_submitted:
                    self.scheduler.take_back(later.step)
                elif not all(request.is_finished for request in later.step.requests):
                    continue
                self._flight.remove(later)
                self.num_steps += 1
            raise

    def run(self, sleep: Callable[[float], object] = time.sleep) -> Iterator[Event]:
        """Step until every request has ended, and ``sleep`` while there is nothing to do."""
        for events in self.run_steps():
            yield from events
            if (wait_s := self.wait_s()) > 0:
                sleep(wait_s)

    def run_steps(self) -> Iterator[list[Event]]:
        """The events of a step at a time, until every request has ended. Never sleeps: ``wait_s`` says for how long
        a caller may, so that an event loop can do other things meanwhile."""
        idle_steps = 0
        while self.has_work():
            yield self.step()
            if not self._is_idle or (self.next_wake_s() is not None and not isinstance(self.clock, VirtualClock)):
                idle_steps = 0
                continue
            idle_steps += 1
            if idle_steps > 2:  # one is legal: a step in which everyone was preempted
                raise EngineError(
                    f"{self._lifecycle.num_unfinished} requests cannot go on: {self.kv.pool.num_free} blocks are free, "
                    f"{len(self.scheduler.running)} requests run, {self.scheduler.waiting.num_requests} wait, "
                    f"{self.scheduler.swapped.num_requests} are swapped out, "
                    f"{len(set(self.kv.holds.held()))} blocks are held for transfers"
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
        except BaseException as error:
            self._lifecycle.fail(self.scheduler.planning(), error)
            if isinstance(error, DraftError):
                raise EngineError(str(error)) from error
            raise
        if step is not None:
            self._num_planned += 1
        if self._load is not None:
            self._shed(self._load, newcomers, now_s)
        return step

    def _shed(self, load: LoadShedder, newcomers: Sequence[Request], now_s: float) -> None:
        """End the newcomers that would wait in a queue that is too long. Who was admitted at once never waited."""
        waiting = self.scheduler.waiting
        load.observe(now_s, self.scheduler.num_admitted_tokens, waiting.num_requests)
        stayed = [request for request in newcomers if request.status is Status.WAITING]
        if not stayed:
            return
        unread = sum(request.num_known - request.num_computed_tokens for request in self.scheduler.running)
        for request, why in load.refused(stayed, waiting.num_requests, waiting.num_tokens, unread):
            self._lifecycle.outbox.append(self._lifecycle.end(request, "error", now_s, error=why))

    def commit_step(self, step: Step, result: StepResult) -> list[Event]:
        """Take over what the backend computed: tokens, ends, blocks to index, metrics.

        Whatever raises here ends the requests of the step that have not ended, and no others. The events made
        before come with the next step.
        """
        now_s = self.clock()
        self.trace.mark(step.plan.step, now_s)
        num_requests, num_tokens = len(step.plan.request_ids), len(step.plan.token_ids)
        self.trace.emit("land", "", tokens=num_tokens, computed=self.kv.pool.num_used)
        events = self._lifecycle.take_events()
        self.num_steps += 1
        try:
            self._committer.commit(step, result, now_s, events)
            self.step_times.observe(num_tokens, result.elapsed_s)
            self._samples.append(StepSample(now_s, result.elapsed_s, num_requests, num_tokens, self.kv.pool.num_used))
            if self.config.debug_checks:
                self.check()
        except BaseException as error:  # an interrupt, too: the step will not land again
            self._lifecycle.deliver_first(events)
            self._lifecycle.fail(step.requests, error)
            raise
        return events

    def wait_s(self) -> float:
        """Seconds until the next step has something to do: 0 unless the last one had nothing.

        A request that is added meanwhile may run at once.
        """
        wake_s = self.next_wake_s() if self._is_idle else None
        return 0.0 if wake_s is None else max(0.0, wake_s - self.clock())

    def next_wake_s(self) -> float | None:
        """When something may become runnable although no one calls: an arrival, or a policy's deadline."""
        arrival_s = self._next_arrival_s()
        policy_s = self.scheduler.wake_s(self.clock(), arrival_s is not None)
        return min((t for t in (arrival_s, policy_s) if t is not None), default=None)

    def metrics(self) -> RunMetrics:
        """Of the requests and steps that are known: the last ``keep_ended`` of either. Preemptions are all counted."""
        return run_metrics(self.requests.values(), self._samples, self.scheduler.num_preemptions)

    def check(self) -> None:
        """Raise ``EngineError`` or ``PoolError`` unless requests, tables, index and pool agree. Between steps."""
        check_integrity(self.scheduler, self.kv)

    def kv_usage(self) -> KVUsage:
        pool = self.kv.pool
        block_bytes = self.config.block_size * self.capacity.kv_bytes_per_token
        total = pool.num_blocks - 1
        cached = sum(pool.ref_counts[block] == 0 for group in self.kv.groups for block in group.index.blocks())
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

    def _check_result(self, step: Step, result: StepResult) -> None:
        wanted = len(step.plan.logits_indices)
        if len(result.token_ids) != wanted:
            raise EngineError(f"step {step.plan.step} wants {wanted} tokens, got {len(result.token_ids)}")
        if wanted and not 0 <= min(result.token_ids) <= max(result.token_ids) < self.capacity.vocab_size:
            raise EngineError(f"step {step.plan.step} sampled an id outside the vocabulary: {result.token_ids}")

    def _next_arrival_s(self) -> float | None:
        while self._pending and self._pending[0][2].is_finished:  # aborted before it arrived
            heapq.heappop(self._pending)
        return self._pending[0][0] if self._pending else None
