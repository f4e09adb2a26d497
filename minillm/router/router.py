"""Sends each request to a healthy worker, and keeps the load of any one of them within a multiple of the mean.

A policy says which worker it would like; the router lets it choose only among healthy workers whose load is
within the bound, so that a popular session or prefix cannot pile up on one worker whatever the policy. That
is consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, https://arxiv.org/abs/1608.01350),
for loads of any size and for every policy. No clock and no random generator: equal calls, equal choices.
"""

from __future__ import annotations

from collections.abc import Sequence

from minillm.core.kv.block_keys import MAX_TOKEN_ID
from minillm.router.policies import RoutingPolicy
from minillm.router.worker import Incoming, Worker


class RouterError(RuntimeError):
    """No worker can take the request, or the router was told something that cannot be."""


class Router:
    """Workers in the order in which they were added. The policy draws among equals, by its seed."""

    def __init__(self, policy: RoutingPolicy, workers: Sequence[str] = (), *, slack: float = 1.25) -> None:
        """A worker is within the bound while its load is at most ``slack`` times the mean, the new request counted.

        ``ValueError`` for a slack under 1: the bound could then leave no worker.
        """
        if not slack >= 1:
            raise ValueError(f"slack is {slack}: take 1 (always a worker of at most mean load) or more")
        self.slack = slack
        self.policy = policy
        self._workers: dict[str, Worker] = {}
        self._places: dict[str, str] = {}  # request id -> worker
        for name in workers:
            self.add_worker(name)

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    def worker_of(self, request_id: str) -> str | None:
        """Where a request is; None if it has ended, was lost with its worker or never came."""
        return self._places.get(request_id)

    def add_worker(self, name: str) -> None:
        """A new worker, healthy and empty."""
        if name in self._workers:
            raise RouterError(f"worker {name!r} is there already: choose another name, or remove it first")
        self._workers[name] = Worker(name)
        self.policy.on_add(name)

    def remove_worker(self, name: str) -> list[str]:
        """Forget a worker. Returns the ids of the requests that were there, to be routed again."""
        lost = self.set_health(name, False)
        del self._workers[name]
        self.policy.on_remove(name)
        return lost

    def set_health(self, name: str, is_healthy: bool) -> list[str]:
        """A worker failed, or came back, empty. Returns the ids of the requests lost with it, to be routed again."""
        worker = self._worker(name)
        worker.is_healthy = is_healthy
        if is_healthy:
            return []
        lost = list(worker.requests)
        for request_id in lost:
            del self._places[request_id]
        worker.requests.clear()
        worker.load_tokens = 0
        self.policy.on_fail(name)
        return lost

    def route(self, request: Incoming) -> str:
        """Choose a worker, and count the request as there until ``finish``.

        ``RouterError`` if no worker is healthy, or for what is no request.
        """
        if request.request_id in self._places:
            raise RouterError(
                f"request {request.request_id!r} is at {self._places[request.request_id]!r} already: finish it first"
            )
        if request.max_tokens < 0:
            raise RouterError(f"request {request.request_id!r} has {request.max_tokens} max_tokens: give 0 or more")
        if request.token_ids and not 0 <= min(request.token_ids) <= max(request.token_ids) <= MAX_TOKEN_ID:
            raise RouterError(f"request {request.request_id!r} has token ids under 0 or above {MAX_TOKEN_ID:,}")
        candidates = self.candidates(request)
        if not candidates:
            raise RouterError(f"none of {len(self._workers)} workers is healthy: try again when one has come back")
        worker = self.policy.choose(request, candidates)
        worker.requests[request.request_id] = request.num_tokens
        worker.load_tokens += request.num_tokens
        self._places[request.request_id] = worker.name
        self.policy.on_route(request, worker.name)
        return worker.name

    def candidates(self, request: Incoming) -> list[Worker]:
        """The healthy workers within the bound: one or more while any is healthy, for the least is within the mean."""
        healthy = [worker for worker in self._workers.values() if worker.is_healthy]
        total = sum(worker.load_tokens for worker in healthy) + request.num_tokens
        bound = self.slack * total if total else 0  # an endless slack times nothing would be no number
        return [worker for worker in healthy if worker.load_tokens * len(healthy) <= bound]

    def finish(self, request_id: str) -> bool:
        """A request has ended; False, and nothing done, if it is nowhere: late news of a lost one is no error."""
        name = self._places.pop(request_id, None)
        if name is None:
            return False
        worker = self._workers[name]
        worker.load_tokens -= worker.requests.pop(request_id)
        return True

    def check(self) -> None:
        """Raise ``RouterError`` unless loads, requests and places agree."""
        places = {request_id: w.name for w in self._workers.values() for request_id in w.requests}
        if places != self._places:
            raise RouterError(f"workers hold {places}, the router remembers {self._places}")
        for worker in self._workers.values():
            if worker.load_tokens != sum(worker.requests.values()) or (worker.requests and not worker.is_healthy):
                raise RouterError(
                    f"{worker.name} has a load of {worker.load_tokens:,} tokens, its {len(worker.requests)} requests "
                    f"have {sum(worker.requests.values()):,}, healthy: {worker.is_healthy}"
                )

    def _worker(self, name: str) -> Worker:
        if name not in self._workers:
            raise RouterError(f"there is no worker {name!r}: choose from {', '.join(self._workers) or 'none'}")
        return self._workers[name]
