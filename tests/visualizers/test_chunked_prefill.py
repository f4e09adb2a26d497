"""The figure of chunked prefill: steps are what the rule says, answers are the same, numbers are those of the bars."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from minillm.backends.hash_model import HashModel
from minillm.backends.simulated import SimulatedBackend, Weightless
from minillm.core.clock import VirtualClock
from minillm.core.plan import StepPlan
from visualizers.figures import chunked_prefill
from visualizers.figures.chunked_prefill import EVERY, VISUALIZER, percentile, weighted
from visualizers.runs import chunked_run
from visualizers.runs.chunked_run import BUDGETS, DECODERS, PROMPTS, QUIET, Served, Step, num_gaps, quickest, serve

STATES = list(product((None, *BUDGETS), PROMPTS, DECODERS))


def modelled(budget: int | None, prompt: int, decoders: int) -> Served:
    """The run without a model, a millisecond a token: what is planned depends on lengths alone."""
    clock = VirtualClock()
    backend = SimulatedBackend(Weightless(max_model_len=1024), _by_tokens, clock)
    return serve(backend, [0], budget, prompt, decoders, clock)


def _by_tokens(plan: StepPlan) -> float:
    return 1e-3 * len(plan.token_ids)


@pytest.mark.parametrize(("budget", "prompt", "decoders"), STATES)
def test_decoders_come_first_and_the_prompt_gets_the_rest(budget: int | None, prompt: int, decoders: int) -> None:
    run = modelled(budget, prompt, decoders)
    assert len(run.steps) == num_gaps(prompt, decoders)
    room = prompt if budget is None else budget - decoders
    chunks = [room] * (prompt // room) + ([prompt % room] if prompt % room else [])
    quiet = len(run.steps) - QUIET - len(chunks)
    assert quiet >= QUIET
    assert [s.prompt_tokens for s in run.steps] == [0] * QUIET + chunks + [0] * quiet
    # Nobody who decodes waits longer than one step, and that is what its gap says.
    assert [round(1e3 * s.gap_s) for s in run.steps] == [decoders + s.prompt_tokens for s in run.steps]
    assert run.ttft_s == pytest.approx(1e-3 * (prompt + decoders * len(chunks)))
    assert run.arrival_s == pytest.approx(1e-3 * decoders * QUIET)


def test_chunks_change_no_token() -> None:
    """On the hash model one wrong read changes everything after it."""

    def written(budget: int | None) -> tuple[tuple[int, ...], ...]:
        return serve(HashModel(vocab_size=4096), range(100, 400), budget, 128, 4, VirtualClock()).written

    whole = written(None)
    assert len(set(whole)) == len(whole) == 5
    assert [len(ids) for ids in whole] == [*(4 - i + num_gaps(128, 4) for i in range(4)), 1]
    for budget in BUDGETS:
        assert written(budget) == whole


def test_the_real_model_says_the_same_in_chunks() -> None:
    values = chunked_prefill.compute({**VISUALIZER.defaults(), "prompt": 128, "budget": 32}).values
    assert values["same_tokens"] == values["compared_tokens"] == 1 + sum(4 - i + num_gaps(128, 4) for i in range(4))
    assert values["chunks"] == math.ceil(128 / (32 - 4))


def test_the_quickest_of_each_step_counts() -> None:
    one = Served(tuple(Step(g, p) for g, p in [(1, 0)] * QUIET + [(5, 9), (3, 9), (1, 0)]), 8, ())
    two = Served(tuple(Step(g, p) for g, p in [(2, 0)] * QUIET + [(4, 9), (6, 9), (2, 0)]), 10, ())
    best = quickest([one, two])
    assert [s.gap_s for s in best.steps] == [1] * QUIET + [4, 3, 1]
    assert best.ttft_s == 7
    with pytest.raises(RuntimeError, match="planned different steps"):
        quickest([one, Served((*one.steps[:-1], Step(1, 9)), 1, ())])


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("budget", [None, 32, 256])
def test_percentiles_are_those_of_a_list_that_is_written_out(budget: int | None, every: int) -> None:
    """With whole numbers of each gap the weighted percentile is NumPy's of the long list, lowest value at a rank."""
    run = modelled(budget, 256, 4)
    busy = [s.gap_s for s in run.steps if s.prompt_tokens]
    long = sorted(busy + [4e-3] * (every - len(busy)))  # in modelled time all quiet gaps are 4 ms
    weights = weighted(run, every)
    assert sum(weight for _, weight in weights) == pytest.approx(every)
    for share in (0.5, 0.9, 0.99, 1.0):
        assert percentile(weights, share) == pytest.approx(np.quantile(long, share, method="inverted_cdf"))


def test_the_tail_is_counted_from_the_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_run, "run", modelled)
    for budget, every in product(BUDGETS, EVERY):
        data = chunked_prefill.compute({"budget": budget, "prompt": 512, "decoders": 4, "every": every})
        values = data.values
        for name, key in ((chunked_prefill.WHOLE, "whole"), (chunked_prefill.CHUNKED, "chunked")):
            bars = data.rows[key]
            assert values[f"max_{key}"] == pytest.approx(1e-3 * max(b["ms"] for b in bars))
            assert values[f"total_{key}"] == pytest.approx(1e-3 * bars[-1]["end"])
            busy = [b for b in bars if b["kind"] == chunked_prefill.BUSY_STEP]
            assert values[f"ttft_{key}"] == pytest.approx(1e-3 * (busy[-1]["end"] - busy[0]["start"]))
            assert values[f"mean_{key}"] == pytest.approx(
                (1e-3 * sum(b["ms"] for b in busy) + 4e-3 * (every - len(busy))) / every, abs=1e-6
            )
            tail = [row for row in data.rows["tail"] if row["run"] == name]
            shares = [row["share"] for row in tail]
            assert shares[0] == 1
            assert shares == sorted(shares, reverse=True)
            # As many busy gaps lie above the quiet ones as the prompt had steps.
            after_quiet = min(row["share"] for row in tail if row["ms"] == 4)
            assert after_quiet == pytest.approx(len(busy) / every, abs=1e-5)
        # The chapter's rule: a stall that comes once in more than 100 tokens is not in P99.
        stalled = every <= 100
        assert (values["p99_whole"] == values["max_whole"]) == stalled
        assert values["p99_chunked"] > values["p50_whole"]
        assert values["chunks"] == math.ceil(512 / (budget - 4)) == len(busy)


def test_the_provenance_says_how_it_was_measured() -> None:
    assert "quickest of 2 runs, in processor time of one thread" in VISUALIZER.provenance()
