"""Faults planted in ``minillm.core``, each with the check that must find it: checks that find nothing prove nothing.

``python -m mutants`` plants and kills them all; ``tests/core/test_mutants.py`` does the same one by one.
"""

from __future__ import annotations

from mutants import killers
from mutants.blocks import EVICTION_MUTANTS, INDEX_MUTANTS, MANAGER_MUTANTS, POOL_MUTANTS
from mutants.faults import COUNT_MUTANTS, FAULT_MUTANTS, LEAK_MUTANTS
from mutants.grammar import AMBIGUITY_MUTANTS, GRAMMAR_MUTANTS
from mutants.records import LOOP_MUTANTS, REPLAY_MUTANTS, TRACE_MUTANTS, TREE_MUTANTS
from mutants.registry import Mutant
from mutants.routing import ROUTER_MUTANTS, TIE_MUTANTS
from mutants.sampling import DRAW_MUTANTS, OUTPUT_MUTANTS, SAMPLING_MUTANTS
from mutants.scheduling import ENGINE_MUTANTS
from mutants.services import DRAFTER_MUTANTS, LOAD_MUTANTS, METRICS_MUTANTS, ORDER_MUTANTS, POLICY_MUTANTS
from mutants.speculation import DRAFT_MODEL_MUTANTS, HEAD_MUTANTS, HIDDEN_MUTANTS, RULE_MUTANTS, SPECULATION_MUTANTS
from mutants.text import TEXT_MUTANTS
from mutants.transfer import HAND_OFF_MUTANTS, TIER_MUTANTS, TRANSFER_MUTANTS
from mutants.windows import GROUP_MUTANTS, REACH_MUTANTS, WINDOW_CALL_MUTANTS, WINDOW_MUTANTS

MUTANTS: list[Mutant] = [
    Mutant(fault, edits, killer)
    for killer, table in [
        (killers.POOL, POOL_MUTANTS),
        (killers.INDEX, INDEX_MUTANTS),
        (killers.EVICTOR, EVICTION_MUTANTS),
        (killers.MANAGER, MANAGER_MUTANTS),
        (killers.ENGINE, ENGINE_MUTANTS),
        (killers.ENGINE, DRAW_MUTANTS),
        (killers.OUTPUTS, OUTPUT_MUTANTS),
        (killers.SAMPLING, SAMPLING_MUTANTS),
        (killers.DRAFTING, SPECULATION_MUTANTS),
        (killers.DRAFT_MODEL, DRAFT_MODEL_MUTANTS),
        (killers.HIDDEN, HIDDEN_MUTANTS),
        (killers.HEADS, HEAD_MUTANTS),
        (killers.RULE, RULE_MUTANTS),
        (killers.TEXT, TEXT_MUTANTS),
        (killers.GRAMMAR, GRAMMAR_MUTANTS),
        (killers.AMBIGUITY, AMBIGUITY_MUTANTS),
        (killers.ROUTER, ROUTER_MUTANTS),
        (killers.TIES, TIE_MUTANTS),
        (killers.ORDERS, ORDER_MUTANTS),
        (killers.LOOP, POLICY_MUTANTS),
        (killers.LOOP, LOOP_MUTANTS),
        (killers.ENGINE, REPLAY_MUTANTS),
        (killers.TRACES, TRACE_MUTANTS),
        (killers.DRAFTERS_ALONE, TREE_MUTANTS),
        (killers.FAULTS, FAULT_MUTANTS),
        (killers.SOAK, LEAK_MUTANTS),
        (killers.LOOP, COUNT_MUTANTS),
        (killers.LOAD, LOAD_MUTANTS),
        (killers.ORDERS, METRICS_MUTANTS),
        (killers.DRAFTERS_ALONE, DRAFTER_MUTANTS),
        (killers.TIER, TIER_MUTANTS),
        (killers.HAND_OFF, HAND_OFF_MUTANTS),
        (killers.TRANSFER, TRANSFER_MUTANTS),
        (killers.INDEX, REACH_MUTANTS),
        (killers.WINDOW, WINDOW_MUTANTS),
        (killers.GROUPS, GROUP_MUTANTS),
        (killers.WINDOW_CALLS, WINDOW_CALL_MUTANTS),
    ]
    for fault, edits in table.items()
]
