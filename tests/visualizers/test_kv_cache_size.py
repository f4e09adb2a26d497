"""The figure of cache sizes: its numbers, what each what-if changes, and the figure at the ends of its inputs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from minillm import catalog
from visualizers.__main__ import main
from visualizers.attentions import variants
from visualizers.contract import InputError
from visualizers.figures.kv_cache_size import CACHE, FREE, TOO_MUCH, VISUALIZER, WEIGHTS
from visualizers.levels import charts
from visualizers.levels.snapshot import Snapshot, State

MODELS = list(catalog.models())


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return Snapshot(VISUALIZER)


def by_label(state: State) -> dict[str, Any]:
    return {str(row["label"]): row for row in state.table.rows}


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv-cache-size", "--model", "llama-3.1-8b", "--context", "8192", "--batch", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes_per_token"] == 131_072
    assert found["total_bytes"] == 1_073_741_824
    assert found["allocated_bytes"] == 1_073_741_824
    assert all(isinstance(found[name], int) for name in ("bytes_per_token", "total_bytes", "allocated_bytes"))


def test_attentions_of_8b(snapshot: Snapshot) -> None:
    rows = by_label(snapshot.at({"batch": 1}))
    assert {label: row["bytes_per_token"] for label, row in rows.items()} == {
        "as built: GQA, 8 KV heads": 131_072,
        "if MHA: 32 KV heads": 524_288,
        "if MQA: 1 KV head": 16_384,
        "if MLA: 512 + 64 numbers": 32 * 576 * 2,
        "if 5 of 6 layers saw 1,024 tokens": 131_072,
    }
    # 27 of 32 layers stop at 1,024 tokens, 5 keep all 8,192.
    assert rows["if 5 of 6 layers saw 1,024 tokens"]["total_bytes"] == 4096 * (27 * 1024 + 5 * 8192)


def test_windows_and_whole_blocks(snapshot: Snapshot) -> None:
    gemma = snapshot.at({"model": "gemma-3-27b", "context": 131_072, "batch": 1}).data.values
    assert gemma["total_bytes"] / 2**30 == pytest.approx(10.41, abs=0.005)
    assert gemma["allocated_bytes"] / 2**30 == 62
    assert gemma["allocated_behind_window_freed_bytes"] == gemma["total_bytes"]
    assert gemma["next_token_bytes"] == 10 * 8192
    gpt_oss = snapshot.at({"model": "gpt-oss-20b", "batch": 32}).data.values
    assert gpt_oss["total_bytes"] / 2**30 == pytest.approx(6.09, abs=0.005)
    assert gpt_oss["allocated_bytes"] / 2**30 == 12


def test_latent_and_expanded(snapshot: Snapshot) -> None:
    rows = by_label(snapshot.at({"model": "deepseek-v3"}))
    assert rows["as built: MLA, 512 + 64 numbers"]["bytes_per_token"] == 70_272
    assert rows["if MHA: 128 KV heads"]["bytes_per_token"] == 4_997_120
    assert not any(label.startswith("if MLA") for label in rows)


def test_part_of_a_block_is_reserved_whole(snapshot: Snapshot) -> None:
    values = snapshot.at({"context": 17, "block_size": 16, "batch": 2}).data.values
    assert values["total_bytes"] == 2 * 17 * 131_072
    assert values["allocated_bytes"] == 2 * 32 * 131_072


def test_format_of_the_cache(snapshot: Snapshot) -> None:
    formats = ("fp32", "bf16", "fp8", "q8_0", "q4_0")
    totals = {d: snapshot.at({"dtype": d, "batch": 1}).data.values["total_bytes"] / 2**30 for d in formats}
    assert totals == {"fp32": 2, "bf16": 1, "fp8": 0.5, "q8_0": 0.53125, "q4_0": 0.28125}


def test_room_beside_the_weights(snapshot: Snapshot) -> None:
    room = 81_559 * 2**20 - 16_060_522_496
    values = snapshot.at({"batch": 1}).data.values
    assert (
        values["room_sequences"] * values["total_bytes"]
        <= room
        < (values["room_sequences"] + 1) * values["total_bytes"]
    )
    assert snapshot.at({"model": "llama-3.1-70b"}).data.values["room_sequences"] == 0


@pytest.mark.parametrize("slug", MODELS)
def test_each_what_if_is_another_attention(slug: str) -> None:
    found = variants(catalog.model(slug))
    assert [v.own for v in found] == [True] + [False] * (len(found) - 1)
    assert len({v.label for v in found}) == len(found) >= 4
    assert all(sum(g.layers for g in v.groups) == catalog.model(slug).layers for v in found)
    # Narrow figures have room for 36 letters beside the amount.
    assert max(len(v.label) for v in found) <= 36


def test_every_state_draws_and_its_expressions_are_its_numbers(snapshot: Snapshot) -> None:
    """The snapshot compares both, at the defaults and at the ends of each formula input."""
    assert len(snapshot.states) == len(MODELS) * 5 * len(catalog.accelerators())
    assert len({json.dumps(s.spec, sort_keys=True) for s in snapshot.states}) == 1
    assert charts.dataset_names(snapshot.states[0].spec) == {"cells", "variants", "weights", "memory"}


@pytest.mark.parametrize("batch", [1, 32, 64, 1024])
def test_cells_fill_as_far_as_the_memory_is_taken(snapshot: Snapshot, batch: int) -> None:
    data = snapshot.at({"batch": batch}).data
    kinds = [cell["kind"] for cell in data.rows["cells"]]
    share = data.values["needed_share"]
    assert share == pytest.approx((16_060_522_496 + batch * 2**30) / (81_559 * 2**20))
    assert kinds.count(WEIGHTS) == round(100 * 16_060_522_496 / (81_559 * 2**20))
    assert len(kinds) - kinds.count(FREE) == min(100, round(100 * share))
    # Weights, then the cache, then what is free; a cache that does not fit has a colour of its own.
    assert kinds == sorted(kinds, key=[WEIGHTS, CACHE, TOO_MUCH, FREE].index)
    assert (TOO_MUCH in kinds) == (share > 1)
    assert not (TOO_MUCH in kinds and CACHE in kinds)


def test_nothing_is_drawn_outside_the_axis_at_the_ends(snapshot: Snapshot) -> None:
    """No scale has a domain of its own: bars of a pebibyte are as long as their numbers say, beside each other."""
    state = snapshot.at({"model": "llama-2-7b", "context": 1_048_576, "batch": 1024, "dtype": "fp32"})
    scales = re.findall(
        r'"[xy]": {"axis": null, "field": "[^"]*", "scale": ({[^}]*})', json.dumps(snapshot.spec(state))
    )
    assert scales
    assert all("domain" not in scale and "clamp" not in scale for scale in scales)
    for row in state.data.rows["variants"]:
        assert row["to"] - row["from"] == row["total_bytes"]


@pytest.mark.parametrize("slug", MODELS)
def test_both_ends_of_every_input(snapshot: Snapshot, slug: str) -> None:
    for given in VISUALIZER.inputs:
        for end in given.ends():
            state = snapshot.at({"model": slug, given.name: end})
            values = state.data.values
            assert 0 < values["total_bytes"] <= values["allocated_bytes"]
            assert values["total_bytes"] <= values["allocated_behind_window_freed_bytes"] <= values["allocated_bytes"]
            assert "{" not in state.text()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"model": "llama-9"}, "--model 'llama-9' is unknown: choose from"),
        ({"context": 0}, "--context 0 is outside 1 to 1,048,576 tokens"),
        ({"batch": 1.5}, "--batch 1.5 is not a whole number"),
        ({"heads": 3}, "kv-cache-size has no input 'heads': it takes batch, context"),
    ],
)
def test_bad_input(snapshot: Snapshot, raw: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        snapshot.at(raw)
