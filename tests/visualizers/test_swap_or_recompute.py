"""The figure of swap or recompute: both times from first principles, and the crossover where its lines cross."""

from __future__ import annotations

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
        ms = {(row["tokens"], row["how"]): row["ms"] for row in data.rows["lines"]}
        for length in LENGTHS:
            again_is_quicker = ms[length, AGAIN] <= ms[length, SWAP]
            if abs(length - crossover) > 0.02 * length:  # the one row of logits is not in the crossover
                assert again_is_quicker == (length < crossover)


def test_every_model_is_in_the_table() -> None:
    data = at(context=2048)
    rows = {row["model"]: row for row in data.rows["models"]}
    assert set(rows) == {model.title for model in catalog.models().values()}
    own = rows["Llama 3 8B"]
    assert (own["swap"], own["again"]) == (data.values["swap_s"], data.values["recompute_s"])
    assert own["ratio"] == data.values["ratio"]
    # A latent cache is one array a layer.
    assert at(model="deepseek-v3", context=16).values["copies"] == 61


def test_it_moves_in_the_browser() -> None:
    """Each state's expressions are compared with plain numbers at the ends of the formula inputs."""
    states = Snapshot(VISUALIZER).states
    assert len(states) == len(catalog.models()) * len(catalog.accelerators())
