"""Random callers of a router, against definitions that look at everything each time.

``RouterCallers`` lets workers come, go, fail and come back, and requests come and end; who comes is skewed on
purpose: one session or one prompt has most of the traffic. After each choice it checks I37, I38 and I39, and
that the choice is the one that the policy's definition makes.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence

import pytest
from random_choices import Draw, SeededDraw

from minillm.core.kv.block_keys import BlockKeys, ExtraKey, digest128
from minillm.core.kv.events import BlockEvent, BlockEvents
from minillm.router import (
    POLICIES,
    HeardPrefixes,
    Incoming,
    PolicyName,
    Router,
    RouterError,
    SentPrefixes,
    make_policy,
)
from minillm.router.policies import ConsistentHash

SIZE = 2  # tokens of a block
MAX_BLOCKS = 9  # that ``SentPrefixes`` remembers of a worker
Prefix = tuple[str, tuple[int, ...]]  # salt and tokens


class RouterCallers:
    """One router under one policy, and what a test knows of it without asking."""

    def __init__(self, draw: Draw, name: PolicyName) -> None:
        self.name = name
        self.hears = name == "prefix_aware" and draw.choice([True, False])  # exactly, or by what was sent
        self.heard, self.sent = HeardPrefixes(SIZE), SentPrefixes(SIZE, MAX_BLOCKS)
        prefixes = (self.heard if self.hears else self.sent) if name == "prefix_aware" else None
        self.slack = draw.choice([1.0, 1.25, 3.0])
        self.points = draw.choice([2, 5])  # few on the ring, so that its end is met
        is_ring = name == "consistent_hash"
        policy = ConsistentHash(points=self.points) if is_ring else make_policy(name, prefixes)
        self.router = Router(policy, slack=self.slack)
        self.healthy: dict[str, bool] = {}  # workers in the order in which they came
        self.there: dict[str, tuple[str, int]] = {}  # request -> worker, tokens
        self.last: dict[str, int] = {}  # worker -> number of the last request that went there
        self.sessions: dict[str, str] = {}  # session -> worker
        self.cached: dict[str, list[Prefix]] = {}  # worker -> whole-block prefixes, those used last behind
        self.indexes: dict[str, BlockEvents] = {}
        self.events: dict[str, list[BlockEvent]] = {}  # of the last change
        self.block_of: dict[tuple[str, Prefix], int] = {}
        self.told: dict[str, list[Prefix]] = {}  # ``cached`` as of the last event that came
        self.missed: set[str] = set()  # workers of whose events one was lost
        self.behind: set[str] = set()  # those of them of whom another came since
        self.count = self.num_workers = self.num_blocks = 0

    def act(self, draw: Draw) -> None:
        acts = [self.route] * 6
        if len(self.healthy) < 5:
            acts.append(self.add)
        if self.healthy:
            acts += [self.turn, self.remove]
        if self.there:
            acts += [self.finish] * 3
        if self.hears and self.healthy:
            acts += [self.store] * 3
        draw.choice(acts)(draw)
        self.router.check()
        assert {r: w for r, (w, _) in self.there.items()} == {r: self.router.worker_of(r) for r in self.there}
        assert [worker.load_tokens for worker in self.router.workers] == [self.load(name) for name in self.healthy]

    def load(self, name: str) -> int:
        return sum(tokens for worker, tokens in self.there.values() if worker == name)

    # --- workers ------------------------------------------------------------------------------------------

    def add(self, draw: Draw) -> None:
        self.num_workers += 1
        name = f"w{self.num_workers}"
        self.router.add_worker(name)
        self.start(name)

    def start(self, name: str) -> None:
        """A new or restarted engine: empty, and heard from its first event on."""
        self.healthy[name], self.cached[name] = True, []
        self.indexes[name], self.events[name] = BlockEvents(), []
        self.indexes[name].subscribe(self.events[name].append)
        self.listen(name)

    def listen(self, name: str) -> None:
        """A snapshot comes."""
        self.heard.restart(name, self.indexes[name].snapshot(), self.indexes[name].number)
        self.told[name] = list(self.cached[name])
        self.missed.discard(name)
        self.behind.discard(name)

    def turn(self, draw: Draw) -> None:
        """A worker fails or comes back; told twice, nothing more happens."""
        name = draw.choice(sorted(self.healthy))
        is_healthy = draw.choice([True, False])
        lost = self.router.set_health(name, is_healthy)
        assert lost == ([] if is_healthy else self.lose(name))
        if is_healthy and not self.healthy[name]:
            self.start(name)

    def remove(self, draw: Draw) -> None:
        if draw.integer(0, 2) == 0:
            name = draw.choice(sorted(self.healthy))
            assert self.router.remove_worker(name) == self.lose(name)
            del self.healthy[name]
            self.last.pop(name, None)

    def lose(self, name: str) -> list[str]:
        lost = [request for request, (worker, _) in self.there.items() if worker == name]
        for request in lost:
            del self.there[request]
        self.healthy[name] = False
        self.sessions = {session: worker for session, worker in self.sessions.items() if worker != name}
        self.cached[name] = self.told[name] = []
        self.missed.discard(name)
        self.behind.discard(name)
        return lost

    def store(self, draw: Draw) -> None:
        """A worker caches a prefix of its own accord, or evicts one from its end. Events are lost, or doubled."""
        name = draw.choice(sorted(self.healthy))
        if not self.healthy[name]:
            return
        if draw.integer(0, 5) == 0:
            self.listen(name)
            return
        before = self.indexes[name].number
        told = self.events[name]
        told.clear()
        self.change(name, draw)
        assert [event.number for event in told] == list(range(before + 1, self.indexes[name].number + 1))
        copies = draw.choice([0, 1, 1, 1, 1, 1, 2])
        for event in told * copies:
            self.heard.hear(name, event)
        if told and not copies:
            self.missed.add(name)
        elif told and name in self.missed:
            self.behind.add(name)
        elif told:
            self.told[name] = list(self.cached[name])
        assert set(self.heard.behind) == self.behind

    def change(self, name: str, draw: Draw) -> None:
        events, cached = self.indexes[name], self.cached[name]
        ends = [p for p in cached if not any(len(q[1]) > len(p[1]) and is_in(p, q) for q in cached)]
        if ends and draw.choice([True, False]):
            gone = draw.choice(sorted(ends))
            cached.remove(gone)
            events.on_remove(self.block_of[name, gone], 0)
            return
        request = self.incoming(draw)
        for prefix in prefixes_of(request):
            if prefix not in cached:
                cached.append(prefix)
                self.num_blocks += 1
                self.block_of[name, prefix] = self.num_blocks
                keys = BlockKeys(request.token_ids, request.extras, SIZE, digest128)
                events.on_index(self.num_blocks, len(prefix[1]) // SIZE - 1, keys)
                return

    # --- requests -----------------------------------------------------------------------------------------

    def incoming(self, draw: Draw) -> Incoming:
        is_popular = draw.integer(0, 2) > 0
        tokens = [0] * draw.integer(1, 12) if is_popular else [draw.integer(0, 1) for _ in range(draw.integer(1, 8))]
        session = "popular" if is_popular else draw.choice(["a", "b", "c", None])
        salt = draw.choice(["", "", "x"])
        extras = (ExtraKey("salt", salt),) if salt else ()
        self.count += 1
        return Incoming(f"q{self.count}", tokens, draw.choice([1, 2, 40]), session, extras)

    def route(self, draw: Draw) -> None:
        request = self.incoming(draw)
        up = [name for name, is_healthy in self.healthy.items() if is_healthy]
        twin = copy.deepcopy(self.router)
        if not up:
            with pytest.raises(RouterError, match=f"none of {len(self.healthy)} workers is healthy"):
                self.router.route(request)
            return
        loads = {name: self.load(name) for name in up}
        total = sum(loads.values()) + request.num_tokens
        within = [name for name in up if loads[name] <= self.slack * total / len(up) + 1e-9]
        expected = self.expected(request, within, loads)
        if self.name == "prefix_aware":
            known = self.heard if self.hears else self.sent
            hits = known.cached_tokens(request.token_ids, request.extras, up)
            assert hits == [self.hit(request, name) for name in up]
        name = self.router.route(request)
        assert self.healthy.get(name), f"I37: {name} is not healthy"
        bound = self.slack * total / len(up) + request.num_tokens
        assert loads[name] + request.num_tokens <= bound + 1e-9, f"I38: {name} gets more than the bound {bound}"
        assert twin.route(request) == name, "I39: a router of the same state chooses another worker"
        assert name in expected, f"{self.name} takes {name}, by definition {expected}"
        with pytest.raises(RouterError, match="finish it first"):
            self.router.route(request)
        self.there[request.request_id] = (name, request.num_tokens)
        self.last[name] = self.count
        if request.session is not None:
            self.sessions[request.session] = name
        if not self.hears:
            self.remember(request, name)

    def finish(self, draw: Draw) -> None:
        request_id = draw.choice([*sorted(self.there), "unknown"])
        assert self.router.finish(request_id) == (request_id in self.there)
        self.there.pop(request_id, None)

    def remember(self, request: Incoming, name: str) -> None:
        cached = self.cached[name]
        for prefix in reversed(prefixes_of(request)):
            if prefix in cached:
                cached.remove(prefix)
            cached.append(prefix)
        del cached[: max(0, len(cached) - MAX_BLOCKS)]

    # --- what each policy is by definition ----------------------------------------------------------------

    def expected(self, request: Incoming, within: Sequence[str], loads: dict[str, int]) -> list[str]:
        """The workers that may be chosen: of equals, any."""

        def least_of(value: Callable[[str], float]) -> list[str]:
            return [name for name in within if value(name) == min(map(value, within))]

        least = least_of(lambda name: loads[name])
        if self.name == "round_robin":
            return least_of(lambda name: self.last.get(name, 0))
        if self.name == "power_of_two":  # never the one that all others are below
            return [a for a in within if len(within) == 1 or any(loads[a] <= loads[b] for b in within if b != a)]
        if self.name == "session_affinity":
            name = self.sessions.get(request.session or "")
            return [name] if name in within else least
        if self.name == "consistent_hash":
            key = f"prompt {list(request.token_ids)}" if request.session is None else f"session {request.session}"
            ring = [(point(f"worker {i} {name}"), name) for name in within for i in range(self.points)]
            behind = [entry for entry in ring if entry[0] >= point(key)]
            return [min(behind or ring)[1]]
        if self.name == "prefix_aware":
            return least_of(lambda name: loads[name] - self.hit(request, name))
        return least

    def hit(self, request: Incoming, name: str) -> int:
        known = self.told[name] if self.hears else self.cached[name]
        if self.hears and name in self.behind:
            known = []
        tokens = 0
        for prefix in prefixes_of(request):
            if prefix not in known:
                break
            tokens += SIZE
        return tokens


def prefixes_of(request: Incoming) -> list[Prefix]:
    salt = request.extras[0].value if request.extras else ""
    return [(salt, tuple(request.token_ids[:end])) for end in range(SIZE, len(request.token_ids) + 1, SIZE)]


def is_in(prefix: Prefix, longer: Prefix) -> bool:
    return longer[0] == prefix[0] and longer[1][: len(prefix[1])] == prefix[1]


def point(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def random_routing(seeds: range, acts: int = 60) -> None:
    """All policies under random callers, fast and the same each time."""
    for seed in seeds:
        draw = SeededDraw(seed)
        callers = RouterCallers(draw, POLICIES[seed % len(POLICIES)])
        for _ in range(acts):
            callers.act(draw)
