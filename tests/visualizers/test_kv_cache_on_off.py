"""The figure of the cache on and off: equal logits, honest step plans, FLOPs as the engine does them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from minillm.core.plan import StepPlan
from minillm.ops import numpy_ops
from minillm.ops.linear import Linear
from visualizers.contract import InputError
from visualizers.figures import kv_cache_on_off as figure
from visualizers.figures.kv_cache_on_off import STOPS, VISUALIZER
from visualizers.levels.snapshot import Snapshot
from visualizers.levels.words import visible
from visualizers.runs import cache_race
from visualizers.runs.cache_race import MEASURED, Lap, Race, step_flops, totals
from visualizers.runs.measure import Times


@pytest.fixture(scope="module", autouse=True)
def few_repeats() -> Iterator[None]:
    """No test looks at how long anything took."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_race, "REPEATS", 2)  # no fewer have a spread
        yield


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return Snapshot(VISUALIZER)


def test_both_ways_give_the_same_logits(snapshot: Snapshot) -> None:
    values = snapshot.at({"length": 512}).data.values
    assert values["compared_lengths"] == len(MEASURED) == values["same_tokens"]
    # Rounding of float32, and not nothing: two times the same numbers would be no comparison.
    assert 0 < values["max_difference"] < 1e-5 * values["largest_logit"]
    assert values["kv_bytes"] == 512 * figure.race().kv_bytes_per_token


def test_one_way_runs_one_row_and_the_other_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Race()
    plans: list[StepPlan] = []
    logits = runner._backend.logits
    monkeypatch.setattr(runner._backend, "logits", lambda plan: plans.append(plan) or logits(plan))
    runner.reach(16)
    at_16 = [p for p in plans if p.seq_lens == [16]]
    assert [len(p.token_ids) for p in at_16] == [1, 1, 16, 16, 1]
    cached, _, whole, _, goes_on = at_16
    assert cached.block_tables == goes_on.block_tables
    assert not set(whole.block_tables[0]) & set(cached.block_tables[0])


def test_a_longer_race_goes_on_with_the_same_laps() -> None:
    runner = Race()
    first = runner.reach(32)
    assert [lap.length for lap in first] == [8, 16, 32]
    longer = runner.reach(64)
    assert longer[:3] == first
    assert runner.reach(16) == first[:2]


def test_the_text_is_the_models_own(snapshot: Snapshot) -> None:
    """Greedy by the real engine gives the race's tokens."""
    from minillm.core.sampling import SamplingParams
    from minillm.llm import LLM

    runner = figure.race()
    runner.reach(64)
    llm = LLM(figure.MODEL, backend="numpy")
    prompt = llm.encode(figure.PROMPT)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    done = llm.generate(figure.PROMPT, params)[0]
    assert [*prompt, *done.token_ids] == runner._tokens[: len(prompt) + 40]


@pytest.mark.parametrize(("new", "cached"), [(1, 0), (1, 40), (16, 0), (33, 0), (5, 20)])
def test_flops_are_those_that_the_decoder_does(monkeypatch: pytest.MonkeyPatch, new: int, cached: int) -> None:
    runner = Race()
    counted = 0
    multiply, attend = numpy_ops.linear, numpy_ops.attention

    def counting_linear(x: Any, linear: Linear) -> Any:
        nonlocal counted
        counted += 2 * len(x) * linear.weight.size
        return multiply(x, linear)

    def counting_attention(q: Any, k_cache: Any, v_cache: Any, batch: Any, attention: Any) -> Any:
        nonlocal counted
        visited = sum(cached + i + 1 for i in range(len(q)))
        counted += 4 * visited * q.shape[1] * q.shape[2]
        return attend(q, k_cache, v_cache, batch, attention)

    tokens = list(range(100, 100 + cached + new))
    if cached:
        runner._step(tokens[:cached], runner._scratch, 0)
    monkeypatch.setattr(numpy_ops, "linear", counting_linear)
    monkeypatch.setattr(numpy_ops, "attention", counting_attention)
    runner._step(tokens, runner._scratch, cached)
    assert counted == step_flops(runner.spec, new, cached)


def test_totals_are_exact_where_times_are_straight_lines() -> None:
    """With t(n) = 2 n, the tokens from 8 to 64 take 2 * (8 + ... + 64) seconds, ends counted half; t(8) begins."""
    laps = [Lap(n, Times(1.0, 1.0, 1.0), Times(2.0 * n, n, 3.0 * n), 0.0, 0.0, True) for n in (8, 16, 64)]
    inner = sum(2.0 * n for n in range(8, 65)) - 8.0 - 64.0
    assert totals(laps, "without_s")[-1] == pytest.approx(16.0 + inner)
    assert totals(laps, "with_s") == [1.0, 9.0, 57.0]


def test_arithmetic_alone_is_never_above_the_measurement(snapshot: Snapshot) -> None:
    points = snapshot.at({"length": 256}).data.rows["points"]
    by_series = {
        s: np.array([p["ms"] for p in points if p["series"] == s]) for s in (figure.WITHOUT, figure.ARITHMETIC)
    }
    assert (by_series[figure.ARITHMETIC] <= by_series[figure.WITHOUT] * (1 + 1e-12)).all()


def test_the_drawn_rows_are_those_of_the_two_ways(snapshot: Snapshot) -> None:
    """What is drawn for a step is what its plan has: one new row with the cache, all known tokens without."""
    cells = snapshot.default.data.rows["cells"]
    steps = list(dict.fromkeys(cell["step"] for cell in cells))
    prompt = figure.race().prompt_tokens
    words = [visible(word) for word in figure.race().words(figure.DRAWN)]
    assert len(steps) == figure.DRAWN + 1 - prompt
    for known, step in enumerate(steps, start=prompt):
        kinds = [cell["kind"] for cell in cells if cell["step"] == step]
        assert len(kinds) == figure.DRAWN
        assert sum(kind != figure.LATER for kind in kinds) == known
        assert kinds.count(figure.NEW) == (prompt if known == prompt else 1)
        assert [cell["text"] for cell in cells if cell["step"] == step][:known] == words[:known]


def test_the_sentence_says_whether_the_difference_is_more_than_the_spread(snapshot: Snapshot) -> None:
    values = snapshot.default.data.values
    assert values["apart"] in ("more than", "no more than")
    laps = figure.race().reach(snapshot.default.inputs["length"])
    assert (values["apart"] == "more than") == laps[-1].whole.differs_from(laps[-1].cached)
    bands = snapshot.default.data.rows["bands"]
    assert all(band["low"] <= band["high"] for band in bands)
    assert len(bands) == 2 * len(laps)


def test_every_state_draws(snapshot: Snapshot) -> None:
    assert len(snapshot.states) == 2 * len(STOPS)
    for state in snapshot.states:
        assert "{" not in state.state.text()
        lengths = {p["length"] for p in state.state.data.rows["points"]}
        assert max(lengths) == state.state.inputs["length"]
    assert "processor time of one thread" in snapshot.provenance()


def test_bad_input(snapshot: Snapshot) -> None:
    with pytest.raises(InputError, match="--length 4096 is outside 16"):
        snapshot.at({"length": 4096})
    with pytest.raises(InputError, match="choose from each, sum"):
        snapshot.at({"show": "all"})
