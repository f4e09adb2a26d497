"""Routing: never an unhealthy worker, a bounded load, equal choices; and real engines behind a router."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from random_choices import HypothesisDraw
from router_callers import RouterCallers, random_routing

from minillm.backends.hash_model import HashModel
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.kv.block_keys import BlockKeys, digest128
from minillm.core.kv.events import BlockStored, block_events
from minillm.core.sampling import SamplingParams
from minillm.router import (
    POLICIES,
    HeardPrefixes,
    Incoming,
    PolicyName,
    Prefixes,
    Router,
    RouterError,
    SentPrefixes,
    make_policy,
)
from minillm.router.policies import ConsistentHash, PrefixAware, RoutingPolicy, SessionAffinity

WORKERS = ["a", "b", "c", "d"]


class RouterMachine(RuleBasedStateMachine):
    @initialize(data=st.data(), name=st.sampled_from(POLICIES))
    def setup(self, data: st.DataObject, name: PolicyName) -> None:
        self.callers = RouterCallers(HypothesisDraw(data), name)

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.callers.act(HypothesisDraw(data))


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_all_policies_under_random_callers() -> None:
    random_routing(range(120))


def incoming(name: str, tokens: Sequence[int] = (1, 2, 3), max_tokens: int = 5, **fields: Any) -> Incoming:
    return Incoming(name, tokens, max_tokens, **fields)


def policy_of(name: PolicyName) -> Any:
    return make_policy(name, SentPrefixes(2, 100) if name == "prefix_aware" else None)


@pytest.mark.parametrize("name", POLICIES)
def test_i38_one_prompt_of_one_session_is_spread_over_all_workers(name: PolicyName) -> None:
    """The worst skew there is: without a bound, affinity would send all 400 to one worker."""
    router = Router(policy_of(name), ["a", "b", "c", "d"], slack=1.5)
    for i in range(400):
        router.route(incoming(f"q{i}", session="s"))
    loads = sorted(worker.load_tokens for worker in router.workers)
    assert loads[-1] <= 1.5 * sum(loads) / 4 + 8
    if name in ("round_robin", "least_loaded"):
        assert loads[0] == loads[-1]


def test_i39_choices_do_not_depend_on_the_process() -> None:
    """Python's own string hashes and the order of its sets differ from process to process."""
    program = """
from test_router import *
for name in POLICIES:
    router = Router(policy_of(name), ["a", "b", "c"])
    print([router.route(incoming(f"q{i}", [i % 7] * 4, session=f"s{i % 5}")) for i in range(40)])
"""
    paths = [os.getcwd(), "tests", "tests/core"]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_a_worker_that_comes_or_goes_moves_no_other_key_of_the_ring() -> None:
    def owners(workers: list[str]) -> dict[str, str]:
        router, found = Router(ConsistentHash(), workers, slack=1e9), {}
        for i in range(2000):
            found[f"s{i}"] = router.route(incoming(f"q{i}", session=f"s{i}"))
        return found

    five, four = owners(["a", "b", "c", "d", "e"]), owners(["a", "b", "c", "e"])
    assert {five[s] for s in five if five[s] != four[s]} == {"d"}
    shares = Counter(five.values())
    assert min(shares.values()) > 200, "each of five workers has a fair share of 2,000 keys"
    assert max(shares.values()) < 600


def test_sessions_that_were_quiet_longest_are_forgotten() -> None:
    router = Router(SessionAffinity(max_sessions=2), ["a", "b"], slack=9)
    first = {s: router.route(incoming(s, session=s)) for s in ("x", "y")}
    assert first == {"x": "a", "y": "b"}
    assert router.route(incoming("x2", session="x")) == "a"
    router.route(incoming("z", session="z", max_tokens=100))  # at "b", which has less; "y" is forgotten
    assert router.route(incoming("y2", session="y")) == "a"


def test_a_replica_with_a_gap_counts_for_nothing_until_its_snapshot_comes() -> None:
    heard = HeardPrefixes(2)
    one = BlockStored(1, digest_of([1, 2]), b"", (1, 2))
    heard.hear("a", one)
    assert heard.cached_tokens([1, 2, 3], (), ["a", "b"]) == [2, 0]
    heard.hear("a", one._replace(number=3))
    assert heard.behind == ["a"]
    assert heard.cached_tokens([1, 2, 3], (), ["a"]) == [0]
    heard.restart("a", [one], 3)
    assert heard.behind == []
    assert heard.cached_tokens([1, 2, 3], (), ["a"]) == [2]


def digest_of(tokens: list[int]) -> bytes:
    return BlockKeys(tokens, (), 2, digest128).digest(0)


def test_what_cannot_be_is_refused_with_a_way_out() -> None:
    router = Router(make_policy("least_loaded"), ["a"])
    with pytest.raises(RouterError, match="there already"):
        router.add_worker("a")
    with pytest.raises(RouterError, match="no worker 'b': choose from a"):
        router.set_health("b", False)
    with pytest.raises(ValueError, match=r"slack is 0\.5"):
        Router(make_policy("least_loaded"), slack=0.5)
    with pytest.raises(ValueError, match="prefix_aware needs them"):
        make_policy("prefix_aware")
    with pytest.raises(ValueError, match="'round_robin' with prefixes"):
        make_policy("round_robin", SentPrefixes(2, 9))
    with pytest.raises(ValueError, match="choose from round_robin"):
        make_policy("best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prefix_weight is -1"):
        PrefixAware(SentPrefixes(2, 9), -1)
    for weight in (math.inf, math.nan):
        with pytest.raises(ValueError, match="prefix_weight is"):
            PrefixAware(SentPrefixes(2, 9), weight)
    with pytest.raises(ValueError, match="max_blocks is 0"):
        SentPrefixes(2, 0)
    with pytest.raises(ValueError, match="block_size is 0"):
        SentPrefixes(0, 2)
    with pytest.raises(ValueError, match="block_size is 0"):
        HeardPrefixes(0)
    for sizes in ({"points": 0}, {"prompt_tokens": 0}):
        with pytest.raises(ValueError, match="take 1 or more of each"):
            ConsistentHash(**sizes)


@pytest.mark.parametrize("name", POLICIES)
def test_a_request_that_is_none_is_refused_and_the_oddest_that_is_one_is_routed(name: PolicyName) -> None:
    router = Router(make_policy(name, SentPrefixes(2, 9) if name == "prefix_aware" else None), "ab", slack=math.inf)
    with pytest.raises(RouterError, match="'x' has -9 max_tokens"):
        router.route(incoming("x", max_tokens=-9))
    for bad in (-1, 2**40):
        with pytest.raises(RouterError, match="'x' has token ids under 0 or above"):
            router.route(incoming("x", (1, bad)))
    assert router.route(incoming("nothing", (), max_tokens=0)) == router.worker_of("nothing")
    router.route(incoming("half a character", session="\ud800"))
    router.check()


def test_check_finds_damage() -> None:
    def router() -> Router:
        made = Router(make_policy("least_loaded"), ["a"])
        made.route(incoming("q"))
        made.check()
        return made

    lost, miscounted = router(), router()
    lost._places.clear()
    miscounted.workers[0].load_tokens += 1
    for broken in (lost, miscounted):
        with pytest.raises(RouterError, match=r"workers hold|has a load of 9 tokens"):
            broken.check()


# --- engines behind a router ------------------------------------------------------------------------------


class Fleet:
    """Three engines on the hash model behind one router; requests of a worker that fails are routed again."""

    def __init__(self, name: PolicyName, *, hears: bool = False, block_size: int = 4) -> None:
        self.config = EngineConfig(block_size=block_size, num_blocks=40, max_batch_tokens=16, max_running_requests=4)
        self.heard = HeardPrefixes(block_size)
        prefixes: Prefixes | None = self.heard if hears else SentPrefixes(block_size, 39)
        self.router = Router(make_policy(name, prefixes if name == "prefix_aware" else None))
        self.engines: dict[str, Engine] = {}
        self.work: dict[str, tuple[Incoming, SamplingParams]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.cached_tokens = 0
        for worker in ("a", "b", "c"):
            self.router.add_worker(worker)
            self.start(worker)

    def start(self, worker: str) -> None:
        engine = self.engines[worker] = Engine(HashModel(vocab_size=50), self.config)
        self.heard.follow(worker, block_events(engine.kv))

    def send(self, request: Incoming, params: SamplingParams) -> None:
        self.work[request.request_id] = (request, params)
        worker = self.router.route(request)
        self.engines[worker].add_request(request.token_ids, params, request_id=request.request_id)

    def step(self) -> None:
        for worker, engine in self.engines.items():
            for event in engine.step() if engine.has_work() else ():
                if event.kind != "token":
                    assert self.router.worker_of(event.request_id) == worker
                    self.router.finish(event.request_id)
                    request = engine.requests[event.request_id]
                    self.outputs[event.request_id] = request.output_ids
                    self.cached_tokens += request.num_cached

    def crash(self, worker: str) -> None:
        """Its engine is gone with all requests; the router sends them elsewhere, and it comes back empty."""
        for request_id in self.router.set_health(worker, False):
            self.send(*self.work[request_id])
        self.start(worker)

    def drain(self) -> None:
        while any(engine.has_work() for engine in self.engines.values()):
            self.step()


def conversations(rng: random.Random, turns: int = 4) -> list[list[tuple[Incoming, SamplingParams]]]:
    """Ten sessions of two tenants' long system prompts: each turn repeats all before it and adds some tokens."""
    systems = [[rng.randrange(50) for _ in range(24)] for _ in range(2)]
    rounds: list[list[tuple[Incoming, SamplingParams]]] = [[] for _ in range(turns)]
    for s in range(10):
        tokens = list(systems[s % 2])
        for turn in range(turns):
            tokens = tokens + [rng.randrange(50) for _ in range(6)]
            params = SamplingParams(temperature=0.0 if s % 3 else 1.0, max_tokens=5, seed=s)
            rounds[turn].append((Incoming(f"s{s}t{turn}", tokens, 5, f"s{s}"), params))
    for one in rounds:
        rng.shuffle(one)
    return rounds


def serve(name: PolicyName, *, crashes: bool = False, hears: bool = False) -> Fleet:
    rng, fleet = random.Random(5), Fleet(name, hears=hears)
    for number, requests in enumerate(conversations(rng)):
        for request, params in requests:
            fleet.send(request, params)
            fleet.step()
        if crashes and number:
            fleet.crash("abc"[number % 3])
        for _ in range(8):
            fleet.step()
        if number == 2:
            fleet.router.set_health("a", True)
            fleet.router.set_health("b", True)
    fleet.drain()
    return fleet


def alone() -> dict[str, list[int]]:
    """The same requests on one engine with room for all."""
    engine = Engine(HashModel(vocab_size=50), EngineConfig(block_size=16, num_blocks=400, prefix_caching=False))
    for requests in conversations(random.Random(5)):
        for request, params in requests:
            engine.add_request(request.token_ids, params, request_id=request.request_id)
    for _ in engine.run():
        pass
    return {request_id: request.output_ids for request_id, request in engine.requests.items()}


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_whoever_serves_it_and_however_often_it_starts_again_a_request_has_the_same_ids(
    name: PolicyName, crashes: bool
) -> None:
    fleet = serve(name, crashes=crashes)
    assert fleet.outputs == alone()
    assert all(not worker.requests for worker in fleet.router.workers)
    for engine in fleet.engines.values():
        engine.check()
        assert engine.kv.pool.num_used == 0


def test_a_router_that_knows_prefixes_finds_more_of_them() -> None:
    blind = {name: serve(name).cached_tokens for name in POLICIES if name != "prefix_aware"}
    exact, guessed = serve("prefix_aware", hears=True).cached_tokens, serve("prefix_aware").cached_tokens
    assert min(exact, guessed) > max(blind["round_robin"], blind["least_loaded"], blind["power_of_two"])
    assert blind["session_affinity"] > blind["round_robin"]


def test_what_is_heard_is_what_the_engines_hit() -> None:
    """Exact means: for an idle worker, the tokens that its next request finds in the cache."""
    fleet = serve("prefix_aware", hears=True, crashes=True)
    for requests in conversations(random.Random(5)):
        for request, _ in requests:
            for worker, engine in fleet.engines.items():
                [cached] = fleet.heard.cached_tokens(request.token_ids[:-1], (), [worker])
                probe = engine.add_request(request.token_ids, SamplingParams(max_tokens=1, temperature=0))
                assert engine.kv.lookup(probe).num_tokens == cached
                engine.abort(probe.request_id)
                engine.step()


# --- ties -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["round_robin", "least_loaded", "power_of_two", "session_affinity", "prefix_aware"])
def test_equals_share_the_work_and_a_seed_repeats_it(name: PolicyName) -> None:
    """One request at a time: no worker is ever busy, so every choice is among equals."""

    def places(seed: int) -> list[str]:
        prefixes = SentPrefixes(4, 1000) if name == "prefix_aware" else None
        router = Router(make_policy(name, prefixes, seed=seed), WORKERS)
        found = []
        for i in range(400):
            found.append(router.route(incoming(str(i), tokens=[i, *range(9)])))
            router.finish(str(i))
        return found

    shares = Counter(places(0))
    assert set(shares) == set(WORKERS)
    assert max(shares.values()) < 2 * min(shares.values())
    assert places(0) == places(0)
    assert places(0) != places(1)


def test_prefixes_that_come_one_at_a_time_are_spread_over_the_caches() -> None:
    """16 prefixes of 8 blocks, 4 workers that keep 48 blocks each: all fit, unless one worker gets them all."""

    def hit_rate(policy: RoutingPolicy) -> float:
        caches = {name: SentPrefixes(4, 60) for name in WORKERS}
        router = Router(policy, WORKERS)
        hits = 0
        for i in range(640):
            prompt = [(i * 7 + i // 16) % 16 * 100 + place for place in range(32)]
            name = router.route(incoming(str(i), tokens=prompt))
            hits += caches[name].cached_tokens(prompt, (), [name])[0]
            caches[name].on_sent(prompt, (), name)
            router.finish(str(i))
        return hits / (640 * 32)

    assert hit_rate(PrefixAware(SentPrefixes(4, 60))) > 0.9
    assert hit_rate(RoutingPolicy()) < 0.6
