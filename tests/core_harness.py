"""Drives the engine on the hash model and checks every invariant at every step; used by ``tests/core``.

``AuditedModel`` stands between engine and hash model. Before a step runs it poisons whatever no one may
read, and checks the plan against pool, index and requests; ``drive`` runs a workload to its end and
compares every output with an oracle that knows no blocks.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adversaries import DRAFTERS, Knowing
from core_oracle import audit_logprobs, oracle
from draft_audit import audit_draft, audit_length

from minillm.backends.hash_model import HashModel
from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine, Event
from minillm.core.kv.block_keys import Hash, digest128
from minillm.core.kv.cache_group import CacheGroup
from minillm.core.kv_manager import KVManager
from minillm.core.observe.replay import Replay
from minillm.core.outputs.group import together
from minillm.core.plan import StepPlan, StepResult
from minillm.core.request import Request, RequestError, Status
from minillm.core.sampling import SamplingParams
from minillm.speculate.speculator import Speculation, Verification

GREEDY = SamplingParams(temperature=0)


class AuditedModel(HashModel):
    """The hash model, with poison in whatever a plan may not read. Each step takes one second of virtual time."""

    def __init__(self, clock: VirtualClock, **sizes: Any) -> None:
        super().__init__(**{"vocab_size": 2, "max_model_len": 256, **sizes})
        self.clock = clock
        self.engine: Engine | None = None
        self.plans: list[StepPlan] = []
        self.stale: dict[int, list[int]] = {}  # by step: blocks that held nothing to keep when it was planned
        self.during_run: Callable[[], object] = lambda: None  # what the outside does while a step is in flight
        self.moved: list[tuple[int, int]] = []  # slots

    def run(self, plan: StepPlan) -> StepResult:
        assert not plan.drawn, "row 30: a placeholder reaches the model"
        result = self._execute(plan)
        self.during_run()
        self.clock.advance(1.0)
        return result

    def _execute(self, plan: StepPlan) -> StepResult:
        # Only now, in the order of the steps: one that was planned earlier may still have read these blocks.
        self.poison(self.stale.pop(plan.step, []))
        groups = [replace(group, block_tables=[list(t) for t in group.block_tables]) for group in plan.groups]
        self.plans.append(replace(plan, block_tables=[list(t) for t in plan.block_tables], groups=groups))
        result = super().run(plan)
        return StepResult(result.token_ids, 1.0, result.logprobs, hidden=result.hidden)

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        assert self.engine is not None
        kv = self.engine.kv
        for _, target in pairs:
            assert kv.pool.ref_counts[target // self._block_size] == 1, "I16: a slot is copied into a shared block"
            assert not is_indexed(kv, target // self._block_size), "I16: a slot is copied into an indexed block"
        self.moved += pairs
        super().copy_slots(pairs)

    def is_written(self, block: int) -> bool:
        size = self._block_size
        return None not in self._slots[block * size : (block + 1) * size]


class AsyncModel(AuditedModel):
    """Takes steps as a device with a queue does: what was drawn stays there, and its results come later."""

    def __init__(self, clock: VirtualClock, **sizes: Any) -> None:
        super().__init__(clock, **sizes)
        self.draws: list[int] = []  # of the step before

    def submit(self, plan: StepPlan) -> Callable[[], StepResult]:
        ids = [self.draws[plan.drawn[i]] if i in plan.drawn else id_ for i, id_ in enumerate(plan.token_ids)]
        result = self._execute(replace(plan, token_ids=ids))
        self.draws = result.token_ids

        def wait() -> StepResult:
            self.during_run()
            self.clock.advance(1.0)
            return result

        return wait


def is_indexed(kv: KVManager, block: int) -> bool:
    """Whether a request may hit the block."""
    return any(block in group.index for group in kv.groups)


def blocks_of(group: CacheGroup) -> dict[str, list[int]]:
    """The tables that have blocks."""
    return {name: table.blocks for name, table in group.tables.items() if table.blocks}


def audit_plan(engine: Engine, plan: StepPlan, before: StepPlan | None) -> None:
    """A plan as it leaves the scheduler, and the plan ``before`` it."""
    size, config = engine.config.block_size, engine.config
    pool, kv = engine.kv.pool, engine.kv
    groups = [plan, *plan.groups]
    assert len(groups) == len(kv.groups)
    assert len(plan.token_ids) <= config.max_batch_tokens, "I17: over the token budget"
    assert len(plan.request_ids) <= len(engine.scheduler.running) <= config.max_running_requests, "I17"
    written = [slot for group in groups for slot in group.slot_mapping]
    assert len(set(written)) == len(written) == len(groups) * len(plan.token_ids), "I15: two tokens write one slot"
    assert min(plan.token_ids) >= 0
    for r, request_id in enumerate(plan.request_ids):
        request = engine.requests[request_id]
        start, end = plan.query_start_loc[r], plan.query_start_loc[r + 1]
        assert end > start, "I18: scheduled with no token"
        first = request.num_computed_tokens + request.num_in_flight - (end - start)  # this step is in flight, too
        runs_ahead = any(token in plan.drawn for token in range(start, end))
        known = end if runs_ahead else min(end, start + request.num_known - first)  # behind these, a draft
        assert first >= request.num_computed_tokens
        assert plan.positions[start:known] == list(range(first, first + known - start))
        assert plan.seq_lens[r] == first + end - start, "row 7: reads past what is written"
        assert first + known - start < request.max_total_tokens, "computes what nothing is drawn after"
        for token, position in zip(range(start, known), plan.positions[start:known], strict=True):
            if token in plan.drawn:
                assert position >= request.num_known, "row 31: a known token is taken from a draw"
                audit_reference(request_id, position, plan.drawn[token], before)
            else:
                assert plan.token_ids[token] == request.token_ids[position]
        for group in groups:
            assert len(group.block_tables[r]) == -(-plan.seq_lens[r] // size), "I13: table length"
        drawn = [t for draw, t in enumerate(plan.logits_indices) if start <= t < known and draw not in plan.targets]
        may_draw = first + known - start >= request.num_known
        group = request.group
        draws = 1 if group is None or group.beams is not None or group.has_forked else len(group.members)
        may_be_banned = request.params.min_tokens > 0 or request.params.bad_words
        assert drawn == [known - 1] * draws * may_draw or (may_be_banned and not drawn)
        if known < end:
            audit_draft(plan, r, request, known)
        for group in groups:
            for place, slot in enumerate(group.slot_mapping[start:end], start=first):
                block = slot // size
                assert slot == group.block_tables[r][place // size] * size + place % size
                assert block != 0, "the null block is written"
                assert pool.ref_counts[block] == 1, "I16: a shared block is written"
                assert not is_indexed(kv, block), "I16: an indexed block is written"
    # Beams are admitted together, even where the budget has no token for each of them in this step.
    admitted = {e.request_id for e in engine.trace.events if (e.kind, e.step) == ("admit", plan.step)}
    for request in engine.scheduler.running:
        for one in kv.groups:
            for i, block in enumerate(one.tables[request.request_id].blocks):
                assert block not in one.index or (i + 1) * size <= request.num_computed_tokens, (
                    "I12: a draft is indexed"
                )
        waits = request.num_known - request.num_computed_tokens == 1 and not request.num_in_flight
        assert not waits or request.request_id in admitted, f"I22: the decode of {request.request_id} is left out"


def audit_reference(request_id: str, position: int, draw: int, before: StepPlan | None) -> None:
    """The input at ``position`` is draw ``draw`` of the step before: of this request, after the position before."""
    assert before is not None
    token = before.logits_indices[draw]
    row = bisect_right(before.query_start_loc, token) - 1
    assert before.request_ids[row] == request_id, "row 31: the draw of another request"
    assert before.positions[token] == position - 1, "row 31: another draw of this request"


def audit_state(engine: Engine, replay: Replay) -> None:
    """Between steps: structures agree with each other and with the replay; the index names written blocks only."""
    engine.check()
    for request in engine.requests.values():
        at_rest = request.num_in_flight == 0 and (request.num_computed_tokens == 0) == (
            request.status is not Status.SWAPPED
        )
        assert request.status is Status.RUNNING or at_rest or request.is_finished
    if engine.config.prefix_caching:
        for request in engine.scheduler.running:
            full = request.num_computed_tokens // engine.config.block_size
            for one in engine.kv.groups:
                chain = one.tables[request.request_id].chain
                assert chain is None or chain.length == full, "a full block is not indexed at once"
    audit_windows(engine)
    model = engine.backend
    assert isinstance(model, AuditedModel)
    for one in engine.kv.groups:
        for block in one.index.blocks():
            assert model.is_written(block), "I6: a block is indexed that is not full of computed tokens"
    audit_replay(engine, replay)


def audit_windows(engine: Engine) -> None:
    """A table has each block that a token to come can read, and few that none can."""
    window, kv = engine.capacity.window, engine.kv
    drafter = None if engine.speculator is None else engine.speculator.drafter
    if not engine.config.free_behind_window or (drafter is not None and drafter.uses_slots):
        window = None
    assert len(kv.groups) == 1 + len(engine.capacity.other_windows)
    for one, its_window in zip(kv.groups, (window, *engine.capacity.other_windows), strict=True):
        for request in engine.scheduler.running:
            audit_window(
                one.tables[request.request_id].blocks, request.num_computed_tokens, engine.config.block_size, its_window
            )


def audit_window(table: Sequence[int], computed: int, size: int, window: int | None) -> None:
    """Of one table."""
    for i, block in enumerate(table):
        end = (i + 1) * size
        if block == 0:
            assert window is not None, "a block is left without a window"
            assert end <= computed - window + 1, "a block is left that is still read"
        else:
            # It goes when the next block fills up, and the last full one is kept in any case.
            is_late = window is not None and end <= computed // size * size - max(window - 1, size)
            assert not is_late, "a block is kept that nothing reads"


def audit_replay(engine: Engine, replay: Replay) -> None:
    """The events so far say the same as the live structures."""
    replay.apply(engine.trace.events[replay.num_applied :])
    kv, requests = engine.kv, engine.requests.values()
    replays = [replay, *(replay.groups.get(g + 1, Replay(0)) for g in range(len(kv.groups) - 1))]
    for its, one in zip(replays, kv.groups, strict=True):
        assert {name: t for name, t in its.tables.items() if t} == blocks_of(one)
    assert [len(holders) for holders in replay.holders] == kv.pool.ref_counts
    assert {block for block, cached in enumerate(replay.cached) if cached} == {
        block for one in kv.groups for block in one.index.blocks()
    }
    assert replay.waiting == {r.request_id for r in requests if r.status is Status.WAITING}
    assert replay.running == {r.request_id for r in requests if r.status is Status.RUNNING}
    assert replay.host_tables.keys() == {r.request_id for r in requests if r.status is Status.SWAPPED}
    assert not any(replay.computed.get(name) for name in replay.waiting)
    for name in [*replay.running, *replay.host_tables]:
        request = engine.requests[name]
        assert replay.computed[name] == request.num_computed_tokens + request.num_in_flight
    for request in requests:
        arrived = request.status not in (Status.PENDING, Status.FINISHED)
        assert replay.known.get(request.request_id) == (request.num_known if arrived else None)


@dataclass(frozen=True)
class Job:
    """One request of a workload."""

    prompt: tuple[int, ...]
    params: SamplingParams = GREEDY
    arrival_s: float = 0.0
    salt: str | None = None
    priority: int = 0
    tenant: str = ""
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    abort_after: int | None = None  # engine steps after which it is aborted


@dataclass(frozen=True)
class Case:
    """A workload and the engine it runs on."""

    config: EngineConfig
    jobs: tuple[Job, ...]
    eos_ids: frozenset[int] = frozenset()
    hash_function: Hash = digest128
    vocab_size: int = 2
    abort_in_flight: bool = False
    is_async: bool = False  # the model takes steps by ``submit``; seen only with ``overlap``
    drafter: str | None = None  # a name of ``adversaries.DRAFTERS``
    draft_tokens: int = 3
    verification: Verification = "draw"
    adaptive: bool = False
    window: int | None = None  # of the model
    other_windows: tuple[int | None, ...] = ()  # of its other layer groups

    def speculation(self) -> Speculation | None:
        if self.drafter is None:
            return None
        drafter = DRAFTERS[self.drafter]()
        return Speculation(drafter, self.draft_tokens, verification=self.verification, adaptive=self.adaptive)


@dataclass
class Outcome:
    engine: Engine
    model: AuditedModel
    events: list[Event] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)  # jobs that the engine would not take
    aborted: dict[str, int] = field(default_factory=dict)  # output tokens that a request had when it was aborted

    def ids(self) -> dict[str, list[int]]:
        return {request_id: request.output_ids for request_id, request in self.engine.requests.items()}


def make_engine(
    config: EngineConfig,
    *,
    vocab_size: int = 2,
    is_async: bool = False,
    window: int | None = None,
    other_windows: tuple[int | None, ...] = (),
    is_traced: bool = True,
    **options: object,
) -> tuple[Engine, AuditedModel]:
    """An audited engine on virtual time."""
    config = replace(config, record_trace=is_traced)
    clock = VirtualClock()
    model = (AsyncModel if is_async else AuditedModel)(
        clock, vocab_size=vocab_size, window=window, other_windows=other_windows
    )
    engine = Engine(model, config, clock=clock, **options)  # type: ignore[arg-type]
    model.engine = engine
    if engine.speculator is not None and isinstance(engine.speculator.drafter, Knowing):
        engine.speculator.drafter.model = model
    audit_planning(engine, model)
    return engine, model


def audit_planning(engine: Engine, model: AuditedModel) -> None:
    """Every plan is sound; who is admitted is the first of all that wait, who is preempted the last that runs."""
    scheduler, order = engine.scheduler, engine.order
    schedule, admit, preempt = scheduler.schedule, scheduler._admit, scheduler._preempt
    preempted: list[Request] = []  # in this planning
    admitted_with: list[Request] = []  # the last one, and the beams that came with it

    plans: list[StepPlan] = []

    def audited_schedule(*arguments: Any) -> Any:
        preempted.clear()
        num_events = len(engine.trace.events)
        step = schedule(*arguments)
        kinds = [event.kind for event in engine.trace.events[num_events:]]
        if "preempt" in kinds:
            assert "swap_in" not in kinds[kinds.index("preempt") :], "row 28: swapped in by a step that preempted"
        if step is not None:
            audit_plan(engine, step.plan, plans[-1] if plans else None)
            kv = engine.kv
            model.stale[step.plan.step] = [0, *(b for b in kv.pool.free_list() if not is_indexed(kv, b))]
            plans.append(replace(step.plan))
        return step

    def audited_admit(request: Request, *rest: Any) -> Any:
        first = min(scheduler.waiting.requests(), key=order.standing)
        if request not in admitted_with:
            assert request is first, f"I24: {request.request_id} is admitted, {first.request_id} is first"
            admitted_with[:] = together(request)
        away = [*preempted, *scheduler.swapped.requests()]
        assert all(order.outranks(request, r) for r in away), "row 28: admitted while someone is preempted or swapped"
        return admit(request, *rest)

    def audited_preempt(request: Request, *rest: Any) -> Any:
        last = max(scheduler.running, key=order.standing)
        assert request is last, f"row 27: {request.request_id} is preempted, {last.request_id} is last"
        preempted.append(request)
        return preempt(request, *rest)

    scheduler.schedule = audited_schedule  # type: ignore[method-assign]
    scheduler._admit, scheduler._preempt = audited_admit, audited_preempt  # type: ignore[method-assign]


def drive(case: Case) -> Outcome:
    """Run a case to its end under all audits, then check outputs, events, order and replay."""
    engine, model = make_engine(
        case.config,
        eos_ids=case.eos_ids,
        hash_function=case.hash_function,
        vocab_size=case.vocab_size,
        speculation=case.speculation(),
        is_async=case.is_async,
        window=case.window,
        other_windows=case.other_windows,
    )
    outcome = Outcome(engine, model)
    aborts: dict[int, list[str]] = {}
    for i, job in enumerate(case.jobs):
        try:
            engine.add_request(
                job.prompt,
                job.params,
                request_id=f"j{i}",
                arrival_s=job.arrival_s,
                salt=job.salt,
                priority=job.priority if case.config.order == "priority" else 0,
                tenant=job.tenant,
                ttft_slo_s=job.ttft_slo_s,
                tpot_slo_s=job.tpot_slo_s,
            )
        except RequestError as error:
            outcome.refused[i] = str(error)
            continue
        if job.abort_after is not None:
            # Of several outputs the first one's end is that of all, another one's its own.
            is_one_of_several = i % 2 and job.params.num_sequences > 1
            aborts.setdefault(job.abort_after, []).append(f"j{i}/1" if is_one_of_several else f"j{i}")

    def abort(request_ids: list[str]) -> None:
        for request_id in request_ids:
            engine.abort(request_id)
            for name, request in engine.requests.items():  # it, and those that go with it
                if request.abort_requested or request.finish_reason == "abort":
                    is_told = request.params.beam_width is None  # of its tokens as they come
                    outcome.aborted.setdefault(name, request.num_output if is_told else 0)

    if case.abort_in_flight:
        model.during_run = lambda: abort(aborts.get(engine.num_steps, []))
    # The oldest request advances in every step that runs, so each is the oldest for at most its length. A draw
    # that must be known before the next one takes all the steps in flight.
    bound = (
        2 * (1 + case.config.overlap) * sum(r.max_total_tokens for r in engine.requests.values())
        + 2 * len(case.jobs)
        + 5
    )
    calls = 0
    replay = Replay(engine.kv.pool.num_blocks)
    while engine.has_work():
        if not case.abort_in_flight:
            abort(aborts.pop(calls, []))
        outcome.events += engine.step()
        audit_state(engine, replay)
        calls += 1
        assert calls <= bound, f"I20: no end after {calls} steps"
    audit_outcome(case, outcome)
    return outcome


def audit_outcome(case: Case, outcome: Outcome) -> None:
    engine = outcome.engine
    assert engine.kv.pool.num_used == 0, "I5: idle with used blocks"
    for request_id, request in engine.requests.items():
        own = [e for e in outcome.events if e.request_id == request_id]
        assert [e.kind for e in own[:-1]] == ["token"] * (len(own) - 1), "I33"
        assert own[-1].kind in ("finish", "error"), "I33: exactly one terminal event, the last"
        assert own[-1].finish_reason == request.finish_reason
        assert [e.token_id for e in own[:-1]] == request.output_ids
        assert [e.logprobs for e in own[:-1] if e.logprobs is not None] == request.logprobs
        expected, is_error = oracle(outcome.model, request, case.eos_ids)
        limits = ("max_waiting_requests is", "max_waiting_tokens", "ttft_slo_s is")
        is_shed = any(limit in request.error for limit in limits)
        if is_shed:
            assert request.finish_reason == "error", "I21"
            assert request.admitted_s is None, "refused after it ran"
            assert not request.output_ids, "refused after it ran"
        elif case.verification == "rejection" and request.params.temperature > 0:
            audit_length(request)  # the ids depend on the drafts, their distribution does not
        elif request.finish_reason == "abort":
            assert request.output_ids == expected[: request.num_output], "a wrong token before the abort"
        else:
            assert request.output_ids == expected, "I26: a wrong token"
            is_named = "cannot be drawn" in request.error or "hypotheses exist" in request.error
            assert (request.finish_reason == "error") == is_error == is_named
        if not is_shed:
            audit_logprobs(outcome.model, request)
        assert request.num_output <= request.params.max_tokens, "I30"
        assert (request.finish_reason == "abort") == (request_id in outcome.aborted), "an abort without effect"
        assert outcome.aborted.get(request_id, request.num_output) == request.num_output, "a token after the abort"
        assert request.num_in_flight == 0
        is_cut_search = request.params.beam_width is not None and request.finish_reason != "stop"
        assert len(request.token_times_s) == sum(request.chunk_sizes) == request.num_output or is_cut_search
    audit_trace(outcome)


def audit_trace(outcome: Outcome) -> None:
    engine, trace = outcome.engine, outcome.engine.trace.events
    if engine.config.order == "fcfs":
        first: dict[str, None] = dict.fromkeys(
            e.request_id for e in trace if e.kind == "admit" and "/" not in e.request_id
        )
        arrivals = [(engine.requests[r].arrival_s, engine.requests[r].index) for r in first]
        assert arrivals == sorted(arrivals), "I24: admitted out of order"


def six_bits(data: bytes) -> bytes:
    """A hash with 64 values, so that collisions are everywhere."""
    return bytes([digest128(data)[0] & 63])


def two_bits(data: bytes) -> bytes:
    """A hash with four values: nearly every block collides with another."""
    return bytes([digest128(data)[0] & 3])


def random_case(rng: random.Random) -> Case:
    """Tiny blocks, tiny pool, two letters: where the bugs are."""
    chunked = rng.random() < 0.8
    max_model_len = rng.choice([6, 9, 14])
    block_size = rng.choice([1, 2, 3])
    num_host_blocks = rng.choice([0, 0, 2, 5, 20])
    config = EngineConfig(
        block_size=block_size,
        num_host_blocks=num_host_blocks,
        preemption="swap" if num_host_blocks else "recompute",
        # From one too few for the longest request to room for about two of them.
        num_blocks=(max_model_len - 1) // block_size + 1 + rng.randint(0, max_model_len // block_size),
        max_batch_tokens=rng.randint(1, 9) if chunked else max_model_len + rng.randint(0, 5),
        max_running_requests=rng.randint(1, 4),
        max_model_len=max_model_len,
        policy=rng.choice(["continuous", "continuous", "static", "dynamic"]),
        max_wait_s=rng.choice([0.0, 1.5]),
        order=rng.choice(["fcfs", "fcfs", "priority", "shortest", "fair", "deadline"]),
        ageing_tokens_per_s=rng.choice([0.5, 4.0]),
        ttft_slo_s=rng.choice([2.0, 20.0]),
        tpot_slo_s=rng.choice([0.5, 2.0]),
        max_waiting_requests=rng.choice([*[None] * 7, 1, 3]),
        max_waiting_tokens=rng.choice([*[None] * 7, 1, 12]),
        shed_late=rng.random() < 0.1,
        chunked_prefill=chunked,
        chunk_size=rng.choice([None, 1, 2, 3]) if chunked else None,
        prefix_caching=rng.random() < 0.8,
        prefix_index=rng.choice(["hash", "radix"]),
        eviction=rng.choice(["lru", "lru", "lfu", "cost"]),
        overlap=rng.choice([0, 0, 1, 2]),
        seed=rng.randint(0, 3),
    )
    return Case(
        config,
        tuple(random_job(rng, max_model_len) for _ in range(rng.randint(1, 7))),
        eos_ids=rng.choice([frozenset(), frozenset({1})]),
        hash_function=rng.choice([digest128, six_bits, two_bits]),
        abort_in_flight=rng.random() < 0.3,
        drafter=rng.choice(list(DRAFTERS)) if rng.random() < 0.4 else None,
        draft_tokens=rng.randint(1, 5),
        adaptive=rng.random() < 0.2,
        is_async=rng.random() < 0.5,
    )


def windowed_case(rng: random.Random) -> Case:
    """The same on a model with a sliding window."""
    return replace(random_case(rng), window=rng.choice([2, 3, 4, 6]))


def grouped_case(rng: random.Random) -> Case:
    """The same on a model with layer groups, in a pool that has room for all of them."""
    case = random_case(rng)
    windows = rng.choice([(None, 2), (None, 3), (None, 4, 4), (None, None, 3), (6, 3), (5, 2, 2)])
    blocks = len(windows) * (case.config.num_blocks or 0)
    return replace(case, window=windows[0], other_windows=windows[1:], config=replace(case.config, num_blocks=blocks))


def random_job(rng: random.Random, max_model_len: int) -> Job:
    # Mostly one letter: long common prefixes.
    prompt = tuple(int(rng.random() < 0.15) for _ in range(rng.randint(1, max_model_len)))
    max_tokens = rng.randint(1, 9)
    several = rng.choice([{}, {}, {"n": 3}, {"n": 2, "best_of": 3}, {"beam_width": rng.randint(1, 3)}])
    drawn = rng.choice([1.0, 9.0])  # one token is 8 ahead: at 1 another is seldom drawn
    temperature = 0.0 if "beam_width" in several else drawn if several else rng.choice([0.0, drawn])
    is_searched = "beam_width" in several
    params = SamplingParams(
        temperature=temperature,
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, 0, max_tokens, rng.randint(0, max_tokens)]),
        seed=None if is_searched else rng.choice([None, 7]),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=rng.choice([(), (), (0,)]),
        **(_random_shaping(rng) if rng.random() < 0.4 and not is_searched else {}),  # type: ignore[arg-type]
        **several,
    )
    return Job(
        prompt,
        params,
        arrival_s=rng.choice([0.0, 0.0, float(rng.randint(0, 12))]),
        salt=rng.choice([None, None, "a"]),
        priority=rng.choice([0, 0, 1, 2, -1]),
        tenant=rng.choice(["", "a", "b"]),
        ttft_slo_s=rng.choice([None, 1.0, 9.0]),
        tpot_slo_s=rng.choice([None, 0.5, 3.0]),
        abort_after=rng.choice([None, None, None, rng.randint(0, 8)]),
    )


def _random_shaping(rng: random.Random) -> dict[str, object]:
    """Strong enough to change what is drawn: the hash model's logits lie within 12."""
    return {
        "repetition_penalty": rng.choice([1.0, 4.0]),
        "presence_penalty": rng.choice([0.0, 2.0]),
        "frequency_penalty": rng.choice([0.0, 2.0, -1.0]),
        "logit_bias": rng.choice([{}, {0: 7.0}]),
        "bad_words": rng.choice([(), (), ((0, 0),), ((1,), (0, 1, 0))]),
        "logprobs": rng.choice([None, 0, 2]),
        "prompt_logprobs": rng.choice([None, None, 1]),
    }


def without(case: Case, **fields: object) -> Case:
    """The same workload on a changed configuration."""
    return replace(case, config=replace(case.config, **fields))  # type: ignore[arg-type]
