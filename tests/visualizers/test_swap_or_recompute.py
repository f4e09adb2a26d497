"""The figure of swap or recompute: both times from first principles, and the crossover where its lines cross."""

from __future__ import annotations

from itertools import pairwise

import pytest

from minillm import catalog
from visualizers.contract import Data
from visualizers.figures import swap_or_recompute
from visualizers.figures.swap_or_recompute import AGAIN, LENGTHS, SWAP, VISUALIZER
from visualizers.levels.snapshot import Snapshot


def at(**inputs: object) -> Data:
    return swap_or_recompute.compute({**VISUALIZER.defaults(), **inputs})


def test_both_times_by_hand() -> None:
    values = at(context=4096, link=64, copy_us=1, block_size=16).values
    assert values["kv_bytes"] == 4096 * 131_072
    assert values["copies"] == 256 * 32 * 2
    assert values["swap_s"] == pytest.approx(2 * (4096 * 131_072 / 64e9 + 16_384 * 1e-6))
    assert values["recompute_s"] == pytest.approx(catalog.model("llama-3.1-8b").prefill_flops(4096) / 989.4e12)
    assert values["faster"] == "swapping"
    assert at(copy_us=2).values["faster"] == "computing again"


def test_grouped_heads_made_swapping_the_cheaper() -> None:
    """The same size of model with four times the cache of a token."""
    assert at(model="llama-3-8b", copy_us=0).values["crossover_tokens"] == 0
    assert at(model="llama-2-7b", copy_us=0).values["crossover_tokens"] > LENGTHS[0]


@pytest.mark.parametrize("slug", list(catalog.models()))
def test_the_crossover_is_where_the_lines_cross(slug: str) -> None:
    windows = any(catalog.model(slug).geometry.windows)
    for link in (8, 63, 450):
        data = at(model=slug, link=link, copy_us=0)
        crossover = data.values["crossover_tokens"]
        assert (crossover is None) == windows
        if windows:
            assert "windows" in VISUALIZER.sentence(data)
            continue
        ratios = {row["tokens"]: row["ratio"] for row in data.rows["lines"]}
        assert set(LENGTHS) <= set(ratios)
        for length, ratio in ratios.items():
            if abs(length - crossover) > 0.02 * length:  # the one row of logits is not in the crossover
                assert (ratio <= 1) == (length < crossover)
        assert data.rows["crossing"] == [{"tokens": crossover}]


def test_the_parts_of_a_bar_are_the_time_it_takes() -> None:
    for inputs in ({}, {"copy_us": 0}, {"model": "deepseek-v3", "context": 131072}):
        data = at(**inputs)
        by = {how: [p for p in data.rows["parts"] if p["how"] == how] for how in (SWAP, AGAIN)}
        for how, seconds in ((SWAP, data.values["swap_s"]), (AGAIN, data.values["recompute_s"])):
            assert by[how][0]["from"] == 0
            assert all(a["to"] == b["from"] for a, b in pairwise(by[how]))
            assert by[how][-1]["to"] == pytest.approx(1e3 * seconds)
        bytes_ms = by[SWAP][0]["to"]
        assert bytes_ms == pytest.approx(2e3 * data.values["kv_bytes"] / (1e9 * data.values["link_gb_per_s"]))


def test_the_line_is_broken_where_the_model_reads_no_further() -> None:
    for slug, model in catalog.models().items():
        data = at(model=slug)
        assert {row["limit"] for row in data.rows["lines"]} == {model.context_tokens}
        if model.context_tokens <= LENGTHS[-1]:
            assert model.context_tokens in {row["tokens"] for row in data.rows["lines"]}
    assert catalog.model(VISUALIZER.defaults()["model"]).context_tokens >= LENGTHS[-1]


def test_every_model_is_in_the_table() -> None:
    data = at(context=2048)
    rows = {row["model"]: row for row in data.rows["models"]}
    assert set(rows) == {model.title for model in catalog.models().values()}
    own = rows["Llama 3.1 8B"]
    assert (own["swap"], own["again"]) == (data.values["swap_s"], data.values["recompute_s"])
    assert own["ratio"] == data.values["ratio"]
    # A latent cache is one array a layer.
    assert at(model="deepseek-v3", context=16).values["copies"] == 61


def test_it_moves_in_the_browser() -> None:
    """Each state's expressions are compared with plain numbers at the ends of the formula inputs."""
    states = Snapshot(VISUALIZER).states
    assert len(states) == len(catalog.models()) * len(catalog.accelerators())
