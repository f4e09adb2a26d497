"""The trace of conversations: what could be found at all, that both indexes find it, and what each policy is for."""

from __future__ import annotations

import math

import pytest

from minillm import catalog
from visualizers.figures import prefix_eviction
from visualizers.figures.prefix_eviction import VISUALIZER
from visualizers.runs import eviction_moments, prefix_trace
from visualizers.runs.eviction_moments import CELLS, EMPTY, HELD, MOMENTS, SYSTEM, TALK, UNWANTED, moments
from visualizers.runs.prefix_trace import ANSWER_TOKENS, POLICIES, POOLS, Traffic, serve, workload

TRAFFICS: tuple[Traffic, ...] = ("conversations", "documents", "new-prompts", "salts")
BLOCK = 16


@pytest.mark.parametrize("traffic", TRAFFICS)
def test_with_room_for_everything_all_is_found_that_was_said_before(traffic: Traffic) -> None:
    """Counted from the texts: a first turn finds its system prompt if it was used before, a later one its history."""
    seen: set[object] = set()
    prompt_tokens = found = 0
    for talk in sorted(workload(traffic).conversations, key=lambda c: c.start_s):
        who = (talk.tenant if traffic == "salts" else "", talk.system)
        history, shared = len(talk.system), len(talk.system) if who in seen else 0
        seen.add(who)
        for message in talk.messages:
            length = history + len(message)
            prompt_tokens += length
            found += min(shared, length - 1) // BLOCK * BLOCK
            history, shared = length + ANSWER_TOKENS, length + ANSWER_TOKENS - 1  # the last token was never computed
    outcome = serve(traffic, None)
    assert (outcome.prompt_tokens, outcome.found_tokens) == (prompt_tokens, found)


@pytest.mark.parametrize("traffic", TRAFFICS)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_tree_finds_what_the_digests_find(traffic: Traffic, policy: str) -> None:
    pool = POOLS[0]
    assert serve(traffic, pool, policy, "radix") == serve(traffic, pool, policy, "hash")  # type: ignore[arg-type]


def test_the_conversations_are_the_same_in_every_traffic() -> None:
    plain = workload("conversations").conversations
    assert workload("documents").conversations == workload("salts").conversations == plain
    assert not workload("conversations").documents
    for old, new in zip(plain, workload("new-prompts").conversations, strict=True):
        assert (old.start_s, old.messages, old.thinks_s) == (new.start_s, new.messages, new.thinks_s)
        assert len(old.system) == len(new.system)
    half = prefix_trace.NUM_CONVERSATIONS // 2
    systems = [c.system for c in workload("new-prompts").conversations]
    assert not set(systems[:half]) & set(systems[half:])
    assert {c.system for c in plain} >= set(systems[:half])
    documents = workload("documents").documents
    requests = sum(len(c.messages) for c in plain)
    assert len(documents) / (len(documents) + requests) == pytest.approx(0.3, abs=0.01)
    assert len({text for _, text in documents}) == len(documents)


def test_each_policy_has_a_traffic_that_it_is_for() -> None:
    """What the chapter says of the three orders, in tokens that were found."""
    found = {(t, p): serve(t, 8192, p).found_tokens for t in TRAFFICS for p in POLICIES}
    assert found["conversations", "lru"] > found["conversations", "lfu"]
    assert found["documents", "lfu"] > found["documents", "lru"]
    assert found["new-prompts", "lfu"] < found["new-prompts", "cost"]
    assert all(serve("salts", pool).found_tokens <= serve("conversations", pool).found_tokens for pool in POOLS)


def test_no_pool_finds_more_than_one_with_room_for_everything() -> None:
    for traffic in TRAFFICS:
        most = serve(traffic, None).found_tokens
        assert all(serve(traffic, pool, policy).found_tokens <= most for pool in POOLS for policy in POLICIES)
        assert serve(traffic, POOLS[0]).found_tokens < most
        assert serve(traffic, None, None).found_tokens == 0
        assert serve(traffic, None, None).ttft_s > serve(traffic, None).ttft_s


def test_no_first_token_comes_before_the_weights_are_read() -> None:
    model = catalog.model(prefix_trace.MODEL)
    machine = catalog.accelerator(prefix_trace.ACCELERATOR)
    assert serve("conversations", None).ttft_s > model.read_bytes() / machine.memory_bandwidth
    # The context at which a token's attention costs what its matrices do, from the geometry of the paper.
    matrices = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert prefix_trace._crossover_tokens(model) == pytest.approx(2 * matrices / (32 * 4 * 4096))
    assert math.isclose(prefix_trace._crossover_tokens(model), 26_624)


def test_the_points_are_the_outcomes() -> None:
    data = prefix_eviction.compute({"traffic": "documents", "pool": 4096, "moment": 12})
    assert len(data.rows["points"]) == len(POOLS) * len(POLICIES)
    for policy in POLICIES:
        outcome = serve("documents", 4096, policy)
        assert data.values[f"hit_rate_{policy}"] == pytest.approx(outcome.found_tokens / outcome.prompt_tokens)
        (point,) = (
            p for p in data.rows["points"] if p["pool"] == 4096 and p["policy"] == prefix_eviction.TITLES[policy]
        )
        assert point["rate"] == data.values[f"hit_rate_{policy}"]
        assert point["ms"] == pytest.approx(1e3 * data.values[f"ttft_{policy}"], abs=1e-3)
    assert data.values["pool_bytes"] == 4096 * 131_072
    assert "counted, not modelled" in VISUALIZER.provenance()


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_seen_of_the_pool_changes_nothing_and_begins_and_ends_as_it_must(policy: str) -> None:
    for traffic in TRAFFICS:
        seen = moments(traffic, 8192, policy)  # type: ignore[arg-type]
        assert len(seen) == MOMENTS + 1
        assert all(len(m.cells) == CELLS for m in seen)
        assert set(seen[0].cells) <= {EMPTY, HELD}
        assert not {SYSTEM, TALK, HELD} & set(seen[-1].cells)  # all have ended: nobody asks again
        dead = [sum(m.dead.values()) for m in seen]
        assert dead == sorted(dead)
        assert all(tokens % BLOCK == 0 for m in seen for tokens in m.dead.values())
        _, run = prefix_trace.prepared(traffic, 8192, policy, record_trace=True)  # type: ignore[arg-type]
        assert run(lambda: None) == serve(traffic, 8192, policy)  # type: ignore[arg-type]


def test_what_dies_too_early_is_what_is_not_found() -> None:
    """Of the tokens that a pool with room for everything finds, those are missed that were evicted before."""
    for traffic in TRAFFICS:
        for policy in POLICIES:
            end = moments(traffic, 8192, policy)[-1]
            missed = serve(traffic, None).found_tokens - serve(traffic, 8192, policy).found_tokens
            early = end.dead[SYSTEM] + end.dead[TALK]
            # A content that is asked for again is missed once, unless it is evicted or computed twice in between.
            assert bool(missed) == bool(early)
            assert missed == pytest.approx(early, rel=0.35, abs=600), (traffic, policy)


def test_documents_are_evicted_and_nobody_misses_them() -> None:
    plain, flooded = (moments(traffic, 8192, "lru")[-1] for traffic in ("conversations", "documents"))
    assert flooded.dead[UNWANTED] > 10 * plain.dead[UNWANTED]


def test_the_bars_are_counted_from_the_moment() -> None:
    for moment in (0, 9, MOMENTS):
        data = prefix_eviction.compute({**VISUALIZER.defaults(), "moment": moment})
        for policy in POLICIES:
            seen = eviction_moments.moments("conversations", 8192, policy)[moment]
            bars = [row for row in data.rows["early"] if row["policy"] == prefix_eviction.TITLES[policy]]
            assert bars[-1]["to"] == data.values[f"early_{policy}"] == seen.dead[SYSTEM] + seen.dead[TALK]
