"""What must hold of the core at all times: each claim with its property tests and with faults that break it."""

from __future__ import annotations

from typing import NamedTuple


class Invariant(NamedTuple):
    """A claim, the tests that check it on cases made at random, and mutants for which it fails."""

    claim: str
    tests: tuple[str, ...]
    faults: tuple[str, ...]


_WORKLOADS = "tests/core/test_engine_properties.py::test_every_invariant_at_every_step"
_LIVE = "tests/core/test_engine_machine.py::TestEngine"
_POOL = "tests/core/test_blocks.py::TestPool"
_INDEX = "tests/core/test_index.py::TestIndex"
_MANAGER = "tests/core/test_kv_manager.py::TestManager"
_TEXT = "tests/core/test_text.py::test_whatever_comes_in_however_many_steps_ends_by_the_definition"
_RULE = "tests/core/test_verification.py::test_the_rejection_rule_yields_the_target_distribution"

INVARIANTS: dict[str, Invariant] = {
    # The pool
    "I1": Invariant(
        "a block is in exactly one of null, free, used",
        (_POOL, _WORKLOADS),
        ("a block used again stays on the free list", "the null block may be held"),
    ),
    "I2": Invariant(
        "its count is the number of tables that hold it",
        (_POOL, _MANAGER),
        ("one holder more is not counted", "released more often than held", "fork not counted"),
    ),
    "I3": Invariant(
        "the free list has no block twice", (_POOL,), ("freed while another table holds it", "linked one way")
    ),
    "I4": Invariant(
        "free, used and null blocks add up to the pool",
        (_POOL, _MANAGER),
        ("blocks handed out count as free", "freed blocks are not counted"),
    ),
    "I5": Invariant("idle means that no block is used", (_WORKLOADS, _LIVE), ("ended and its blocks kept",)),
    # The prefix index
    "I6": Invariant("only full, computed blocks are indexed", (_WORKLOADS,), ("part of a block indexed",)),
    "I7": Invariant(
        "key and block agree both ways",
        (_INDEX, _MANAGER),
        ("old key kept on reuse", "twin indexed over the first", "split leaves blocks behind"),
    ),
    "I8": Invariant(
        "the tokens of a hit are the request's prefix",
        (_MANAGER, _INDEX),
        ("tokens not compared", "short hash without verification", "run not compared"),
    ),
    "I9": Invariant(
        "a hit leaves a token to compute, and is whole blocks", (_WORKLOADS, _MANAGER), ("full-prompt hit",)
    ),
    "I10": Invariant(
        "behind an evicted block nothing is found",
        (
            _INDEX,
            "tests/core/test_index.py::test_i10_behind_an_evicted_block_nothing_is_found_until_it_is_computed_again",
        ),
        ("hit on a place without a block", "run goes on behind a lost block", "lost chain taken for whole"),
    ),
    "I11": Invariant(
        "another salt, adapter or image shares no block",
        (_MANAGER, "tests/core/test_index.py::test_i11_other_extra_keys_share_no_block"),
        ("extra keys left out", "image left out", "kinds of keys untagged"),
    ),
    "I12": Invariant("drafts that are not verified are never indexed", (_WORKLOADS,), ("drafts indexed",)),
    # The tables
    "I13": Invariant(
        "a table is as long as its tokens need, to the block",
        (_WORKLOADS, _MANAGER),
        ("one block too few", "one block too many", "slots kept that no draft took"),
    ),
    "I14": Invariant(
        "a table grows at its end, and shrinks by rewind alone",
        (_MANAGER,),
        ("plans in flight see the table shrink", "rewound one too far"),
    ),
    "I15": Invariant(
        "no two tokens of a step have one slot", (_WORKLOADS,), ("a block handed out twice", "victim keeps its row")
    ),
    "I16": Invariant(
        "a shared block is never written", (_MANAGER, _WORKLOADS), ("shared block written", "hit not held")
    ),
    # The scheduler
    "I17": Invariant(
        "a step keeps within its budget, and within the limit of requests",
        (_WORKLOADS,),
        ("decodes cost no budget", "drafts over the budget", "one request more than may run"),
    ),
    "I18": Invariant("whoever is scheduled has a token or more", (_WORKLOADS,), ("scheduled with no token",)),
    "I19": Invariant(
        "computed tokens are known ones, and only commit and preemption change them",
        (_WORKLOADS,),
        ("a token computed once and counted twice", "newest token taken for computed"),
    ),
    "I20": Invariant(
        "what is admissible ends in a bounded number of steps", (_WORKLOADS, _LIVE), ("preempted and not queued again",)
    ),
    "I21": Invariant(
        "what is not admissible ends with an error that names the numbers",
        (_WORKLOADS, "tests/core/test_load.py::test_the_bounds_hold_after_every_planning"),
        ("taken though it can never fit",),
    ),
    "I22": Invariant(
        "a running request has its next token in the next step", (_WORKLOADS,), ("prompts before decodes",)
    ),
    "I23": Invariant(
        "preemption changes no output",
        (_WORKLOADS, "tests/core/test_engine_properties.py::test_i23_preemption_changes_no_output"),
        ("progress kept when preempted", "swapped blocks not copied"),
    ),
    "I24": Invariant(
        "the order of arrival holds unless the order says otherwise", (_WORKLOADS,), ("queue ignores order",)
    ),
    # What is read
    "I25": Invariant(
        "each read finds the K/V of the prefix that it needs",
        (_WORKLOADS, _MANAGER),
        ("reads past the chunk", "reads short of the decode", "unchained hash"),
    ),
    "I26": Invariant(
        "ids depend on no setting: chunks, blocks, batch, cache, preemption, overlap",
        (_WORKLOADS, "tests/core/test_engine_properties.py::test_i26_ids_depend_on_no_setting"),
        ("another row's draw", "a draw of the output before", "the last token fed twice"),
    ),
    # Speculation
    "I27": Invariant(
        "ids with any drafter are those without",
        ("tests/core/test_speculation.py::test_i27_ids_with_any_drafter_are_those_without", _WORKLOADS),
        ("accepted unseen", "tree walked as a chain"),
    ),
    "I28": Invariant(
        "the distribution of what comes out is the target's",
        (_RULE, "tests/core/test_speculation.py::test_i28_the_engine_yields_the_target_distribution_exactly"),
        ("residual not scaled", "always kept", "kept whatever the proposal"),
    ),
    "I29": Invariant(
        "after a round all caches agree on the length",
        ("tests/core/test_speculation.py::test_every_invariant_holds_under_the_rejection_rule", _WORKLOADS),
        (
            *("draft cache not rewound", "rewound one too little", "draft cache trusted after preemption"),
            "hidden states of what was rejected",
        ),
    ),
    "I30": Invariant(
        "never more than max_tokens, and nothing after the end",
        (_TEXT, _WORKLOADS),
        ("tokens after the end", "committed past the stop", "one token more than max_tokens"),
    ),
    # Text
    "I31": Invariant(
        "the chunks joined are the text, cut at the stop",
        (_TEXT, "tests/core/test_text.py::test_i31_chunks_joined_are_the_one_shot_decode_cut_at_the_stop"),
        ("half a stop comes out", "the stop is in the text", "what was held back is lost"),
    ),
    "I32": Invariant("no chunk has half a character", (_TEXT,), ("half a character comes out",)),
    "I33": Invariant(
        "exactly one terminal event, the last",
        (_WORKLOADS, _LIVE),
        ("ended once for each step in flight", "an abort that nobody is told of"),
    ),
    # Tiers and hand-off
    "I34": Invariant(
        "nothing is read under an epoch that has passed",
        ("tests/core/test_transfer.py::TestTransfers", "tests/core/test_tiers.py::TestTier"),
        ("a lease that holds nothing, read unchecked", "a held slot given away", "epoch of a slot kept"),
    ),
    "I35": Invariant(
        "a lease ends by acknowledgement or by its time",
        ("tests/core/test_transfer.py::TestTransfers",),
        ("a lease without end", "held without end", "an acknowledgement that is not heard"),
    ),
    "I36": Invariant(
        "messages lost, doubled, late or out of order cost a recompute, never a wrong token",
        (
            "tests/core/test_transfer.py::TestTransfers",
            "tests/core/test_transfer.py::test_i36_a_bad_network_costs_recomputes_and_no_wrong_token",
        ),
        ("another place is read", "written while earlier steps run", "taken over before all has come"),
    ),
    # The router
    "I37": Invariant(
        "never a worker that is not healthy",
        ("tests/core/test_router.py::TestRouter",),
        ("sent to a worker that has failed",),
    ),
    "I38": Invariant(
        "the load of one worker is bounded by the mean, whatever the skew",
        (
            "tests/core/test_router.py::TestRouter",
            "tests/core/test_router.py::test_i38_one_prompt_of_one_session_is_spread_over_all_workers",
        ),
        ("a worker over the bound is taken", "failed workers count in the mean", "load counted as requests"),
    ),
    "I39": Invariant(
        "equal states choose equally",
        (
            "tests/core/test_router.py::TestRouter",
            "tests/core/test_router.py::test_i39_choices_do_not_depend_on_the_process",
        ),
        ("numbers from a generator that all share",),
    ),
    # Grammars
    "I40": Invariant(
        "every prefix can be completed, and the end comes in accepting states alone",
        (
            "tests/core/test_grammar.py::test_any_small_grammar",
            "tests/core/test_grammar_machine.py::TestGrammar",
            "tests/core/test_grammar_engine.py::test_any_workload",
        ),
        ("the end allowed anywhere", "the budget spent before the end", "whole though a rule is open"),
    ),
}
