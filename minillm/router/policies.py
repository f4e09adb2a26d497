"""Which of the workers that may take a request does: six policies behind one small interface.

Each gets the healthy workers within the router's bound, in the router's order, and never none. Ties are drawn by a
seed: were the first of equals taken, all that comes while nothing is busy would go to one worker, and only its
cache would be used. Where hashes are taken they are SHA-256, so that every process and every router agrees.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, get_args

from minillm.core.sampling import uniform
from minillm.router.prefixes import Prefixes
from minillm.router.worker import Incoming, Worker

PolicyName = Literal[
    "round_robin", "least_loaded", "power_of_two", "session_affinity", "consistent_hash", "prefix_aware"
]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


class RoutingPolicy:
    """The least loaded worker: what the other policies fall back on."""

    def __init__(self, seed: int = 0) -> None:
        """``seed`` of the draws: routers side by side take different ones, the same router repeats with the same."""
        self._seed = seed
        self._draws = 0

    def choose(self, request: Incoming, candidates: Sequence[Worker]) -> Worker:
        """One of ``candidates``. Changes nothing but the policy's own state."""
        return self.least(candidates, [worker.load_tokens for worker in candidates])

    def draw(self) -> float:
        """A number in [0, 1), another one each time."""
        self._draws += 1
        return uniform(self._seed, self._draws)

    def least(self, candidates: Sequence[Worker], values: Sequence[float]) -> Worker:
        """The candidate with the least of ``values``, drawn among equals."""
        lowest = min(values)
        equal = [worker for worker, value in zip(candidates, values, strict=True) if value == lowest]
        return equal[0] if len(equal) == 1 else equal[int(self.draw() * len(equal))]

    def on_add(self, name: str) -> None:
        """A worker came; it has nothing cached."""

    def on_remove(self, name: str) -> None:
        """A worker that failed before is forgotten."""

    def on_fail(self, name: str) -> None:
        """A worker failed: it has lost what it cached, and sessions have to go elsewhere."""

    def on_route(self, request: Incoming, name: str) -> None:
        """The request goes to this worker."""


class RoundRobin(RoutingPolicy):
    """One after the other: the candidate that was sent something longest ago. Blind to loads within the bound."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._count = 0
        self._last: dict[str, int] = {}  # worker -> when it was sent a request last

    def choose(self, request: Incoming, candidates: Sequence[Worker]) -> Worker:
        return self.least(candidates, [self._last.get(worker.name, 0) for worker in candidates])

    def on_route(self, request: Incoming, name: str) -> None:
        self._count += 1
        self._last[name] = self._count

    def on_remove(self, name: str) -> None:
        self._last.pop(name, None)


class PowerOfTwo(RoutingPolicy):
    """The less loaded of two candidates drawn at random: nearly as good as the least loaded of all, and it does not
    send every router's next request to one and the same worker (Mitzenmacher, https://doi.org/10.1109/71.963420).
    """

    def choose(self, request: Incoming, candidates: Sequence[Worker]) -> Worker:
        if len(candidates) == 1:
            return candidates[0]
        first = int(self.draw() * len(candidates))
        second = int(self.draw() * (len(candidates) - 1))  # of the others: never the same twice
        drawn = [candidates[first], candidates[second + (second >= first)]]
        return self.least(drawn, [worker.load_tokens for worker in drawn])


class SessionAffinity(RoutingPolicy):
    """Where the session's last request went, for that worker has its K/V; a new session goes to the least loaded.

    A session that was sent elsewhere, because its worker failed or was over the bound, stays there.
    """

    def __init__(self, max_sessions: int = 100_000, *, seed: int = 0) -> None:
        """Of more sessions those are forgotten that were quiet longest."""
        super().__init__(seed)
        self._max_sessions = max_sessions
        self._workers: OrderedDict[str, str] = OrderedDict()  # session -> worker, the quietest first

    def choose(self, request: Incoming, candidates: Sequence[Worker]) -> Worker:
        name = None if request.session is None else self._workers.get(request.session)
        return next((w for w in candidates if w.name == name), None) or super().choose(request, candidates)

    def on_route(self, request: Incoming, name: str) -> None:
        if request.session is not None:
            self._workers[request.session] = name
            self._workers.move_to_end(request.session)
            if len(self._workers) > self._max_sessions:
                self._workers.popitem(last=False)

    def on_fail(self, name: str) -> None:
        for session in [session for session, worker in self._workers.items() if worker == name]:
            del self._workers[session]


class ConsistentHash(RoutingPolicy):
    """The session's place on a ring, and from there the first candidate: routers agree without a word.

    Without a session, the first tokens of the prompt are hashed. Each worker has several points on the ring; one
    that comes or goes takes or leaves about its share of the keys and moves no other (Karger et al.,
    https://doi.org/10.1145/258533.258660).
    """

    def __init__(self, points: int = 64, prompt_tokens: int = 256) -> None:
        """``points`` of each worker on the ring; ``prompt_tokens`` are hashed of a prompt without a session."""
        super().__init__()
        if points < 1 or prompt_tokens < 1:
            raise ValueError(f"{points} points and {prompt_tokens} prompt_tokens: take 1 or more of each")
        self._points = points
        self._prompt_tokens = prompt_tokens
        self._ring: list[tuple[int, str]] = []

    def choose(self, request: Incoming, candidates: Sequence[Worker]) -> Worker:
        by_name = {worker.name: worker for worker in candidates}
        start = bisect_left(self._ring, (self.place(request), ""))
        names = (self._ring[(start + i) % len(self._ring)][1] for i in range(len(self._ring)))
        return next(by_name[name] for name in names if name in by_name)

    def place(self, request: Incoming) -> int:
        """Where on the ring the request belongs."""
        if request.session is not None:
            return _hash(f"session {request.session}")
        return _hash(f"prompt {list(request.token_ids[: self._prompt_tokens])}")

    def on_add(self, name: str) -> None:
        for i in range(self._points):
            insort(self._ring, (_hash(f"worker {i} {name}"), name))

    def on_remove(self, name: str) -> None:
        self._ring = [point for point in self._ring if point[1] != name]


class PrefixAware(RoutingPolicy):
    """Least work until the prompt is read: the load that is there, and the prompt's tokens that are not cached there.

    ``prefixes`` says what is cached: approximately, from what was sent where, or exactly, from the indexes' events.
    """

    def __init__(self, prefixes: Prefixes, prefix_weight: float = 1.0, *, seed: int = 0) -> None:
        """``prefix_weight``: how many tokens of load a cached prompt token outweighs; 0 is least loaded."""
        if not 0 <= prefix_weight < math.inf:
            raise ValueError(f"prefix_weight is {prefix_weight}: take 0 (caches do not count) or more, and finite")
        super().__init__(seed)
        self.prefixes = prefixes
        self._weight = prefix_weight

    def choose(self, request: Incoming, candidates: Sequence[Worker]) -> Worker:
        cached = self.prefixes.cached_tokens(request.token_ids, request.extras, [w.name for w in candidates])
        work = [w.load_tokens - self._weight * hit for w, hit in zip(candidates, cached, strict=True)]
        return self.least(candidates, work)

    def on_route(self, request: Incoming, name: str) -> None:
        self.prefixes.on_sent(request.token_ids, request.extras, name)

    def on_fail(self, name: str) -> None:
        self.prefixes.on_lost(name)


def make_policy(name: PolicyName, prefixes: Prefixes | None = None, *, seed: int = 0) -> RoutingPolicy:
    """A policy with its defaults, by name. ``ValueError`` for an unknown one, or for prefixes where none belong."""
    if (name == "prefix_aware") != (prefixes is not None):
        raise ValueError(f"policy {name!r} with prefixes {prefixes!r}: prefix_aware needs them, no other takes them")
    if prefixes is not None:
        return PrefixAware(prefixes, seed=seed)
    if name == "consistent_hash":
        return ConsistentHash()  # which draws nothing
    if name == "session_affinity":
        return SessionAffinity(seed=seed)
    kinds = {"round_robin": RoundRobin, "least_loaded": RoutingPolicy, "power_of_two": PowerOfTwo}
    if name not in kinds:
        raise ValueError(f"routing policy {name!r}: choose from {', '.join(POLICIES)}")
    return kinds[name](seed)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "big")
