"""The figure of the gain over the batch: its formula at known places, the recorded runs, the expressions."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from minillm import catalog
from minillm.costs import speculated_tokens
from visualizers.contract import Data
from visualizers.figures import speculation_gain
from visualizers.figures.speculation_gain import BATCHES, DRAFTERS, KINDS, VISUALIZER, measured
from visualizers.levels.snapshot import Snapshot


def at(**inputs: object) -> Data:
    return speculation_gain.compute({**VISUALIZER.defaults(), **inputs})


def test_one_sequence_gains_what_the_formula_without_a_verify_cost_says() -> None:
    # (1 - 0.8^5) / 0.2 = 3.36 tokens over 1 + 4 x 0.1 steps.
    values = at(acceptance=0.8, length=4, draft_cost=0.1, batch=1, context=512).values
    assert values["tokens_per_step"] == pytest.approx(3.3616)
    assert values["speedup"] == pytest.approx(2.40, abs=0.005)
    assert values["verdict"] == "faster than"
    assert at(acceptance=0, draft_cost=0).values["verdict"] == "no faster than"


def test_the_gain_ends_where_arithmetic_is_the_limit() -> None:
    rows = at(context=128, acceptance=0.6).rows["gains"]
    speedups = [row["speedup"] for row in rows]
    assert [row["batch"] for row in rows] == list(BATCHES)
    assert speedups == sorted(speedups, reverse=True)
    assert speedups[0] > 1.5
    assert speedups[-1] < 1
    # In the end a verifying step takes as many times as it has tokens.
    assert speedups[-1] == pytest.approx(speculated_tokens(0.6, 4) / (5 + 4 * 0.1), rel=0.15)


def test_long_caches_keep_the_gain() -> None:
    """Each sequence's cache is read once for all tokens of its draft."""
    assert at(context=8192, batch=512).values["verify_cost"] == pytest.approx(1, abs=0.01)


def test_the_recorded_runs_are_whole() -> None:
    record = measured()
    assert datetime.date.fromisoformat(record["date"])
    assert record["command"].startswith("python benchmarks/speculation.py")
    batches = {row["batch"] for row in record["results"]}
    assert batches == {1, 8, 32}
    for row in record["results"]:
        assert row["equal_outputs"] == row["batch"]  # lossless, in float32
        assert row["tokens_per_step"] >= 1
        assert row["speedup_ends"][0] <= row["speedup"] <= row["speedup_ends"][1]
        assert (row["acceptance_rate"] is None) == (row["drafter"] == "plain")
    # Each batch of each model has its plain run, over which the others are given.
    keys = {(row["model"], row["prompts"], row["batch"]) for row in record["results"]}
    assert {(r["model"], r["prompts"], r["batch"]) for r in record["results"] if r["drafter"] == "plain"} == keys
    for row in record["results"]:
        (plain,) = (
            r
            for r in record["results"]
            if r["drafter"] == "plain" and all(r[k] == row[k] for k in ("model", "prompts", "batch"))
        )
        assert row["speedup"] == pytest.approx(row["tokens_per_s"] / plain["tokens_per_s"])


def test_the_bars_are_the_record() -> None:
    for kind in KINDS:
        data = at(prompts=kind)
        runs = [r for r in measured()["results"] if r["prompts"] == kind and r["drafter"] != "plain"]
        assert [(bar["model"], bar["batch"], bar["drafter"]) for bar in data.rows["runs"]] == [
            (r["model"], str(r["batch"]), DRAFTERS[r["drafter"]]) for r in runs
        ]
        assert [row["speedup"] for row in data.rows["table"]] == [r["speedup"] for r in runs]
    assert measured()["date"] in VISUALIZER.provenance()


def test_it_moves_in_the_browser() -> None:
    """Each state's expressions are compared with plain numbers at the ends of the formula inputs."""
    states = Snapshot(VISUALIZER).states
    assert len(states) == len(catalog.models()) * len(catalog.accelerators()) * len(KINDS)


def test_the_record_lies_where_the_benchmark_writes_it() -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "benchmarks" / "speculation.py").read_text()
    assert "visualizers/figures/speculation_gain.json" in text
    assert json.loads((root / "visualizers" / "figures" / "speculation_gain.json").read_text()) == measured()
