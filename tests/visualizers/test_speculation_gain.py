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
from visualizers.figures.speculation_gain import BATCHES, DRAFTERS, KINDS, LENGTHS, STEM, VISUALIZER
from visualizers.levels.snapshot import Snapshot
from visualizers.recorded import record as recorded


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
    rows = [row for row in at(context=128, acceptance=0.6).rows["map"] if row["length"] == "4"]
    speedups = [row["x"] for row in rows]
    assert [row["batch"] for row in rows] == [f"{batch:,}" for batch in BATCHES]
    assert speedups == sorted(speedups, reverse=True)
    assert speedups[0] > 1.5
    assert speedups[-1] < 1
    # In the end a verifying step takes as many times as it has tokens.
    assert speedups[-1] == pytest.approx(speculated_tokens(0.6, 4) / (5 + 4 * 0.1), rel=0.15)


def test_long_caches_keep_the_gain() -> None:
    """Each sequence's cache is read once for all tokens of its draft."""
    assert at(context=8192, batch=512).values["verify_cost"] == pytest.approx(1, abs=0.01)


def test_the_recorded_runs_are_whole() -> None:
    record = recorded(STEM)
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


@pytest.mark.parametrize(("batch", "length"), [(1, 4), (256, 4), (1024, 16)])
def test_the_marked_cell_is_what_the_sentence_says(batch: int, length: int) -> None:
    data = at(batch=batch, length=length)
    (cell,) = (row for row in data.rows["map"] if row["on"])
    assert (cell["batch"], cell["length"]) == (f"{batch:,}", str(length))
    assert cell["x"] == data.values["speedup"]
    assert len(data.rows["map"]) == len(BATCHES) * len(LENGTHS)


def test_the_table_is_the_record() -> None:
    rows = VISUALIZER.table(at()).rows
    runs = [r for r in recorded(STEM)["results"] if r["drafter"] != "plain"]
    assert [(row["model"], row["batch"], row["title"], row["text"], row["speedup"]) for row in rows] == [
        (r["model"], r["batch"], DRAFTERS[r["drafter"]], KINDS[r["prompts"]], r["speedup"]) for r in runs
    ]
    assert recorded(STEM)["date"] in VISUALIZER.provenance()


def test_it_moves_in_the_browser() -> None:
    """Each state's expressions are compared with plain numbers at the ends of the formula inputs."""
    states = Snapshot(VISUALIZER).states
    assert len(states) == len(catalog.models()) * len(catalog.accelerators())


def test_the_record_lies_where_the_benchmark_writes_it() -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "benchmarks" / "speculation.py").read_text()
    assert "visualizers/figures/speculation_gain.json" in text
    assert json.loads((root / "visualizers" / "figures" / "speculation_gain.json").read_text()) == recorded(STEM)
