"""Three batching policies on one list of requests: the rows of the batch over time, who holds them and who waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any

import altair as alt

from minillm.costs.batching import padding_waste
from visualizers.contract import Choice, Column, Data, Number, Table, Visualizer
from visualizers.levels.charts import Spec, colour_scale, constant, either, rows, spec
from visualizers.levels.links import linked, linker
from visualizers.palette import colour
from visualizers.runs import batching_run
from visualizers.runs.batching_run import NUM_REQUESTS, POLICIES, Served

MODEL = "llama-3.1-8b"
TITLES = {"static": "Static", "dynamic": "Dynamic", "continuous": "Continuous"}
WAITS, PREFILL, DECODE, HELD = "waiting", "prefill", "decode", "answered, row held"
KINDS = {WAITS: "waiting", PREFILL: "prefill", DECODE: "decode", HELD: "free"}
BATCH_HEIGHT, QUEUE_HEIGHT = 104, 26  # pixels of all rows of a batch, and of everybody waiting
_NOW = "(datum.share * datum.horizon / 100)"  # where the line stands
NAMED = 0.045  # of the axis: the shortest bar that has room for its number


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
    horizon = max(values[f"end_{policy}"] for policy in POLICIES)
    now = round(horizon / 100, 6) * inputs["moment"]
    values["moment_s"] = now
    slots = {policy: batching_run.slots(those) for policy, those in served.items()}
    found: dict[str, Sequence[Mapping[str, Any]]] = {
        policy: [
            {**_bar(i, s), **_lane(slots[policy][i], asked[2]), "share": inputs["moment"], "horizon": horizon}
            for i, s in enumerate(those)
        ]
        for policy, those in served.items()
    }
    found["now"] = [{"at": now}]
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
    return {
        "group": str(number + 1),
        "arrival": arrival,
        "start": start,
        "first": first,
        "end": end,
        "released": released,
    }


def _lane(slot: int, batch: int) -> dict[str, float]:
    """Where a row of the batch is drawn: shares of the height that all rows have together."""
    return {"top": round(slot / batch, 4), "high": round(0.86 / batch, 4)}


def _note(values: Mapping[str, Any], policy: str) -> str:
    median_s, rate = values[f"ttft_median_{policy}"], values[f"tokens_per_s_{policy}"]
    return f"TTFT {median_s * 1000:,.0f} ms, {rate:,.0f} tokens/s"


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
        found |= {f"ttft_{policy}": round(s.ttft_s, 4), f"e2e_{policy}": round(s.end_s - job.arrival_s, 3)}
    return found


def figure(data: Data) -> Spec:
    """The rows of the batch under each policy, on one axis of time, with a line where the moment is."""
    return _chart()


@cache
def _chart() -> Spec:
    """The chart is the same in every state: it is built once."""
    charts = [view for policy in POLICIES for view in (_batch(policy), _queue(policy))]
    return spec(alt.vconcat(*charts, spacing=3).resolve_scale(x="shared", color="shared"))


def _batch(policy: str) -> Any:
    """A lane for each row of the batch: whose answer it computes, and for how long it is held for nothing."""
    lanes = alt.Scale(domain=[0, 1], reverse=True, nice=False)
    at_now = f"datum.start <= {_NOW} && {_NOW} < datum.released"
    bars = alt.Chart(rows(policy))

    def part(start: str, end: str, kind: str) -> Any:
        return (
            bars.transform_calculate(kind=f"'{kind}'", bottom="datum.top + datum.high")
            .mark_rect()
            .encode(
                x=_time(start),
                x2=f"{end}:Q",
                y=alt.Y("top:Q", scale=lanes, axis=None),
                y2="bottom:Q",
                color=_kind(legend=policy == POLICIES[0]),
                opacity=either(alt.OpacityValue, at_now, 1, 0.6),
            )
        )

    numbers = (
        bars.transform_filter(f"datum.released - datum.start > {NAMED} * datum.horizon")
        .transform_calculate(middle="datum.top + datum.high / 2")
        .mark_text(align="left", dx=3, fontSize=10, fontWeight="bold")
        .encode(
            x=_time("start"),
            y=alt.Y("middle:Q", axis=None),
            text="group:N",
            color=either(alt.ColorValue, at_now, colour("page"), colour("text")),
        )
    )
    held = part("end", "released", HELD)
    layers = [held, part("start", "first", PREFILL), part("first", "end", DECODE)]
    # A request that is pointed at has a line around it under every policy.
    targets = (
        bars.transform_calculate(bottom="datum.top + datum.high")
        .mark_rect(fill="transparent", strokeWidth=2)
        .encode(
            x=_time("start"),
            x2="released:Q",
            y=alt.Y("top:Q", scale=lanes, axis=None),
            y2="bottom:Q",
            stroke=linked(),
        )
    )
    return alt.layer(*layers, numbers, _now(), _heading(policy), linker(targets, policy), height=BATCH_HEIGHT)


def _queue(policy: str) -> Any:
    """How many wait: each arrival adds one, each start takes one away."""
    last = policy == POLICIES[-1]
    axis = alt.Axis(title="seconds") if last else alt.Axis(labels=False, ticks=False, title=None, domain=False)
    steps = (
        alt.Chart(rows(policy))
        .transform_fold(["arrival", "start"], as_=["what", "time"])
        .transform_calculate(change="datum.what === 'arrival' ? 1 : -1", kind=f"'{WAITS}'")
        .transform_window(waiting="sum(change)", sort=[alt.SortField("time"), alt.SortField("change")])
    )
    y = alt.Y("waiting:Q", axis=None, stack=None, scale=alt.Scale(domain=[0, NUM_REQUESTS], nice=False))
    area = steps.mark_area(interpolate="step-after").encode(x=_time("time", axis), y=y, color=_kind())
    notes = alt.Chart(rows("notes")).transform_filter(f"datum.policy == '{policy}'")
    note = notes.mark_text(baseline="bottom", align="right", fontSize=11, color=colour("muted")).encode(
        x=constant(alt.XValue, "width"), y=constant(alt.YValue, QUEUE_HEIGHT - 3), text="note:N"
    )
    return alt.layer(area, _now(axis), note, height=QUEUE_HEIGHT)


def _kind(*, legend: bool = False) -> Any:
    return alt.Color("kind:N", scale=colour_scale(KINDS), legend=alt.Legend(values=list(KINDS)) if legend else None)


def _time(field: str, axis: Any = None) -> Any:
    return alt.X(f"{field}:Q", axis=axis, scale=alt.Scale(nice=False))


def _now(axis: Any = None) -> Any:
    return alt.Chart(rows("now")).mark_rule(color=colour("text"), strokeWidth=1.5).encode(x=_time("at", axis))


def _heading(policy: str) -> Any:
    """The policy's name, with what its rows do at the moment."""
    works = f"datum.start <= {_NOW} && {_NOW} < datum.end ? 1 : 0"
    holds = f"datum.end <= {_NOW} && {_NOW} < datum.released ? 1 : 0"
    waits = f"datum.arrival <= {_NOW} && {_NOW} < datum.start ? 1 : 0"
    now = (
        alt.Chart(rows(policy))
        .transform_calculate(works=works, holds=holds, waits=waits)
        .transform_aggregate(works="sum(works)", holds="sum(holds)", waits="sum(waits)")
        .transform_calculate(
            said=f"'{TITLES[policy]}: ' + datum.works + (datum.works === 1 ? ' row answers' : ' rows answer') + "
            "(datum.holds ? ', ' + datum.holds + ' held' : '') + ', ' + datum.waits + "
            "(datum.waits === 1 ? ' waits' : ' wait')"
        )
    )
    return now.mark_text(baseline="bottom", align="left", fontSize=13, fontWeight="bold").encode(
        x=constant(alt.XValue, 0), y=constant(alt.YValue, -5), text="said:N"
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
            "moment",
            "Moment",
            "% of the run",
            24,
            0,
            100,
            "Where the line stands, as a share of the longest of the three runs.",
            step=2,
            play=True,
        ),
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
            more=True,
        ),
        Choice(
            "spread",
            "Lengths of answers",
            "mixed",
            {"same": "all the same", "mixed": "mixed", "one-long": "one ten times as long"},
            "How the lengths of the answers differ.",
        ),
        Choice(
            "batch",
            "Largest batch",
            "8",
            {"4": "4", "8": "8", "16": "16"},
            "Requests at once.",
            unit="requests",
            more=True,
        ),
        Choice(
            "accelerator",
            "Accelerator",
            "h100-sxm",
            {"h100-sxm": "H100 SXM", "l4": "L4"},
            "Whose bandwidth and peak time the steps.",
            more=True,
        ),
    ),
    units={
        "moment_s": "s",
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
    source=("minillm.core.scheduler", "minillm.core.policies.batching", "minillm.costs.roofline"),
)
