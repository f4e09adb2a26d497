"""Speculation in the engine: whatever a drafter says, what comes out is what the target says (I12, I26-I30)."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from adversaries import DRAFTERS, TREES, AlwaysRight, Base, Ends, FromQ, Knowing, Near, ReadsHidden, RightAtFirst
from core_harness import AuditedModel, Case, Job, drive, make_engine, random_case, without
from hash_heads import contexts_are_free
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.backends.hash_model import HashModel
from minillm.core.clock import VirtualClock
from minillm.core.config import EngineConfig
from minillm.core.engine import Engine, EngineError
from minillm.core.plan import StepPlan, StepResult
from minillm.core.sampling import SamplingParams, distribution
from minillm.speculate.draft import Ask, Draft, DraftError
from minillm.speculate.draft_model import DraftModel
from minillm.speculate.draft_tree import DraftTree
from minillm.speculate.rejection import draft_seed
from minillm.speculate.speculator import Speculation

ROOMY = EngineConfig(block_size=2, num_blocks=64)


def params(max_tokens: int = 9, temperature: float = 0.0, **fields: object) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


def work(temperature: float = 0.0) -> tuple[Job, ...]:
    return tuple(Job((i % 2, 0, 1, 1), params(11, temperature, seed=i)) for i in range(3))


def run(
    drafter: Base, jobs: Sequence[Job], config: EngineConfig = ROOMY, **fields: object
) -> tuple[Engine, AuditedModel]:
    speculation = Speculation(drafter, **{"draft_tokens": 3, **fields})  # type: ignore[arg-type]
    engine, model = make_engine(config, speculation=speculation)
    for i, job in enumerate(jobs):
        engine.add_request(job.prompt, job.params, request_id=f"j{i}")
    list(engine.run())
    return engine, model


# --- hidden states, for drafters that read them -----------------------------------------------------------


def test_a_drafter_that_is_always_asked_gets_the_hidden_state_of_every_token() -> None:
    """From the last one of the prompt on. What they are, the drafter checks itself, here and in all that follows."""
    drafter = ReadsHidden()
    run(drafter, work())
    assert drafter.num_asks == drafter.num_read > 3


@pytest.mark.parametrize("fields", [{}, {"preemption": "swap", "num_host_blocks": 30}], ids=["recompute", "swap"])
def test_a_preemption_loses_no_hidden_state(fields: dict[str, object]) -> None:
    drafter = ReadsHidden()
    engine, _ = run(drafter, work(), EngineConfig(block_size=1, num_blocks=23, **fields))  # type: ignore[arg-type]
    assert engine.scheduler.num_preemptions > 0
    assert drafter.num_asks == drafter.num_read > 0


def test_of_several_outputs_all_but_the_first_miss_one_hidden_state() -> None:
    drafter = ReadsHidden()
    run(drafter, [Job((0, 1, 1, 0), params(8, 1.0, n=3))])
    assert drafter.num_asks - drafter.num_read == 2


@pytest.mark.parametrize("name", ["eagle", "mtp"])
def test_heads_that_are_right_are_accepted_whole_in_contexts_longer_than_their_room(name: str) -> None:
    """More requests than there are rooms at first, and outputs for which the oldest K/V is dropped."""
    drafter = DRAFTERS[name]()
    jobs = [Job((i % 2, i // 2 % 2, i // 4), params(150, seed=i)) for i in range(6)]
    engine, _ = run(drafter, jobs, EngineConfig(block_size=16, num_blocks=80, record_trace=False))  # type: ignore[arg-type]
    assert engine.metrics().acceptance_rate == 1
    assert engine.metrics().tokens_per_step > 3.8
    assert contexts_are_free(drafter)  # type: ignore[arg-type]


def test_plans_ask_for_hidden_states_only_for_a_drafter_that_reads_them() -> None:
    _, model = run(RightAtFirst(), work())
    assert not any(plan.wants_hidden for plan in model.plans)


# --- lossless, whatever is drafted -------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_i27_ids_with_any_drafter_are_those_without(drafter: str, temperature: float) -> None:
    plain = Case(ROOMY, work(temperature))
    expected = drive(plain).ids()
    case = replace(plain, drafter=drafter, draft_tokens=4)
    variants = [
        {},
        {"block_size": 1},
        {"block_size": 3, "max_batch_tokens": 3},
        {"num_blocks": 9},
        {"num_blocks": 11, "max_running_requests": 2},
        {"prefix_caching": False},
        {"policy": "static"},
        {"max_batch_tokens": 16, "chunked_prefill": False, "max_model_len": 16},
    ]
    for fields in variants:
        assert drive(without(case, **fields)).ids() == expected, fields
    assert drive(replace(case, adaptive=True)).ids() == expected


@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if name not in TREES])
def test_by_rejection_greedy_ids_are_those_without(drafter: str) -> None:
    plain = Case(ROOMY, work())
    case = replace(plain, drafter=drafter, draft_tokens=4, verification="rejection")
    assert drive(case).ids() == drive(plain).ids()


@given(st.integers(0, 10**6), st.sampled_from([name for name in DRAFTERS if name not in TREES]))
@settings(max_examples=150, deadline=None)
def test_every_invariant_holds_under_the_rejection_rule(seed: int, drafter: str) -> None:
    drive(replace(random_case(random.Random(seed)), drafter=drafter, verification="rejection"))


def test_preemption_while_drafts_run_changes_nothing() -> None:
    case = Case(EngineConfig(block_size=1, num_blocks=26), work(), drafter="right at first", draft_tokens=4)
    outcome = drive(case)
    assert outcome.engine.scheduler.num_preemptions > 0
    assert (outcome.engine.metrics().acceptance_rate or 0) > 0
    assert outcome.ids() == drive(Case(ROOMY, work())).ids()


# --- what a step yields ------------------------------------------------------------------------------------


def test_a_drafter_that_is_always_right_yields_a_draft_and_one_more_in_each_step() -> None:
    engine, model = run(AlwaysRight(), [Job((0, 1), params(9))])
    assert [p.query_start_loc[-1] for p in model.plans] == [2, 4, 4]  # the prompt, then the last token and 3 drafted
    request = engine.requests["j0"]
    assert request.chunk_sizes == [1, 4, 4]
    metrics = engine.metrics()
    assert (metrics.acceptance_rate, metrics.acceptance_at, metrics.tokens_per_step) == (1.0, (1.0, 1.0, 1.0), 3.0)
    assert (metrics.requests[0].drafted_tokens, metrics.requests[0].accepted_tokens) == (6, 6)
    assert metrics.requests[0].itl_s == (1.0, 1.0)
    assert metrics.requests[0].tpot_s == 2 / 8


def test_without_speculation_a_step_yields_one_token() -> None:
    engine, _ = make_engine(ROOMY)
    assert engine.metrics().tokens_per_step == 0.0
    engine.add_request((0, 1), params(5))
    list(engine.run())
    metrics = engine.metrics()
    assert (metrics.tokens_per_step, metrics.acceptance_rate, metrics.acceptance_at) == (1.0, None, ())


def test_acceptance_by_depth_counts_drafts_that_were_so_deep() -> None:
    class Depths(Knowing):
        """Drafts of 3 and of 1 in turn, of which only the first token is right."""

        def one(self, ask: Ask) -> Draft:
            tokens = [self.right(ask, [])]
            if ask.request.num_output % 4 == 1:
                tokens.append(1 - self.right(ask, tokens))
                tokens.append(0)
            return Draft(tokens)

    drafter = Depths()
    speculation = Speculation(drafter, 3)
    engine, _ = make_engine(ROOMY, speculation=speculation)
    request = engine.add_request((0, 1), params(9))
    list(engine.run())
    counts = request.draft_counts
    assert counts is not None
    assert (counts.drafts_at, counts.accepted_at) == ([4, 2, 2], [4, 0, 0])
    assert (counts.num_drafted, counts.num_accepted) == (8, 4)
    assert engine.metrics().acceptance_at == (1.0, 0.0, 0.0)


def test_nothing_is_drafted_beyond_what_can_be_output() -> None:
    engine, model = run(AlwaysRight(), [Job((0, 1), params(3))])
    # One token comes with the prompt; of the two left, one may be drafted, for the draw after it is the other.
    assert [p.query_start_loc[-1] for p in model.plans] == [2, 2]
    assert engine.requests["j0"].chunk_sizes == [1, 2]
    _, model = run(AlwaysRight(), [Job((0, 1), params(2))])
    assert [p.query_start_loc[-1] for p in model.plans] == [2, 1]


def test_an_end_token_of_the_draft_alone_ends_nothing() -> None:
    """Row 73. A run in which the target never draws the end token, and the draft always does."""
    seeds = [s for s in range(200) if 1 not in plain_ids(s)]
    assert seeds
    for seed in seeds[:5]:
        speculation = Speculation(Ends(), 3)
        engine, _ = make_engine(ROOMY, eos_ids=frozenset({1}), speculation=speculation, vocab_size=16)
        request = engine.add_request((0, 1), params(4, 1.0, seed=seed))
        list(engine.run())
        assert request.output_ids == plain_ids(seed)
        assert request.finish_reason == "length"


def plain_ids(seed: int) -> list[int]:
    engine, _ = make_engine(ROOMY, eos_ids=frozenset({1}), vocab_size=16)
    request = engine.add_request((0, 1), params(4, 1.0, seed=seed))
    list(engine.run())
    return request.output_ids


class Letters:
    """Token i is the i-th letter."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"ab"[token_id : token_id + 1]


def test_nothing_comes_after_a_stop_in_the_middle_of_an_accepted_draft() -> None:
    reference, _ = make_engine(ROOMY, tokenizer=Letters())
    whole = reference.add_request((0, 1, 0), params(12))
    list(reference.run())
    stop = whole.text[4:6]
    cut = whole.text.index(stop)
    for more in ({"stop": (stop,)}, {"stop_token_ids": (1,)}, {"stop": ("zz",)}):
        results = []
        for drafter in (None, AlwaysRight()):
            speculation = None if drafter is None else Speculation(drafter, 5)
            engine, _ = make_engine(ROOMY, tokenizer=Letters(), speculation=speculation)
            request = engine.add_request((0, 1, 0), params(12, **more))
            events = list(engine.run())
            assert "".join(e.text for e in events) == request.text
            results.append((request.output_ids, request.text, request.finish_reason))
        assert results[0] == results[1]
        if more == {"stop": (stop,)}:
            assert results[1][1] == whole.text[:cut]


def test_a_prefix_that_was_drafted_and_accepted_is_a_hit() -> None:
    drafter = AlwaysRight()
    engine, _ = make_engine(ROOMY, speculation=Speculation(drafter, 4))
    first = engine.add_request((0, 1, 1), params(8))
    list(engine.run())
    again = engine.add_request(first.token_ids, params(1))
    list(engine.run())
    assert again.num_cached == 10  # of 11 tokens the last is never computed, and blocks hold 2


# --- drafts take what is left over -------------------------------------------------------------------------


def test_a_full_step_has_no_drafts_and_a_prompt_goes_first() -> None:
    drafter = AlwaysRight()
    config = EngineConfig(block_size=2, num_blocks=64, max_batch_tokens=5)
    engine, model = make_engine(config, speculation=Speculation(drafter, 4))
    engine.add_request((0, 1), params(12))
    engine.step()
    engine.add_request((1,) * 11, params(1))
    while engine.has_work():
        engine.step()
    tokens = [[b - a for a, b in zip(p.query_start_loc, p.query_start_loc[1:], strict=False)] for p in model.plans]
    # 11 prompt tokens by 4 in a step, beside a decode; the third chunk leaves one token, which is drafted.
    assert tokens[:4] == [[2], [1, 4], [1, 4], [2, 3]]
    assert max(map(sum, tokens)) <= 5


def test_the_budget_is_shared_between_those_who_draft() -> None:
    _, model = run(
        AlwaysRight(), work()[:3], EngineConfig(block_size=2, num_blocks=64, max_batch_tokens=8), draft_tokens=4
    )
    sizes = [[b - a for a, b in zip(p.query_start_loc, p.query_start_loc[1:], strict=False)] for p in model.plans]
    assert [2, 3, 3] in sizes  # 5 tokens are left over beside three decodes


def test_drafts_take_free_blocks_and_preempt_nobody() -> None:
    config = EngineConfig(block_size=1, num_blocks=13)
    jobs = [Job((0, 1), params(5)), Job((1, 1), params(5))]
    engine, model = run(AlwaysRight(), jobs, config, draft_tokens=5)
    assert engine.scheduler.num_preemptions == 0
    drafted = [p.query_start_loc[-1] - len(p.request_ids) for p in model.plans]
    assert max(drafted) > 2
    # 12 blocks for 2 times 6 tokens: not a block to spare.
    engine, _ = run(AlwaysRight(), jobs, replace(config, num_blocks=12), draft_tokens=5)
    assert engine.scheduler.num_preemptions == 0


# --- a broken drafter --------------------------------------------------------------------------------------


class Says(Base):
    """Whatever it is told to."""

    def __init__(self, *drafts: Draft) -> None:
        self.drafts = list(drafts)

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        return self.drafts


class Raises(Base):
    def one(self, ask: Ask) -> Draft:
        raise KeyError("weights")


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (Says(Draft([0, 7])), "token 7 is outside the target's vocabulary of 2 ids"),
        (Says(Draft([0, -1])), "token -1 is outside"),
        (Says(Draft([0] * 9)), "9 tokens, it was asked for 3"),
        (Says(Draft([0, 0], [0, -1])), "token 0 has parent 0"),
        (Says(), "proposed 0 drafts, it was asked for 1"),
        (Raises(), "Raises failed: KeyError: 'weights'"),
    ],
)
def test_a_broken_drafter_is_an_error_that_names_it_and_leaves_the_engine_whole(drafter: Base, message: str) -> None:
    engine, _ = make_engine(ROOMY, speculation=Speculation(drafter, 3))
    request = engine.add_request((0, 1, 1), params(5))
    engine.step()
    late = engine.add_request((1, 0), params(1))
    with pytest.raises(EngineError, match=message):
        engine.step()
    engine.check()
    assert request.finish_reason == late.finish_reason == "error"
    assert message in request.error
    assert [e.kind for e in engine.step()] == ["error", "error"]
    assert not engine.has_work()
    assert engine.kv.pool.num_used == 0


def test_a_tree_is_refused_under_the_rejection_rule_unless_greedy() -> None:
    for temperature in (0.0, 1.0):
        drafter = DRAFTERS["random tree"]()
        engine, _ = make_engine(ROOMY, speculation=Speculation(drafter, 4, verification="rejection"))
        engine.add_request((0, 1), params(9, temperature))
        if temperature:
            with pytest.raises(EngineError, match="no one distribution to reject against"):
                list(engine.run())
        else:
            list(engine.run())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"draft_tokens": 0}, "draft_tokens is 0"),
        ({"draft_tokens": True}, "draft_tokens is True"),
        ({"verification": "hope"}, "verification is 'hope': choose from draw, rejection"),
        ({"verify_cost": -1.0}, "verify_cost is -1.0"),
        ({"verify_cost": float("nan")}, "verify_cost is nan"),
    ],
)
def test_options_that_cannot_work_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Speculation(Base(), **fields)  # type: ignore[arg-type]


def test_adaptive_drafting_ceases_when_nothing_is_accepted() -> None:
    drafted = []
    for adaptive in (False, True):
        drafter = DRAFTERS["always wrong"]()
        engine, _ = make_engine(
            EngineConfig(block_size=2, num_blocks=64),
            speculation=Speculation(drafter, 4, adaptive=adaptive, verify_cost=0.3),
        )
        engine.add_request((0, 1), params(60))
        list(engine.run())
        drafted.append(engine.metrics().requests[0].drafted_tokens)
    assert drafted[1] < drafted[0] / 3


# --- the distribution, end to end --------------------------------------------------------------------------


class FiveTokens(HashModel):
    """The next token depends on the last one alone: ``chances[last][next]``."""

    def __init__(self, chances: Sequence[Sequence[Fraction]]) -> None:
        super().__init__(vocab_size=5, max_model_len=16)
        self.chances = chances
        self.last: dict[int, int] = {}

    def _intern(self, parent: int, token_id: int) -> int:
        node = super()._intern(parent, token_id)
        self.last[self._prefixes[node].digest] = token_id
        return node

    def _logits(self, digest: int) -> list[float]:
        return [math.log(p) if p else -math.inf for p in self.chances[self.last[digest]]]


class Scripted(Base):
    """Draws from one distribution by the numbers of a script."""

    def __init__(self, row: Sequence[Fraction], numbers: Sequence[float]) -> None:
        self.row, self.numbers = row, numbers

    def one(self, ask: Ask) -> Draft:
        indices = [ask.request.num_output + i for i in range(min(ask.max_tokens, ask.max_depth))]
        tokens = [next(t for t in range(5) if self.numbers[i] < sum(self.row[: t + 1])) for i in indices]
        return Draft(tokens, None, [[float(p) for p in self.row]] * len(tokens))


def parts(total: int, *rows: Sequence[int]) -> list[list[Fraction]]:
    return [[Fraction(n, total) for n in row] for row in rows]


@pytest.mark.parametrize(
    ("chances", "row", "draft_tokens", "cells"),
    [
        # Halves: thresholds of coins and draws are halves, so two numbers for each stand for all.
        (
            parts(2, (1, 1, 0, 0, 0), (0, 0, 1, 1, 0), (0, 1, 0, 0, 1), (2, 0, 0, 0, 0), (1, 0, 0, 1, 0)),
            parts(2, (0, 1, 0, 1, 0))[0],
            2,
            {"draft": 2, "coin": 2, "draw": 2, "last": 2},
        ),
        # Quarters, and a proposal that is more often right: chances to be kept are thirds and halves as well.
        (
            parts(4, (2, 1, 1, 0, 0), (0, 0, 3, 1, 0), (1, 1, 0, 1, 1), (0, 4, 0, 0, 0), (0, 0, 0, 2, 2)),
            parts(4, (1, 0, 3, 0, 0))[0],
            1,
            {"draft": 4, "coin": 12, "draw": 12, "last": 4},
        ),
    ],
)
def test_i28_the_engine_yields_the_target_distribution_exactly(
    chances: Sequence[Sequence[Fraction]],
    row: Sequence[Fraction],
    draft_tokens: int,
    cells: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every combination of the random numbers of a run, each as often as any other: shares are probabilities."""
    numbers: dict[str, Sequence[float]] = {}
    for name in ("builder.uniform_of", "sampling.draws.uniform"):
        monkeypatch.setattr(f"minillm.core.{name}", lambda seed, index: numbers["draw"][index])
    monkeypatch.setattr("minillm.speculate.speculator.coin", lambda seed, index: numbers["coin"][index])
    first, num_new = 0.01, draft_tokens + 1  # output 0 comes with the prompt, from a number that is always the same
    grids = {kind: [(i + 0.5) / n for i in range(n)] for kind, n in cells.items()}
    found: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    columns = ["draft"] * draft_tokens + ["coin"] * draft_tokens + ["draw"] * draft_tokens + ["last"]
    total = 0
    for script in product(*(grids[kind] for kind in columns)):
        drafts, coins = script[:draft_tokens], script[draft_tokens : 2 * draft_tokens]
        draws = script[2 * draft_tokens :]
        numbers.update(draw=(first, *draws), coin=(first, *coins))
        speculation = Speculation(Scripted(row, (first, *drafts)), draft_tokens, verification="rejection")
        engine = Engine(FiveTokens(chances), ROOMY, clock=VirtualClock(), speculation=speculation)
        request = engine.add_request([3], params(1 + num_new, 1.0))
        list(engine.run())
        found[tuple(request.output_ids)] += 1
        total += 1
        assert request.draft_counts is not None
        accepted += request.draft_counts.num_accepted
    start = found.most_common(1)[0][0][0]
    expected = {}
    for ids in product(range(5), repeat=num_new):
        chance = Fraction(1)
        for last, token in zip((start, *ids), ids, strict=False):
            chance *= chances[last][token]
        if chance:
            expected[start, *ids] = chance
    assert {ids: Fraction(n, total) for ids, n in found.items()} == expected
    assert accepted > 0


def test_the_drafters_numbers_are_the_targets_own_or_independent_of_them() -> None:
    """By draw, a drafter that draws with the same number is more often right; by rejection that would be a bias."""
    seeds: dict[str, set[int]] = {"draw": set(), "rejection": set()}
    for verification, seen in seeds.items():

        class Records(FromQ):
            def one(self, ask: Ask, seen: set[int] = seen) -> Draft:
                seen.add(ask.draw_seed)
                assert ask.wants_probabilities == (ask.draw_seed == draft_seed(7))  # a greedy request needs none
                return super().one(ask)

        jobs = [Job((0, 1), params(5, 1.0, seed=7)), Job((1,), params(5, seed=9))]
        run(Records(), jobs, verification=verification)
    assert seeds == {"draw": {7, 9}, "rejection": {draft_seed(7), draft_seed(9)}}


# --- a draft model -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["draft model", "draft tree"])
def test_a_draft_model_equal_to_the_target_is_always_right(name: str, temperature: float) -> None:
    """Sampled, too: it draws with the number that the target will draw with."""
    engine, _ = run(DRAFTERS[name](), work(temperature), draft_tokens=4)  # type: ignore[arg-type]
    metrics = engine.metrics()
    assert metrics.acceptance_at[0] == 1.0
    assert metrics.tokens_per_step > 2
    if name == "draft model":
        assert metrics.acceptance_rate == 1.0


def test_a_draft_model_reads_each_token_once() -> None:
    class Counting(HashModel):
        num_tokens = 0

        def run(self, plan: StepPlan) -> StepResult:
            self.num_tokens += len(plan.token_ids)
            return super().run(plan)

    counting = Counting(vocab_size=2)
    engine, _ = run(DraftModel(counting), [Job((0, 1, 1), params(14))], draft_tokens=3)  # type: ignore[arg-type]
    request = engine.requests["j0"]
    assert request.chunk_sizes == [1, 4, 4, 4, 1]
    # 12 tokens were known when it was last asked, and of the 3 that it drafted then the last was not read.
    assert counting.num_tokens == 12 + 2


def test_a_draft_model_trusts_no_block_that_was_exchanged() -> None:
    drafter = DraftModel(HashModel(vocab_size=2))
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=64), speculation=Speculation(drafter))
    request = engine.add_request((0, 1, 1, 0, 1), params(9))
    engine.step()
    blocks = list(range(10, 20))
    drafter.propose([Ask(request, 3, 3, blocks, 0)])
    known = request.num_known
    assert drafter.num_cached(Ask(request, 3, 3, blocks, 0)) == known
    request.token_ids += [0, 0, 0]
    assert drafter.num_cached(Ask(request, 3, 3, blocks, 0, num_accepted=1)) == known + 1
    assert drafter.num_cached(Ask(request, 3, 3, blocks, 0, num_accepted=3)) == known + 2  # the third was not run
    assert drafter.num_cached(Ask(request, 3, 3, [10, 30, *blocks[2:]], 0, num_accepted=1)) == 2
    request.epoch += 1
    assert drafter.num_cached(Ask(request, 3, 3, blocks, 0, num_accepted=1)) == 0


def test_drafts_of_a_model_with_a_shorter_limit_end_there() -> None:
    speculation = Speculation(DraftModel(HashModel(vocab_size=2, max_model_len=6)), 3)
    engine, _ = make_engine(ROOMY, speculation=speculation)
    request = engine.add_request((0, 1, 1), params(9))
    list(engine.run())
    assert request.num_known == 12
    # A drafted token may stand at position 6, for it is not run itself.
    assert request.chunk_sizes == [1, 4, *[1] * 4]


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(DraftError, match="the draft model has 3 token ids, the target 2"):
        make_engine(ROOMY, speculation=Speculation(DraftModel(HashModel(vocab_size=3))))
    with pytest.raises(ValueError, match="width is 0"):
        DraftTree(HashModel(), width=0)


def test_the_cost_of_a_drafted_token_is_the_share_of_weights() -> None:
    drafter = DraftModel(HashModel(vocab_size=2, weight_bytes=200_000))
    make_engine(ROOMY, speculation=Speculation(drafter))
    assert drafter.cost_ratio == 0.2


def test_by_rejection_a_draft_models_own_distribution_is_used() -> None:
    """Chi-square of the second token over 3,000 seeds; chance of a false alarm under 1 in 10,000."""
    target, near = HashModel(vocab_size=5), Near(vocab_size=5)
    request_params = params(3, 2.5)
    speculation = Speculation(DraftModel(near), 2, verification="rejection")
    engine = Engine(target, EngineConfig(block_size=2, num_blocks=300, record_trace=False), speculation=speculation)
    requests = [engine.add_request([3, 1], replace(request_params, seed=seed)) for seed in range(3000)]
    list(engine.run())
    found = Counter(tuple(r.output_ids[:2]) for r in requests)
    statistic = 0.0
    for first, chance in distribution(target.logits_after([3, 1]), request_params):
        for second, then in distribution(target.logits_after([3, 1, first]), request_params):
            expected = 3000 * chance * then
            statistic += (found[first, second] - expected) ** 2 / expected
    assert statistic < 24 + 4 * math.sqrt(48) + 8
    rate = engine.metrics().acceptance_rate
    assert rate is not None
    assert 0.2 < rate < 1


def test_the_tree_is_the_best_of_all_paths() -> None:
    """Against all paths of a model whose next token depends on the last one."""
    rng = random.Random(3)
    chances = [[Fraction(n, 20) for n in rng.sample((1, 2, 3, 5, 9), 5)] for _ in range(5)]
    for max_tokens, max_depth in [(1, 4), (5, 4), (6, 1), (12, 2), (12, 6)]:
        drafter = DraftTree(FiveTokens(chances), width=5)
        engine = Engine(FiveTokens(chances), ROOMY, clock=VirtualClock(), speculation=Speculation(drafter))
        request = engine.add_request([3], params(12))
        engine.step()
        ask = Ask(request, max_tokens, max_depth, list(range(1, 30)), 0)
        [draft] = drafter.propose([ask])
        paths = {tuple(draft.path(node)) for node in range(len(draft.token_ids))}
        scored: dict[tuple[int, ...], Fraction] = {}
        for depth in range(1, max_depth + 1):
            for path in product(range(5), repeat=depth):
                last, chance = request.token_ids[-1], Fraction(1)
                for token in path:
                    chance *= chances[last][token]
                    last = token
                scored[path] = chance
        best = sorted(scored, key=lambda path: -scored[path])
        count = min(max_tokens, len(best))
        assert len(paths) == count == len(draft.token_ids)
        least = scored[best[count - 1]]  # equals may be chosen one way or the other
        assert {p for p in paths if scored[p] > least} == {p for p in best if scored[p] > least}
        assert min(scored[p] for p in paths) == least
        likeliest = max((p for p in paths if scored[p]), key=lambda p: (len(p) == 1, scored[p]))
        assert draft.token_ids[0] == likeliest[0]
