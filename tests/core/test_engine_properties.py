"""Whatever the workload and the configuration: every invariant holds at every step, and the ids are right.

``drive`` audits I1-I9, I13, I15-I22, I24-I26, I30 and I33 (see ``core_harness``).
"""

import random
from dataclasses import replace
from typing import Any

import pytest
from adversaries import DRAFTERS
from core_harness import AsyncModel, Case, Job, drive, random_case, six_bits, without
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.core.config import EngineConfig
from minillm.core.kv.block_keys import digest128
from minillm.core.sampling import SamplingParams


def shaping() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.just(4.0),
            "presence_penalty": st.just(2.0),
            "frequency_penalty": st.sampled_from([2.0, -1.0]),
            "logit_bias": st.just({0: 7.0}),
            "bad_words": st.sampled_from([((0, 0),), ((1,), (0, 1, 0))]),
            "logprobs": st.integers(0, 2),
            "prompt_logprobs": st.integers(0, 1),
        },
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    max_tokens = draw(st.integers(1, 7))
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1.0, 9.0])),
        max_tokens=max_tokens,
        min_tokens=draw(st.sampled_from([0, max_tokens])),
        ignore_eos=draw(st.booleans()),
        seed=draw(st.sampled_from([None, 7])),
        **draw(shaping() | st.just({})),
    )
    return Job(
        prompt=tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=7))),
        params=params,
        arrival_s=float(draw(st.integers(0, 6))),
        salt=draw(st.sampled_from([None, "a"])),
        priority=draw(st.integers(-1, 1)),
        tenant=draw(st.sampled_from(["", "a"])),
        ttft_slo_s=draw(st.sampled_from([None, 1.0, 9.0])),
        tpot_slo_s=draw(st.sampled_from([None, 0.5, 3.0])),
        abort_after=draw(st.none() | st.integers(0, 8)),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    block_size = draw(st.integers(1, 3))
    chunked = draw(st.booleans())
    num_host_blocks = draw(st.sampled_from([0, 3, 20]))
    config = EngineConfig(
        block_size=block_size,
        num_host_blocks=num_host_blocks,
        preemption="swap" if num_host_blocks else "recompute",
        num_blocks=draw(st.integers(11 // block_size + 1, 11 // block_size + 8)),
        max_batch_tokens=draw(st.integers(1, 8)) if chunked else draw(st.integers(12, 16)),
        max_running_requests=draw(st.integers(1, 4)),
        max_model_len=12,
        policy=draw(st.sampled_from(["continuous", "static", "dynamic"])),
        max_wait_s=draw(st.sampled_from([0.0, 1.5])),
        order=draw(st.sampled_from(["fcfs", "priority", "shortest", "fair", "deadline"])),
        ageing_tokens_per_s=draw(st.sampled_from([0.5, 4.0])),
        ttft_slo_s=draw(st.sampled_from([2.0, 20.0])),
        tpot_slo_s=draw(st.sampled_from([0.5, 2.0])),
        chunked_prefill=chunked,
        chunk_size=draw(st.none() | st.integers(1, 3)) if chunked else None,
        overlap=draw(st.integers(0, 2)),
        prefix_caching=draw(st.booleans()),
    )
    return Case(
        config,
        tuple(draw(st.lists(jobs(), min_size=1, max_size=6))),
        eos_ids=draw(st.sampled_from([frozenset(), frozenset({1})])),
        hash_function=draw(st.sampled_from([digest128, six_bits])),
        abort_in_flight=draw(st.booleans()),
        drafter=draw(st.none() | st.sampled_from(list(DRAFTERS))),
        draft_tokens=draw(st.integers(1, 5)),
        adaptive=draw(st.booleans()),
        is_async=draw(st.booleans()),
    )


@given(cases())
@settings(max_examples=300, deadline=None)
def test_every_invariant_at_every_step(case: Case) -> None:
    drive(case)


def test_the_random_workloads_reach_what_they_are_for() -> None:
    """A generator that never preempts or hits would pass everything."""
    outcomes = [drive(random_case(random.Random(seed))) for seed in range(500)]
    assert sum(o.engine.scheduler.num_preemptions for o in outcomes) > 20
    assert sum(r.num_cached for o in outcomes for r in o.engine.requests.values()) > 150
    assert sum(len(o.refused) for o in outcomes) > 50
    ahead = [o for o in outcomes if o.engine.config.overlap and isinstance(o.model, AsyncModel)]
    assert sum(len(plan.drawn) for o in ahead for plan in o.model.plans) > 50
    assert sum(o.engine.scheduler.num_preemptions for o in ahead) > 10
    assert sum(r.finish_reason == "abort" for o in ahead for r in o.engine.requests.values()) > 10
    kinds = {e.kind for o in outcomes for e in o.engine.trace.events}
    assert kinds == {
        *("arrive", "hit", "admit", "evict", "allocate", "schedule", "draft", "verify", "index", "token"),
        *("preempt", "free", "finish", "error", "fork", "copy", "retire", "swap_out", "swap_in", "host_free"),
        *("land", "drop", "abort"),
    }
    assert sum(len(o.model.moved) for o in outcomes) > 5, "no accepted path of a tree had to be brought together"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_long_fuzz(block: int) -> None:
    for seed in range(1000 + block * 5000, 1000 + (block + 1) * 5000):
        drive(random_case(random.Random(seed)))


@given(st.lists(jobs().map(lambda j: Job(j.prompt, j.params, salt=j.salt)), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_i26_ids_depend_on_no_setting(work: list[Job]) -> None:
    roomy = EngineConfig(block_size=16, num_blocks=64, max_model_len=14, prefix_caching=False)
    case = Case(roomy, tuple(work))
    expected = drive(case).ids()
    variants = [
        {"block_size": 1},
        {"block_size": 2, "prefix_caching": True},
        {"block_size": 3, "prefix_caching": True, "max_batch_tokens": 3},
        {"block_size": 1, "num_blocks": 14, "prefix_caching": True},
        {"block_size": 2, "num_blocks": 8},
        {"max_batch_tokens": 1},
        {"max_batch_tokens": 16, "chunked_prefill": False},
        {"max_running_requests": 1},
        {"chunk_size": 2},
        {"overlap": 1},
        {"block_size": 1, "num_blocks": 14, "preemption": "swap", "num_host_blocks": 9},
        {"block_size": 2, "num_blocks": 8, "preemption": "swap", "num_host_blocks": 9, "overlap": 1},
        {"overlap": 2, "block_size": 1, "num_blocks": 14, "prefix_caching": True},
        {"order": "priority", "block_size": 1, "num_blocks": 14},
        {"order": "shortest", "max_running_requests": 1},
        {"order": "fair", "max_running_requests": 2},
        {"order": "deadline", "ttft_slo_s": 1.0, "tpot_slo_s": 1.0},
        {"policy": "static", "max_running_requests": 2},
        {"policy": "dynamic", "max_running_requests": 2, "max_wait_s": 3.0},
    ]
    for fields in variants:
        for is_async in {False, bool(fields.get("overlap"))}:
            assert drive(replace(without(case, **fields), is_async=is_async)).ids() == expected, fields


def test_i23_preemption_changes_no_output() -> None:
    work = tuple(Job((i % 2, 0, 1), SamplingParams(temperature=t, max_tokens=9)) for i, t in enumerate([0.0, 1.0, 0.0]))
    roomy = Case(EngineConfig(block_size=2, num_blocks=64), work)
    tight = without(roomy, num_blocks=8)
    assert drive(roomy).engine.scheduler.num_preemptions == 0
    outcome = drive(tight)
    assert outcome.engine.scheduler.num_preemptions > 0
    assert outcome.ids() == drive(roomy).ids()
