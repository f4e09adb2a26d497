"""Faults in the router, its policies and what it knows of prefixes: random callers kill them."""

from __future__ import annotations

from mutation import Edit

from minillm.router import Router
from minillm.router import prefixes as prefixes_module
from minillm.router.policies import (
    ConsistentHash,
    PowerOfTwo,
    PrefixAware,
    RoundRobin,
    RoutingPolicy,
    SessionAffinity,
)
from minillm.router.prefixes import HeardPrefixes, SentPrefixes

ROUTER_MUTANTS: dict[str, list[Edit]] = {
    "sent to a worker that has failed": [Edit(Router, "candidates", "if worker.is_healthy", "if True")],
    "failed workers count in the mean": [Edit(Router, "candidates", "* len(healthy)", "* len(self._workers)")],
    "a worker over the bound is taken": [
        Edit(Router, "candidates", "if worker.load_tokens * len(healthy) <=", "if 0 <=")
    ],
    "the bound without the new request": [Edit(Router, "candidates", " + request.num_tokens", "")],
    "load counted as requests": [
        Edit(Router, "route", "worker.load_tokens += request.num_tokens", "worker.load_tokens += 1")
    ],
    "load kept when a request ends": [Edit(Router, "finish", "worker.load_tokens -= worker", "worker")],
    "load kept when a worker fails": [Edit(Router, "set_health", "worker.load_tokens = 0", "pass")],
    "requests of a failed worker stay there": [Edit(Router, "set_health", "del self._places[request_id]", "pass")],
    "nobody hears which requests were lost": [Edit(Router, "set_health", "return lost", "return []")],
    "a policy is not told of a failure": [Edit(Router, "set_health", "self.policy.on_fail(name)", "pass")],
    "a request may be at two workers": [Edit(Router, "route", "if request.request_id in self._places", "if False")],
    "the turn is that of the name": [Edit(RoundRobin, "choose", "self._last.get(worker.name, 0)", "worker.name")],
    "every turn the first": [Edit(RoundRobin, "on_route", "self._last[name] = self._count", "pass")],
    "two choices, the worse": [Edit(PowerOfTwo, "choose", "[worker.load_tokens for", "[-worker.load_tokens for")],
    "two choices, one worker": [Edit(PowerOfTwo, "choose", "second + (second >= first)", "first")],
    "numbers from a generator that all share": [
        Edit(RoutingPolicy, "draw", "uniform(self._seed, self._draws)", "__import__('random').random()")
    ],
    "a session forgotten at once": [
        Edit(
            SessionAffinity, "on_route", "self._workers[request.session] = name", "self._workers[request.session] = ''"
        )
    ],
    "a session goes back where it was first": [
        Edit(
            SessionAffinity,
            "on_route",
            "self._workers[request.session] = name",
            "self._workers.setdefault(request.session, name)",
        )
    ],
    "the ring of a worker with one point": [Edit(ConsistentHash, "on_add", "range(self._points)", "range(1)")],
    "the next point of the ring is passed over": [Edit(ConsistentHash, "choose", "(start + i)", "(start + i + 1)")],
    "the ring read backwards": [Edit(ConsistentHash, "choose", "(start + i)", "(start - i)")],
    "sessions hashed by their prompts": [Edit(ConsistentHash, "place", "if request.session is not None", "if False")],
    "a cached token is worth nothing": [Edit(PrefixAware, "choose", "self._weight * hit", "0 * hit")],
    "a cached token costs": [Edit(PrefixAware, "choose", "w.load_tokens - self", "w.load_tokens + self")],
    "what was sent is not remembered": [
        Edit(PrefixAware, "on_route", "self.prefixes.on_sent(request.token_ids, request.extras, name)", "pass")
    ],
    "a failed worker's cache is remembered": [Edit(PrefixAware, "on_fail", "self.prefixes.on_lost(name)", "pass")],
    "salts are not told apart": [
        Edit(SentPrefixes, "on_sent", "BlockKeys(token_ids, extras", "BlockKeys(token_ids, ()")
    ],
    "the beginning of a prefix forgotten first": [
        Edit(
            SentPrefixes,
            "on_sent",
            "reversed(range(len(token_ids) // self._size))",
            "range(len(token_ids) // self._size)",
        )
    ],
    "prefixes used again grow old": [Edit(SentPrefixes, "on_sent", "sent.move_to_end(keys.digest(block))", "pass")],
    "more remembered than a worker holds": [
        Edit(SentPrefixes, "on_sent", "len(sent) > self._max_blocks", "len(sent) > 2 * self._max_blocks")
    ],
    "hits behind a gap": [Edit(prefixes_module, "_known_blocks", "and keys.digest(count) in known", "and known")],
    "a gap in the events is overlooked": [
        Edit(HeardPrefixes, "hear", "if not replica.apply(event)", "if replica is None")
    ],
    "behind for ever": [Edit(HeardPrefixes, "restart", "self._behind.pop(worker, None)", "pass")],
    "what was heard before a gap is believed": [
        Edit(HeardPrefixes, "cached_tokens", "if worker in self._behind or", "if")
    ],
    "snapshot left out": [
        Edit(HeardPrefixes, "restart", "replica.restart(stored, number)", "replica.restart((), number)")
    ],
}

TIE_MUTANTS: dict[str, list[Edit]] = {
    "the first of equals": [Edit(RoutingPolicy, "least", "equal[int(self.draw() * len(equal))]", "equal[0]")],
    "the same draw for all ties": [Edit(RoutingPolicy, "draw", "self._draws += 1", "pass")],
}
