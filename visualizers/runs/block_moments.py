"""A run of the engine on a small pool, cut into the moments at which its blocks change hands.

A step has two moments: the scheduler plans it (requests arrive, hit, take and lose blocks), and the
backend has run it (slots are filled, full blocks indexed, ended requests leave). What is drawn is
rebuilt from the engine's event log alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

from minillm import hub
from minillm.backends import create_backend
from minillm.config import Locations
from minillm.core.backend import Backend
from minillm.core.observe.replay import Replay
from minillm.core.observe.trace import TraceEvent
from minillm.models.load import load_model
from minillm.models.tokenizer import load_tokenizer
from visualizers.runs.bench import Bench
from visualizers.runs.block_words import told_landing, told_plan

POOL_SLOTS = 96  # the null block comes on top
STEP_TOKENS = 24  # token budget of a step: the longest prompts need two
_OPENING = "My fellow Americans, the state of our Union is strong, and we thank the Congress for its work."
_MESSAGE = "To the Congress of the United States: I send with this message a report on the public lands"
_TREATY = (
    "We have made a treaty of peace with the Republic of Mexico, and trade is free again. "
    "The people are glad, and the taxes are"
)


@dataclass(frozen=True)
class Job:
    """A request of the run: a letter, the engine step in which it arrives, its prompt, its output length."""

    name: str
    arrival_step: int
    prompt: str
    max_tokens: int


# A, B and D begin alike; D is A's prompt again after A has ended; C and E share nothing.
JOBS = (
    Job("A", 0, f"{_OPENING} Our farmers have had a good year", 14),
    Job("B", 1, f"{_OPENING} The Army and the Navy", 10),
    Job("C", 3, _MESSAGE, 16),
    Job("D", 12, f"{_OPENING} Our farmers have had a good year", 9),
    Job("E", 13, _TREATY, 12),
)
NAMES = tuple(job.name for job in JOBS)


@dataclass
class Tally:
    """What has happened up to a moment, the moment included."""

    hit_tokens: int = 0
    computed_tokens: int = 0
    evicted_blocks: int = 0
    preemptions: int = 0


@dataclass(frozen=True)
class Block:
    """A block of the pool: who holds it, how many of its slots are filled, whose content is kept in it."""

    block: int
    holders: tuple[str, ...]
    filled: int
    cached_of: str  # the request that computed what a free block still keeps, else ""
    changed: bool  # taken, hit, evicted or given back in this moment


@dataclass(frozen=True)
class Sequence:
    """A request at a moment. ``prompt``, ``known`` and ``computed`` are tokens."""

    name: str
    status: str  # one of STATUSES
    prompt: int
    known: int
    computed: int
    table: tuple[int, ...]


STATUSES = ("to come", "waiting", "running", "done")


@dataclass(frozen=True)
class Moment:
    """The pool and the requests, and what has just happened, in words."""

    step: int  # of the engine; -1 before the first
    what: str
    blocks: tuple[Block, ...]  # block 0, the null block, left out
    sequences: tuple[Sequence, ...]
    tally: Tally
    taken: frozenset[tuple[str, int]]  # who got which block in this moment, by a hit or a new one


@dataclass(frozen=True)
class Run:
    """One run of the engine, moment by moment."""

    moments: tuple[Moment, ...]
    num_steps: int


@cache
def run(block_size: int, prefix_caching: bool) -> Run:
    """Serve ``JOBS`` on the bundled model."""
    loaded = load_model(hub.resolve("tiny", Locations()))
    return serve(create_backend(loaded, "numpy"), load_tokenizer(loaded.path).encode, block_size, prefix_caching)


def serve(backend: Backend, encode: Callable[[str], list[int]], block_size: int, prefix_caching: bool) -> Run:
    """Serve ``JOBS`` from a pool of ``POOL_SLOTS`` slots, greedily. Arrivals count steps: each takes one second."""
    bench = Bench.modelled(
        backend,
        lambda plan: 1.0,
        POOL_SLOTS,
        block_size=block_size,
        max_batch_tokens=STEP_TOKENS,
        max_running_requests=4,
        prefix_caching=prefix_caching,
        record_trace=True,
        debug_checks=True,
    )
    for job in JOBS:
        bench.ask(encode(job.prompt), job.max_tokens, name=job.name, arrival_s=float(job.arrival_step))
    bench.run()
    prompts = {request.request_id: request.num_prompt for request in bench.requests}
    return Run(_moments(bench.engine.trace.events, block_size, prompts), bench.engine.num_steps)


def _moments(events: Iterable[TraceEvent], block_size: int, prompts: Mapping[str, int]) -> tuple[Moment, ...]:
    story = _Story(block_size, prompts)
    moments = [story.moment(-1, (), "Nothing has arrived: every block is free.")]
    for step, group in groupby(events, key=lambda e: e.step):
        of_step = list(group)
        planned = max(i for i, e in enumerate(of_step) if e.kind == "schedule") + 1
        plan, landed = of_step[:planned], of_step[planned:]
        runs = [e for e in plan if e.kind == "schedule"]
        plan = [e for e in plan if e.kind != "schedule"]
        if plan:
            story.start(runs)
            moments.append(story.moment(step, plan, told_plan(plan)))
        moments.append(story.moment(step, [*runs, *landed], told_landing(runs, landed)))
    moments.append(story.moment(moments[-1].step, (), "The run has ended: every block is free."))
    return tuple(moments)


class _Story:
    """Replays events and takes a picture after each group of them."""

    def __init__(self, block_size: int, prompts: Mapping[str, int]) -> None:
        self._size = block_size
        self._prompts = prompts
        self._replay = Replay(POOL_SLOTS // block_size + 1)
        self._cached_of: dict[int, str] = {}
        self._running: set[str] = set()
        self._done: dict[str, int] = {}  # name: tokens known at its end
        self._tally = Tally()

    def start(self, runs: Iterable[TraceEvent]) -> None:
        """The backend is about to run: of each request so many tokens are computed before it does."""
        for event in runs:
            self._replay.computed[event.request_id] = event.computed

    def moment(self, step: int, events: Iterable[TraceEvent], what: str) -> Moment:
        """Apply ``events`` and picture what they leave."""
        changed: set[int] = set()
        taken: set[tuple[str, int]] = set()
        for event in events:
            self._note(event)
            self._replay.apply([event])
            if event.kind in ("hit", "allocate", "evict", "free"):
                changed.update(event.blocks)
            if event.kind in ("hit", "allocate"):
                taken.update((event.request_id, block) for block in event.blocks)
        blocks = tuple(self._block(b, b in changed) for b in range(1, len(self._replay.holders)))
        sequences = tuple(self._sequence(job.name) for job in JOBS)
        return Moment(step, what, blocks, sequences, replace(self._tally), frozenset(taken))

    def _note(self, event: TraceEvent) -> None:
        name, tally = event.request_id, self._tally
        match event.kind:
            case "admit":
                self._running.add(name)
            case "hit":
                tally.hit_tokens += event.tokens
            case "schedule":
                tally.computed_tokens += event.tokens
            case "evict":
                tally.evicted_blocks += len(event.blocks)
            case "index":
                self._cached_of.update(dict.fromkeys(event.blocks, name))
            case "preempt":
                tally.preemptions += 1
                self._running.discard(name)
            case "finish":
                self._done[name] = self._replay.known[name]
                self._running.discard(name)

    def _block(self, block: int, changed: bool) -> Block:
        holders = tuple(self._replay.holders[block])
        if not holders:
            kept = self._replay.cached[block]
            return Block(block, (), self._size if kept else 0, self._cached_of[block] if kept else "", changed)
        # Shared blocks are full, so any holder tells how far a block is filled.
        first = self._replay.tables[holders[0]].index(block) * self._size
        filled = self._replay.computed.get(holders[0], 0) - first
        return Block(block, holders, max(0, min(self._size, filled)), "", changed)

    def _sequence(self, name: str) -> Sequence:
        prompt, table = self._prompts[name], tuple(self._replay.tables.get(name, ()))
        if name in self._done:
            return Sequence(name, "done", prompt, self._done[name], self._done[name] - 1, ())
        if name not in self._replay.known:
            return Sequence(name, "to come", prompt, 0, 0, ())
        status = "running" if name in self._running else "waiting"
        return Sequence(name, status, prompt, self._replay.known[name], self._replay.computed.get(name, 0), table)
