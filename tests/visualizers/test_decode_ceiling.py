"""The figure of the decode ceiling: known ceilings, its two bounds, the measured points, the ends of its inputs."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import pytest

from minillm import catalog
from visualizers.__main__ import main
from visualizers.contract import InputError
from visualizers.figures.decode_ceiling import (
    BATCHES,
    BOUND,
    BY_BYTES,
    BY_FLOPS,
    CACHE,
    COMPUTE,
    PIPES,
    VISUALIZER,
    WEIGHTS,
    measured,
)
from visualizers.levels import charts
from visualizers.levels.snapshot import Snapshot

TABLE = 128_256 * 4096 * 2  # bytes of the embedding, of which a step looks up a row
MODELS, ACCELERATORS = list(catalog.models()), list(catalog.accelerators())


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return Snapshot(VISUALIZER)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decode-ceiling", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes_per_step"] == 16_060_522_496 - TABLE + 2048 * 131_072
    assert "measured" in found["provenance"].lower()


@pytest.mark.parametrize(("batch", "ms"), [(1, 4.87), (8, 5.44), (32, 7.36), (64, 9.92), (128, 15.05)])
def test_step_of_8b_on_an_h100(snapshot: Snapshot, batch: int, ms: float) -> None:
    values = snapshot.at({"batch": batch}).data.values
    assert values["step_s"] * 1e3 == pytest.approx(ms - TABLE / 3.35e9, abs=0.005)  # ms counts the table
    assert values["tokens_per_s"] == pytest.approx(batch / values["step_s"])
    assert values["tokens_per_s_each"] == pytest.approx(1 / values["step_s"])
    assert values["limit"] == "memory bandwidth"


@pytest.mark.parametrize(
    ("slug", "ceiling"), [("h100-sxm", 223.2), ("h200-sxm", 319.8), ("a100-80gb-sxm", 135.8), ("b200", 533)]
)
def test_no_sequence_is_faster_than_its_weights_are_read(snapshot: Snapshot, slug: str, ceiling: float) -> None:
    fastest = snapshot.at({"accelerator": slug, "context": 1}).data.values["tokens_per_s_each"]
    assert 0.99 * ceiling < fastest < ceiling * 1.001


def test_arithmetic_becomes_the_limit_where_the_cache_is_short(snapshot: Snapshot) -> None:
    limits = [snapshot.at({"batch": b, "context": 64}).data.values["limit"] for b in (1, 256, 1024)]
    assert limits == ["memory bandwidth", "memory bandwidth", "arithmetic"]
    values = snapshot.at({"batch": 1024, "context": 64}).data.values
    peak = catalog.accelerator("h100-sxm").flops("bf16")
    assert values["step_s"] == pytest.approx(values["flops_per_step"] / peak)
    assert values["bytes_per_step"] / 3.35e12 < values["step_s"]


def test_what_fits(snapshot: Snapshot) -> None:
    fits = {
        slug: snapshot.at({"model": "llama-3.1-70b", "accelerator": slug}).data.values["fits"] for slug in ACCELERATORS
    }
    assert {slug for slug, text in fits.items() if text == "fits into"} == {"h200-sxm", "b200"}
    # 141.1 GB of weights leave an H200 little: 32 sequences of 2,048 tokens are too many.
    full = snapshot.at({"model": "llama-3.1-70b", "accelerator": "h200-sxm", "batch": 32}).data.values
    assert full["fits"] == "does not fit into"
    assert full["needed_bytes"] == pytest.approx(162.6e9, rel=1e-3)


def test_experts_are_read_as_far_as_they_are_chosen(snapshot: Snapshot) -> None:
    model = catalog.model("deepseek-v3")
    state = {"model": "deepseek-v3", "dtype": "fp8"}
    one, many = (snapshot.at({**state, "batch": b}).data.values for b in (1, 1024))
    # The head stays in bf16, the look-up table is not read; norms and routers are below 1e-3 of the rest.
    assert one["bytes_per_step"] == pytest.approx(model.active_parameters + 2048 * 70_272, rel=3e-3)
    assert many["bytes_per_step"] == pytest.approx(model.parameters + 1024 * 2048 * 70_272, rel=3e-4)
    assert one["needed_bytes"] > model.parameters  # all of them must lie in memory


def test_fewer_bits_a_weight_leave_the_cache_alone(snapshot: Snapshot) -> None:
    read = {d: snapshot.at({"dtype": d}).data.values["bytes_per_step"] for d in ("bf16", "fp8", "int4_g128")}
    parts = catalog.model("llama-3.1-8b").geometry.parts
    matrices = parts["attention"] + parts["mlp"]
    assert read["bf16"] - read["fp8"] == matrices
    kept = 2 * (parts["head"] + parts["norms"])
    assert read["int4_g128"] == pytest.approx(matrices * 4.15625 / 8 + kept + 2048 * 131_072)


def test_the_published_format_is_the_default(snapshot: Snapshot) -> None:
    found = snapshot.at({"model": "gpt-oss-20b"}).data.values
    assert found["bytes_per_step"] == catalog.model("gpt-oss-20b").decode_bytes(2048)
    assert (
        found["needed_bytes"]
        < 15e9
        < snapshot.at({"model": "gpt-oss-20b", "dtype": "bf16"}).data.values["needed_bytes"]
    )


def test_a_context_beyond_the_limit_is_told(snapshot: Snapshot) -> None:
    assert "within the limit of the model, 131,072 tokens" in snapshot.at({"context": 131_072}).text()
    assert "beyond the limit of the model, 4,096 tokens" in snapshot.at({"model": "llama-2-7b", "context": 4097}).text()


def test_table_has_the_same_step_on_every_accelerator(snapshot: Snapshot) -> None:
    state = snapshot.at({"batch": 64, "accelerator": "h200-sxm"})
    rows = {row["name"]: row for row in state.table.rows}
    assert set(rows) == {a.title for a in catalog.accelerators().values()}
    assert rows["H200 SXM"]["total"] == pytest.approx(state.data.values["tokens_per_s"])
    for slug in ACCELERATORS:
        alone = snapshot.at({"batch": 64, "accelerator": slug}).data.values
        row = rows[catalog.accelerator(slug).title]
        assert row["each"] == pytest.approx(alone["tokens_per_s_each"])
        assert (row["fits"] == "yes") == (alone["fits"] == "fits into")


def test_point_lies_on_the_curve_of_its_batch(snapshot: Snapshot) -> None:
    for batch in BATCHES:
        data = snapshot.at({"batch": batch, "context": 512}).data
        row = next(r for r in data.rows["curves"] if r["batch"] == batch)
        assert row[BOUND] == min(row[BY_BYTES], row[BY_FLOPS])
        assert data.rows["point"][0]["rate"] == pytest.approx(row[BOUND])


def test_measured_points() -> None:
    record = measured()
    assert datetime.date(2026, 1, 1) <= datetime.date.fromisoformat(record["date"])
    assert record["command"].startswith("python benchmarks/decode_speed.py")
    assert record["machine"]["cores"] >= 1
    assert record["results"]
    for result in record["results"]:
        ceiling = result["bandwidth_gb_per_s"] * 1e9 / result["bytes_per_step"]
        assert result["mbu"] == pytest.approx(result["tokens_per_s"] / result["batch"] / ceiling, rel=0.01)
        assert result["bytes_per_step"] > 2 * record["machine"]["last_level_cache_mib"] * 2**20, (
            "a model that fits into the processor's cache says nothing about memory: leave it out of the record"
        )
    provenance = VISUALIZER.provenance
    assert provenance is not None
    assert record["date"] in provenance()
    assert record["machine"]["cpu"] in provenance()


@pytest.mark.parametrize(
    "inputs", [{}, {"batch": 1024, "context": 64}, {"model": "deepseek-v3", "accelerator": "l4"}, {"dtype": "fp8"}]
)
def test_the_area_of_every_pipe_is_the_bytes_of_the_step(snapshot: Snapshot, inputs: dict[str, Any]) -> None:
    """High as the bandwidth and long as the time: the same bytes for all, the chosen accelerator among them."""
    data = snapshot.at(inputs).data
    pipes = data.rows["pipes"]
    areas: dict[float, float] = {}
    for part in pipes:
        if part["kind"] in (WEIGHTS, CACHE):
            middle = (part["top"] + part["bottom"]) / 2
            areas[middle] = areas.get(middle, 0) + (part["bottom"] - part["top"]) * (part["to"] - part["from"])
    assert len(areas) == len(data.rows["names"]) in (len(PIPES), len(PIPES) + 1)
    assert max(areas.values()) == pytest.approx(min(areas.values()))
    (chosen,) = (name for name in data.rows["names"] if name["chosen"])
    assert chosen["name"] == data.values["accelerator_title"]
    assert chosen["step"] == pytest.approx(data.values["step_s"])
    assert sum(part["kind"] == COMPUTE for part in pipes) == len(areas)


def test_no_axis_cuts_what_it_draws(snapshot: Snapshot) -> None:
    """Scales follow their data: the one domain that is given is that of the batches, which are all within."""
    for inputs in ({}, {"model": "deepseek-v3", "accelerator": "l4", "batch": 1024}):
        text = json.dumps(snapshot.spec(snapshot.at(inputs)))
        assert "clamp" not in text
        assert [d for d in re.findall(r'"domain": (\[[^\]]*\])', text) if '"' not in d] == ["[1, 1024]"] * text.count(
            '"domain": [1, 1024]'
        )


def test_every_state_draws_and_its_expressions_are_its_numbers(snapshot: Snapshot) -> None:
    """The snapshot compares both, at the defaults and at the ends of each formula input."""
    assert len(snapshot.states) == len(MODELS) * len(ACCELERATORS) * 4
    spec = snapshot.states[0].spec
    assert all(state.spec == spec for state in snapshot.states)
    assert charts.dataset_names(spec) == {"pipes", "names", "point", "ends", "curves"}


@pytest.mark.parametrize("slug", MODELS)
def test_both_ends_of_every_input(snapshot: Snapshot, slug: str) -> None:
    for given in VISUALIZER.inputs:
        for end in given.ends():
            state = snapshot.at({"model": slug, given.name: end})
            assert 0 < state.data.values["tokens_per_s_each"] <= state.data.values["tokens_per_s"]
            assert "{" not in state.text()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"accelerator": "h100"}, "--accelerator 'h100' is unknown: choose from b200"),
        ({"batch": 0}, "--batch 0 is outside 1 to 1,024 sequences"),
        ({"dtype": "fp64"}, "--dtype 'fp64' is unknown"),
    ],
)
def test_bad_input(snapshot: Snapshot, raw: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        snapshot.at(raw)
