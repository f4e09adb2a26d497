"""Three batching policies on one list of requests: who waits, who runs, and which rows stand empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any

import altair as alt

from minillm.costs.batching import padding_waste
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, colour_scale, constant, rows, spec
from visualizers.palette import colour
from visualizers.runs import batching_run
from visualizers.runs.batching_run import NUM_REQUESTS, POLICIES, Served

MODEL = "llama-3-8b"
TITLES = {"static": "Static", "dynamic": "Dynamic", "continuous": "Continuous"}
WAITS, PREFILL, DECODE, HELD = "waits", "prefill, to the first token", "decode", "row held after the end"
KINDS = {WAITS: "waiting", PREFILL: "prefill", DECODE: "decode", HELD: "free"}
ROW_HEIGHT = 7  # pixels of a request


def compute(inputs: Mapping[str, Any]) -> Data:
    """The workload through each policy: times of every request, and what they amount to."""
    asked = (inputs["rate"], inputs["spread"], int(inputs["batch"]), MODEL, inputs["accelerator"])
    served: dict[str, Sequence[Served]] = {policy: batching_run.serve(policy, *asked) for policy in POLICIES}
    jobs = [s.job for s in served["static"]]
    # Requests join in order of arrival, so the first static batch are the first ones of the list.
    first_batch = [job.output for job in jobs[: int(inputs["batch"])]]
    values: dict[str, Any] = {
        "requests": len(jobs),
        "output_tokens": sum(job.output for job in jobs),
        "shortest_output": min(job.output for job in jobs),
        "longest_output": max(job.output for job in jobs),
        "first_batch_waste": padding_waste(first_batch),
    }
    for policy, those in served.items():
        values |= {f"{name}_{policy}": value for name, value in _figures(those).items()}
    values["speedup"] = values["tokens_per_s_continuous"] / values["tokens_per_s_static"]
    found: dict[str, Sequence[Mapping[str, Any]]] = {
        policy: [_bar(i, s) for i, s in enumerate(those)] for policy, those in served.items()
    }
    found["notes"] = [{"policy": policy, "title": TITLES[policy], "note": _note(values, policy)} for policy in POLICIES]
    found["requests"] = [_request(i, served) for i in range(len(jobs))]
    return Data(values, found)


def _figures(served: Sequence[Served]) -> dict[str, float]:
    """Latencies and throughput of one policy. The 99th percentile of so few requests is the slowest."""
    ttft = sorted(s.ttft_s for s in served)
    held = sum(s.released_s - s.end_s for s in served)
    end = max(s.end_s for s in served)
    found = {
        "ttft_median": median(ttft),
        "ttft_p99": ttft[-(-99 * len(ttft) // 100) - 1],
        "tpot": median(s.tpot_s for s in served),
        "e2e_median": median(s.end_s - s.job.arrival_s for s in served),
        "tokens_per_s": sum(s.job.output for s in served) / (end - served[0].job.arrival_s),
        "end": end,
        "held_waste": held / sum(s.released_s - s.start_s for s in served),
    }
    return {name: round(value, 6) for name, value in found.items()}


def _bar(number: int, s: Served) -> dict[str, Any]:
    times = (s.job.arrival_s, s.start_s, s.first_s, s.end_s, s.released_s)
    arrival, start, first, end, released = (round(t, 3) for t in times)
    return {"row": number, "arrival": arrival, "start": start, "first": first, "end": end, "released": released}


def _note(values: Mapping[str, Any], policy: str) -> str:
    median_s, rate = values[f"ttft_median_{policy}"], values[f"tokens_per_s_{policy}"]
    return f"median TTFT {median_s * 1000:,.0f} ms, {rate:,.0f} tokens/s"


def _request(number: int, served: Mapping[str, Sequence[Served]]) -> dict[str, Any]:
    job = served["static"][number].job
    found: dict[str, Any] = {
        "request": number + 1,
        "arrival": job.arrival_s,
        "prompt": job.prompt,
        "output": job.output,
    }
    for policy, those in served.items():  # to 0.1 ms: modelled time says no more, and a page loads less
        s = those[number]
        found |= {f"ttft_{policy}": round(s.ttft_s, 4), f"e2e_{policy}": round(s.end_s - job.arrival_s, 4)}
    return found


def figure(data: Data) -> Spec:
    """A Gantt chart for each policy, on one axis of time."""
    return _chart()


@cache
def _chart() -> Spec:
    """The chart is the same in every state: it is built once."""
    last = POLICIES[-1]
    charts = [_gantt(policy, legend=policy == POLICIES[0], axis=policy == last) for policy in POLICIES]
    return spec(alt.vconcat(*charts, spacing=10).resolve_scale(x="shared", color="shared"))


def _gantt(policy: str, *, legend: bool, axis: bool) -> Any:
    scale = alt.Scale(domain=[-0.6, NUM_REQUESTS - 0.4], reverse=True, nice=False, zero=False)
    y = alt.Y("row:Q", scale=scale, axis=None)
    bars = alt.Chart(rows(policy))
    x_axis = alt.Axis(title="time (s)") if axis else alt.Axis(labels=False, ticks=False, title=None)

    def part(start: str, end: str, kind: str, height: int) -> Any:
        colours = alt.Color(
            "kind:N",
            scale=colour_scale(KINDS),
            legend=alt.Legend(values=list(KINDS)) if legend else None,
        )
        return (
            bars.transform_calculate(kind=f"'{kind}'")
            .mark_bar(height=height)
            .encode(x=alt.X(f"{start}:Q", axis=x_axis), x2=f"{end}:Q", y=y, color=colours)
        )

    def heading(**look: Any) -> Any:
        of_policy = alt.Chart(rows("notes")).transform_filter(f"datum.policy == '{policy}'")
        return of_policy.mark_text(baseline="bottom", **look)

    above = constant(alt.YValue, -6)
    name = heading(align="left", fontSize=13, fontWeight="bold").encode(
        x=constant(alt.XValue, 0), y=above, text="title:N"
    )
    note = heading(align="right", fontSize=11, color=colour("muted")).encode(
        x=constant(alt.XValue, "width"), y=above, text="note:N"
    )
    # A thin line waits, a full bar runs, a half one is held for nothing: the heights say it without colour.
    return alt.layer(
        part("arrival", "start", WAITS, 2),
        part("end", "released", HELD, 4),
        part("start", "first", PREFILL, ROW_HEIGHT - 1),
        part("first", "end", DECODE, ROW_HEIGHT - 1),
        name,
        note,
        height=NUM_REQUESTS * ROW_HEIGHT,
    )


def table(data: Data) -> Table:
    """The requests with their lengths, and when each policy answered them."""
    times = [
        column
        for policy in POLICIES
        for column in (
            Column(f"ttft_{policy}", f"TTFT {policy}", "", "seconds"),
            Column(f"e2e_{policy}", f"end to end {policy}", "", "seconds"),
        )
    ]
    return Table(
        (
            Column("request", "Request", "", "int"),
            Column("arrival", "Arrives", "s", "fixed3"),
            Column("prompt", "Prompt", "tokens", "int"),
            Column("output", "Answer", "tokens", "int"),
            *times,
        ),
        data.rows["requests"],
    )


def sentence(data: Data) -> str:
    """Latency, throughput and waste, policy against policy."""
    return (
        "The median request has its first token after {ttft_median_continuous|seconds} with continuous batching, "
        "{ttft_median_dynamic|seconds} with dynamic and {ttft_median_static|seconds} with static; the machine puts out "
        "{tokens_per_s_continuous|int}, {tokens_per_s_dynamic|int} and {tokens_per_s_static|int} tokens/s. Of the time "
        "that static batching holds its rows, {held_waste_static|percent} is spent on answers that have ended."
    )


def provenance() -> str:
    """What is modelled, and what is not."""
    return (
        f"The scheduler is the engine's own. A step lasts as long as the roofline says: {MODEL} in bf16, the longer of "
        "its bytes over the bandwidth and its FLOPs over the peak; nothing for the host, launches or sampling. "
        f"{NUM_REQUESTS} requests with Poisson arrivals, prompts of {batching_run.PROMPTS[0]} to "
        f"{batching_run.PROMPTS[1]} tokens; dynamic batching waits {batching_run.WINDOW_S * 1000:.0f} ms at most."
    )


_PER_POLICY = {
    "ttft_median": "s",
    "ttft_p99": "s",
    "tpot": "s",
    "e2e_median": "s",
    "tokens_per_s": "tokens/s",
    "end": "s",
    "held_waste": "",
}

VISUALIZER = Visualizer(
    name="batching",
    title="Static, dynamic and continuous batching",
    badge="simulated",
    chapters=("6.1",),
    summary="One list of requests through three batching policies of the same scheduler, in modelled time.",
    formula="step time = max(bytes / bandwidth, FLOPs / peak); TPOT = (end - first token) / (tokens - 1)",
    inputs=(
        Number(
            "rate",
            "Arrivals",
            "requests/s",
            32,
            1,
            32,
            "How many requests arrive in a second, at random.",
            instant="grid",
            stops=(1, 4, 16, 32),
        ),
        Choice(
            "spread",
            "Lengths of answers",
            "mixed",
            {"same": "all the same", "mixed": "mixed", "one-long": "one ten times as long"},
            "How the lengths of the answers differ.",
        ),
        Choice("batch", "Largest batch", "8", {"4": "4", "8": "8", "16": "16"}, "Requests at once.", unit="requests"),
        Choice(
            "accelerator",
            "Accelerator",
            "h100-sxm",
            {"h100-sxm": "H100 SXM", "l4": "L4"},
            "Whose bandwidth and peak time the steps.",
        ),
    ),
    units={
        "requests": "requests",
        "output_tokens": "tokens",
        "shortest_output": "tokens",
        "longest_output": "tokens",
        "first_batch_waste": "",
        **{f"{name}_{policy}": unit for policy in POLICIES for name, unit in _PER_POLICY.items()},
        "speedup": "",
    },
    compute=compute,
    figure=figure,
    table=table,
    sentence=sentence,
    provenance=provenance,
    source=("minillm.core.scheduler", "minillm.core.policy", "minillm.costs.roofline"),
)
