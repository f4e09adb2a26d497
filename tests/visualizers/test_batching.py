"""The three policies on one trace: the workload is one, times are the roofline's, waste is what is drawn."""

from __future__ import annotations

from itertools import pairwise

import pytest

from minillm import catalog
from minillm.costs.batching import padding_waste
from visualizers.figures import batching
from visualizers.figures.batching import VISUALIZER
from visualizers.runs import batching_run
from visualizers.runs.batching_run import NUM_REQUESTS, POLICIES, Served, serve, workload

DEPLOYED = ("llama-3-8b", "h100-sxm")
SPREADS = ("same", "mixed", "one-long")


def served(policy: str, rate: float = 32, spread: str = "mixed", batch: int = 8) -> tuple[Served, ...]:
    return serve(policy, rate, spread, batch, *DEPLOYED)  # type: ignore[arg-type]


def test_the_rate_scales_arrivals_and_nothing_else() -> None:
    slow, fast = workload(1, "mixed"), workload(32, "mixed")
    assert [(j.prompt, j.output) for j in slow] == [(j.prompt, j.output) for j in fast]
    for a, b in zip(slow, fast, strict=True):
        assert a.arrival_s == pytest.approx(32 * b.arrival_s, abs=1e-4)
    gaps = [b.arrival_s - a.arrival_s for a, b in pairwise(slow)]
    # The mean of 23 exponential gaps of 1 s is within 1 +- 0.6 in 99.5 % of all draws; these are fixed.
    assert 0.4 < sum(gaps) / len(gaps) < 1.6


def test_spreads_are_what_they_are_called() -> None:
    assert len({j.output for j in workload(1, "same")}) == 1
    mixed = sorted(j.output for j in workload(1, "mixed"))
    assert mixed[-1] > 10 * mixed[0]
    *rest, longest = sorted(j.output for j in workload(1, "one-long"))
    assert set(rest) == {longest // 10}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("spread", SPREADS)
def test_every_request_is_served_in_order_and_within_the_batch(policy: str, spread: str) -> None:
    those = served(policy, spread=spread)
    assert len(those) == NUM_REQUESTS
    for s in those:
        assert s.job.arrival_s <= s.start_s < s.first_s < s.end_s <= s.released_s
    assert [s.start_s for s in those] == sorted(s.start_s for s in those)
    for moment in (s.start_s for s in those):
        assert sum(s.start_s <= moment < s.released_s for s in those) <= 8


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_closed_batches_do_not_overlap(policy: str) -> None:
    batches: dict[float, list[Served]] = {}
    for s in served(policy):
        batches.setdefault(s.released_s, []).append(s)
    for (until, _), (_, after) in pairwise(sorted(batches.items())):
        assert min(s.start_s for s in after) >= until
    for until, batch in batches.items():
        assert until == max(s.end_s for s in batch)
    if policy == "static":
        assert {len(b) for b in batches.values()} == {8}


def test_continuous_batching_holds_no_row_and_wins_where_lengths_differ() -> None:
    static, dynamic, continuous = (served(policy) for policy in POLICIES)
    assert all(s.released_s == s.end_s for s in continuous)
    ends = [max(s.end_s for s in those) for those in (static, dynamic, continuous)]
    assert ends[2] < 0.8 * min(ends[:2])
    # With equal lengths there is little to gain but the waiting.
    same_static, same_continuous = served("static", spread="same"), served("continuous", spread="same")
    assert max(s.end_s for s in same_continuous) > 0.85 * max(s.end_s for s in same_static)


def test_at_a_low_rate_dynamic_waits_for_its_timer_and_static_for_strangers() -> None:
    static, dynamic, continuous = (sorted(s.ttft_s for s in served(policy, rate=1)) for policy in POLICIES)
    middle = NUM_REQUESTS // 2
    assert continuous[middle] < 0.02
    assert dynamic[middle] == pytest.approx(continuous[middle] + batching_run.WINDOW_S, abs=0.005)
    assert static[middle] > 1


def test_a_lone_request_takes_the_rooflines_time() -> None:
    """At one request a second, the first has the machine for itself."""
    first = served("continuous", rate=1, spread="same")[0]
    target, machine = catalog.model(DEPLOYED[0]), catalog.accelerator(DEPLOYED[1])
    prompt, output = first.job.prompt, first.job.output
    assert first.ttft_s == pytest.approx(target.step_time_s(machine, [prompt], [0]))
    decode = [target.step_time_s(machine, [1], [prompt + i]) for i in range(output - 1)]
    assert first.end_s - first.first_s == pytest.approx(sum(decode))
    # Memory is the limit of a lone decode step: the weights over the bandwidth, and a little cache.
    assert first.tpot_s == pytest.approx(target.read_bytes() / machine.memory_bandwidth, rel=0.02)


def test_the_waste_is_the_empty_area_of_the_chart() -> None:
    data = batching.compute(VISUALIZER.defaults())
    for policy in POLICIES:
        bars = data.rows[policy]
        held = sum(b["released"] - b["end"] for b in bars)
        rows_time = sum(b["released"] - b["start"] for b in bars)
        assert data.values[f"held_waste_{policy}"] == pytest.approx(held / rows_time, abs=2e-3)
    assert data.values["held_waste_continuous"] == 0
    # The chapter asks for the waste of the first static batch by hand: its formula agrees with the area.
    first = data.rows["static"][:8]
    area = sum(b["released"] - b["end"] for b in first) / sum(b["released"] - b["first"] for b in first)
    assert data.values["first_batch_waste"] == pytest.approx(area, abs=0.03)
    assert data.values["first_batch_waste"] == padding_waste([r["output"] for r in data.rows["requests"][:8]])


def test_the_figures_are_those_of_the_requests() -> None:
    data = batching.compute({**VISUALIZER.defaults(), "spread": "one-long", "rate": 16})
    rows = data.rows["requests"]
    for policy in POLICIES:
        ttft = sorted(r[f"ttft_{policy}"] for r in rows)
        assert data.values[f"ttft_p99_{policy}"] == pytest.approx(ttft[-1], abs=1e-4)  # rows are rounded
        assert data.values[f"ttft_median_{policy}"] == pytest.approx((ttft[11] + ttft[12]) / 2, abs=1e-4)
        rate = sum(r["output"] for r in rows) / data.values[f"end_{policy}"]
        assert data.values[f"tokens_per_s_{policy}"] == pytest.approx(rate, rel=1e-5)
    assert data.values["longest_output"] == 10 * data.values["shortest_output"]


def test_an_l4_is_slower_by_the_ratio_of_bandwidths() -> None:
    """A lone request decodes at the speed of the memory on either."""
    tpot = {name: serve("continuous", 1, "same", 4, "llama-3-8b", name)[0].tpot_s for name in ("h100-sxm", "l4")}
    ratio = catalog.accelerator("h100-sxm").memory_bandwidth / catalog.accelerator("l4").memory_bandwidth
    # On the L4 others join before the first has ended.
    assert tpot["l4"] / tpot["h100-sxm"] == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize("batch", [4, 8, 16])
def test_no_two_requests_are_drawn_in_one_row_of_the_batch_at_once(batch: int) -> None:
    data = batching.compute({**VISUALIZER.defaults(), "batch": str(batch)})
    for policy in POLICIES:
        lanes: dict[float, list[dict[str, float]]] = {}
        for bar in data.rows[policy]:
            lanes.setdefault(bar["top"], []).append(dict(bar))
        assert len(lanes) <= batch
        for of_lane in lanes.values():
            of_lane.sort(key=lambda bar: bar["start"])
            assert all(a["released"] <= b["start"] for a, b in pairwise(of_lane))


def test_the_line_goes_from_the_start_to_the_end_of_the_longest_run() -> None:
    for share in (0, 50, 100):
        data = batching.compute({**VISUALIZER.defaults(), "moment": share})
        longest = max(data.values[f"end_{policy}"] for policy in POLICIES)
        assert data.values["moment_s"] == pytest.approx(share / 100 * longest, abs=1e-3)
        for bar in (bar for policy in POLICIES for bar in data.rows[policy]):
            assert bar["share"] * bar["horizon"] / 100 == pytest.approx(data.rows["now"][0]["at"], rel=1e-3)
