"""Which cached block goes first: each order against a plain list, and what each is for, in the smallest case."""

from __future__ import annotations

import pytest
from evictor_callers import EvictorCallers, random_evictions
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from kv_callers import make_request
from random_choices import HypothesisDraw

from minillm.core.kv.eviction import PriorityEvictor, recompute_cost
from minillm.core.kv_manager import KVManager
from minillm.core.observe.integrity import check_kv


class EvictorMachine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def setup(self, data: st.DataObject) -> None:
        self.callers = EvictorCallers(HypothesisDraw(data))

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.callers.act(HypothesisDraw(data))


TestEvictor = EvictorMachine.TestCase
TestEvictor.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def test_the_evictor_under_random_callers() -> None:
    random_evictions(range(300))


def serve(kv: KVManager, name: str, tokens: list[int]) -> int:
    """One request from admission to its end; how many tokens it hit."""
    request = make_request(name, tokens)
    hit = kv.lookup(request)
    assert kv.admit(request, hit)
    assert kv.reserve(request, len(tokens))
    request.num_computed_tokens = len(tokens)
    kv.commit(request)
    kv.release(request)
    check_kv(kv)
    return hit.num_tokens


def manager(eviction: str, num_blocks: int, **options: object) -> KVManager:
    return KVManager(num_blocks, 2, eviction=eviction, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("eviction", "kept"), [("lru", 0), ("lfu", 2), ("cost", 2)])
def test_what_is_hit_often_outlives_what_was_used_last(eviction: str, kept: int) -> None:
    kv = manager(eviction, 6)
    for i in range(4):
        serve(kv, f"popular {i}", [1, 1, 5])
    for i in range(5):  # a scan over prompts that never come again
        serve(kv, f"scan {i}", [20 + i, 20 + i, 5])
    assert serve(kv, "popular", [1, 1, 5]) == kept


@pytest.mark.parametrize(("eviction", "kept"), [("lfu", 2), ("cost", 0)])
def test_what_was_popular_once_is_overtaken_by_cost_and_never_by_use_alone(eviction: str, kept: int) -> None:
    kv = manager(eviction, 4)
    for i in range(4):
        serve(kv, f"popular {i}", [1, 1, 5])
    for i in range(40):
        serve(kv, f"scan {i}", [20 + i, 20 + i, 5])
    assert serve(kv, "popular", [1, 1, 5]) == kept


def cached(kv: KVManager, tokens: list[int]) -> int:
    """How many of these tokens a longer prompt would hit now."""
    return kv.lookup(make_request("probe", [*tokens, 9])).num_tokens


@pytest.mark.parametrize(("eviction", "kept"), [("lru", 2), ("lfu", 2), ("cost", 6)])
def test_the_end_of_a_long_prefix_is_dearer_to_compute_again(eviction: str, kept: int) -> None:
    """A long prefix and three short ones, each used once: which two blocks go for a newcomer?"""
    kv = manager(eviction, 8, crossover_tokens=2.0)
    serve(kv, "long", [1, 1, 2, 2, 3, 3, 5])
    for i in range(3):
        serve(kv, f"short {i}", [20 + i, 20 + i, 5])
    serve(kv, "newcomer", [40, 40, 41, 41, 5])
    assert cached(kv, [1, 1, 2, 2, 3, 3]) == kept


def test_the_cost_of_a_block_is_its_matrices_and_its_attention() -> None:
    cost = recompute_cost(16, 4096.0)
    assert (cost(0), cost(256), cost(512)) == (1.0, 2.0, 3.0)  # 4,096 tokens before it: attention costs as much


@pytest.mark.parametrize("index", ["hash", "radix"])
@pytest.mark.parametrize("eviction", ["lru", "lfu", "cost"])
def test_the_end_of_a_chain_goes_before_its_beginning(eviction: str, index: str) -> None:
    for num_blocks, kept in [(2, 6), (3, 4), (4, 2), (5, 0)]:  # two of five blocks hold nothing
        kv = manager(eviction, 6, prefix_index=index, crossover_tokens=2.0)
        serve(kv, "chain", [1, 1, 2, 2, 3, 3])
        serve(kv, "newcomer", [50] * (2 * num_blocks))
        assert cached(kv, [1, 1, 2, 2, 3, 3]) == kept


def test_where_every_free_block_has_one_behind_it_the_first_that_became_free_goes() -> None:
    evictor = PriorityEvictor(5, None, lambda block: False)
    for block in (3, 1, 2):
        evictor.on_index(block, 0)
        evictor.add(block)
    assert [evictor.pop() for _ in range(3)] == [3, 1, 2]
    assert len(evictor) == 0
