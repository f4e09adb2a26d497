"""The figure of chunked prefill: steps are what the rule says, answers are the same, numbers are those of the bars."""

from __future__ import annotations

import math
from collections.abc import Callable
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
from visualizers.runs.chunked_run import (
    BUDGETS,
    DECODERS,
    PROMPTS,
    QUIET,
    REPEATS,
    Served,
    Step,
    medians,
    num_gaps,
    serve,
)

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


def test_the_median_of_each_step_counts() -> None:
    one = Served(tuple(Step(g, p) for g, p in [(1, 0)] * QUIET + [(5, 9), (3, 9), (1, 0)]), 8, ())
    two = Served(tuple(Step(g, p) for g, p in [(2, 0)] * QUIET + [(4, 9), (6, 9), (2, 0)]), 10, ())
    three = Served(tuple(Step(g, p) for g, p in [(9, 0)] * QUIET + [(4, 9), (5, 9), (1, 0)]), 9, ())
    middle = medians([one, two, three])
    assert [s.gap_s for s in middle.steps] == [2] * QUIET + [4, 5, 1]
    assert middle.ttft_s == 9
    with pytest.raises(RuntimeError, match="planned different steps"):
        medians([one, Served((*one.steps[:-1], Step(1, 9)), 1, ())])


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


def repeated(factors: tuple[float, ...]) -> Callable[..., tuple[Served, ...]]:
    """Repeats of the modelled run in which a step takes so many times as long."""

    def repeats(budget: int | None, prompt: int, decoders: int) -> tuple[Served, ...]:
        one = modelled(budget, prompt, decoders)
        return tuple(
            Served(tuple(Step(f * s.gap_s, s.prompt_tokens) for s in one.steps), f * one.ttft_s, one.written)
            for f in factors
        )

    return repeats


def test_the_numbers_are_those_of_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_run, "repeats", repeated((1.0, 1.0)))
    for budget, every in product(BUDGETS, EVERY):
        data = chunked_prefill.compute({"budget": budget, "prompt": 512, "decoders": 4, "every": every})
        values = data.values
        for name, key in ((chunked_prefill.WHOLE, "whole"), (chunked_prefill.CHUNKED, "chunked")):
            steps = data.rows[key]
            marks = next(row for row in data.rows["marks"] if row["run"] == name)
            widths = [s["end"] - s["start"] for s in steps]
            assert values[f"max_{key}"] == pytest.approx(1e-3 * max(widths))
            assert marks["end"] - marks["start"] == pytest.approx(max(widths), abs=1e-2)
            assert values[f"total_{key}"] == pytest.approx(1e-3 * steps[-1]["end"])
            assert all(
                s["all"] == s["decode"] + s["prompt"] == pytest.approx(w) for s, w in zip(steps, widths, strict=True)
            )
            busy = [s for s in steps if s["prompt"]]
            assert values[f"ttft_{key}"] == pytest.approx(1e-3 * (busy[-1]["end"] - busy[0]["start"]))
            assert marks["first"] == pytest.approx(busy[-1]["end"])
            assert values[f"mean_{key}"] == pytest.approx(
                (1e-3 * sum(s["end"] - s["start"] for s in busy) + 4e-3 * (every - len(busy))) / every, abs=1e-6
            )
        # Under a budget no step is drawn above its line.
        assert max(s["all"] for s in data.rows["chunked"]) <= data.rows["budget"][0]["tokens"] == budget
        # The chapter's rule: a stall that comes once in more than 100 tokens is not in P99.
        stalled = every <= 100
        assert (values["p99_whole"] == values["max_whole"]) == stalled
        assert values["p99_chunked"] > values["p50_whole"]
        assert values["chunks"] == math.ceil(512 / (budget - 4)) == len(busy)


def test_a_difference_within_the_spread_is_called_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(**inputs: object) -> str:
        return VISUALIZER.sentence(chunked_prefill.compute({**VISUALIZER.defaults(), **inputs}))

    monkeypatch.setattr(chunked_run, "repeats", repeated((0.99, 1.0, 1.01)))
    assert "no more apart" not in said()
    assert "both runs do the same work" in said(prompt=128, budget=256)
    monkeypatch.setattr(chunked_run, "repeats", repeated((0.5, 1.0, 2.0)))
    assert "no more apart than two repeats" in said()
    values = chunked_prefill.compute(VISUALIZER.defaults()).values
    assert values["ttft_chunked"] == pytest.approx(modelled(64, 512, 4).ttft_s)  # the median


def test_the_provenance_says_how_it_was_measured() -> None:
    assert f"medians of {REPEATS} runs, in processor time of one thread" in VISUALIZER.provenance()
