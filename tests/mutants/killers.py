"""The checks that kill mutants: each takes the number of a case and raises if that shows a fault."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import output_cases
from adversaries import DRAFTERS
from ambiguous_grammars import check_ambiguous
from core_harness import drive, grouped_case, random_case, windowed_case
from enumeration import PARTS, VOCAB, check_certain, check_rule
from evictor_callers import random_evictions
from grammar_harness import audit, random_grammar
from index_callers import random_index_calls
from kv_callers import random_calls
from pool_callers import random_pool_calls
from router_callers import random_routing
from sampling_reference import random_samplings
from text_callers import random_texts
from tier_callers import random_tier_calls
from transfer_callers import hand_off, run_transfers

from mutants.registry import Killer
from mutants.suites import suite

DRAFT_MODELS = ("draft model", "near model", "draft tree", "near tree")


def workload(case: int) -> None:
    drive(random_case(random.Random(case)))


def drafted_workload(case: int, drafters: Sequence[str] = tuple(DRAFTERS)) -> None:
    rng = random.Random(case)
    drive(replace(random_case(rng), drafter=rng.choice(drafters)))


def windowed_workload(case: int) -> None:
    drive(windowed_case(random.Random(case)))


def grouped_workload(case: int) -> None:
    drive(grouped_case(random.Random(case)))


def windowed_calls(case: int) -> None:
    random_calls(range(case, case + 1), windows=(2, 3, 5))


def several_outputs(case: int) -> None:
    drive(output_cases.random_case(random.Random(case)))


def enumeration(case: int) -> None:
    rng = random.Random(case)

    def shares() -> list[int]:
        cuts = sorted(rng.randint(0, PARTS) for _ in range(VOCAB - 1))
        return [b - a for a, b in zip([0, *cuts], [*cuts, PARTS], strict=True)]

    check_rule(shares(), shares())
    check_certain(shares(), rng.randrange(VOCAB))


def small_grammar(case: int) -> None:
    audit(random_grammar(random.Random(case)))


def one_of(calls: Callable[[range], None]) -> Callable[[int], None]:
    return lambda case: calls(range(case, case + 1))


ENGINE = Killer("tests/core/test_engine_properties.py::test_every_invariant_at_every_step", workload, 2000)
DRAFTING = Killer(
    "tests/core/test_speculation.py::test_every_invariant_holds_under_the_rejection_rule", drafted_workload, 2000
)
DRAFT_MODEL = Killer(
    "tests/core/test_speculation.py::test_i27_ids_with_any_drafter_are_those_without",
    lambda case: drafted_workload(case, DRAFT_MODELS),
    3000,
)
HIDDEN = Killer(
    "tests/core/test_speculation.py::test_i27_ids_with_any_drafter_are_those_without",
    lambda case: drafted_workload(case, ("reads hidden",)),
    2000,
)
HEADS = Killer(
    "tests/core/test_speculation.py::test_heads_that_are_right_are_accepted_whole_in_contexts_longer_than_their_room",
    lambda case: drafted_workload(case, ("eagle", "mtp", "near eagle", "near mtp")),
    2000,
)
OUTPUTS = Killer(
    "tests/core/test_outputs.py::test_whatever_preempts_or_ends_them_the_outputs_are_those_of_the_oracle",
    several_outputs,
    2000,
)
WINDOW = Killer("tests/core/test_windows.py::test_every_invariant_at_every_step", windowed_workload, 1000)
GROUPS = Killer("tests/core/test_windows.py::test_every_invariant_with_cache_groups", grouped_workload, 2000)
WINDOW_CALLS = Killer("tests/core/test_windows.py::test_the_manager_under_random_callers", windowed_calls, 1000)
RULE = Killer(
    "tests/core/test_verification.py::test_the_rejection_rule_yields_the_target_distribution", enumeration, 100
)
POOL = Killer("tests/core/test_blocks.py::TestPool", one_of(random_pool_calls), 500)
MANAGER = Killer("tests/core/test_kv_manager.py::TestManager", one_of(random_calls), 2000)
INDEX = Killer("tests/core/test_index.py::TestIndex", one_of(random_index_calls), 500)
EVICTOR = Killer("tests/core/test_eviction.py::TestEvictor", one_of(random_evictions), 500)
SAMPLING = Killer(
    "tests/core/test_sampling.py::test_shaped_logits_and_cuts_equal_their_definitions", one_of(random_samplings), 2000
)
TEXT = Killer(
    "tests/core/test_text.py::test_whatever_comes_in_however_many_steps_ends_by_the_definition",
    one_of(random_texts),
    2000,
)
GRAMMAR = Killer("tests/core/test_grammar.py::test_any_small_grammar", small_grammar, 500)
AMBIGUITY = Killer("tests/core/test_grammar_ambiguity.py::test_any_ambiguous_grammar", check_ambiguous, 500)
ROUTER = Killer("tests/core/test_router.py::TestRouter", one_of(random_routing), 1000)
TRANSFER = Killer("tests/core/test_transfer.py::TestTransfers", run_transfers, 600)
HAND_OFF = Killer("tests/core/test_transfer.py::test_over_a_good_network_nothing_is_computed_twice", hand_off, 100)
TIER = Killer("tests/core/test_tiers.py::TestTier", one_of(random_tier_calls), 1000)
ORDERS = suite("tests/core/test_orders.py")
LOOP = suite("tests/core/test_engine.py")
FAULTS = suite("tests/core/test_faults.py")
TIES = suite("tests/core/test_router.py")
SOAK = suite("tests/core/test_soak.py")
LOAD = suite("tests/core/test_load.py")
DRAFTERS_ALONE = suite("tests/core/test_drafters.py")
TRACES = suite("tests/core/test_chrome_trace.py")
