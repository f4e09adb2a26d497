"""What a comparison of two engines says: medians with their spread, and whether a difference is larger than that."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from visualizers.desk.record import COLUMNS, Lane, Record
from visualizers.formats import format_value

ENOUGH_ROUNDS = 3  # measured runs of which a spread can be told
HELD_BYTES = COLUMNS.index("held")
_PREFILL, _DRAFTED, _ACCEPTED = (COLUMNS.index(name) for name in ("prefill", "drafted", "accepted"))
_SAME = 0.005  # relative difference below which nothing is said to be better


@dataclass(frozen=True)
class Metric:
    """A number of a whole run: ``better`` is the direction that a reader wants; neither is where there is none."""

    name: str
    label: str
    format: str
    better: str  # lower, higher or neither


METRICS = {
    m.name: m
    for m in (
        Metric("ttft_s", "time to first token", "seconds", "lower"),
        Metric("itl_s", "gap between tokens", "seconds", "lower"),
        Metric("itl_p99_s", "99th percentile of the gaps", "seconds", "lower"),
        Metric("e2e_s", "arrival to end", "seconds", "lower"),
        Metric("tokens_per_s", "tokens a second", "sig3", "higher"),
        Metric("tokens_per_step", "tokens a request and step", "sig3", "higher"),
        Metric("kv_peak_bytes", "KV memory at its peak", "bytes", "lower"),
        Metric("preemptions", "preemptions", "int", "lower"),
        Metric("prefill_tokens", "tokens computed in prefill", "int", "lower"),
        Metric("hit_rate", "prompt tokens found in the cache", "percent", "higher"),
        Metric("acceptance", "drafted tokens that were kept", "percent", "higher"),
        Metric("variety", "answers to the same prompt that differ", "percent", "neither"),
        Metric("valid_json", "answers that are JSON", "percent", "higher"),
    )
}


def of_record(record: Record) -> dict[str, float]:
    """The metrics of one run; those it has no values for are left out. Refused requests don't count."""
    lanes = [lane for lane in record.lanes.values() if lane.status != "refused"]
    tokens = sum(lane.output_tokens for lane in lanes)
    prompts = sum(lane.prompt_tokens for lane in lanes)
    ttfts = [lane.ttft_s for lane in lanes if lane.ttft_s is not None]
    ends = [lane.last_token_s - lane.arrival_s for lane in lanes if lane.status == "done" and lane.last_token_s]
    gaps = sorted(ms / 1e3 for _, ms, _ in record.gaps)
    found = {"preemptions": float(sum(lane.preemptions for lane in lanes))}
    if lanes and record.rows and tokens:
        duration_s = record.rows[-1][1] - min(lane.arrival_s for lane in lanes)
        found["tokens_per_s"] = tokens / duration_s if duration_s > 0 else 0.0
        found["tokens_per_step"] = tokens / (len(ttfts) + sum(lane.gaps for lane in lanes))
        found["kv_peak_bytes"] = float(max(row[HELD_BYTES] for row in record.rows))
        found["prefill_tokens"] = float(sum(row[_PREFILL] for row in record.rows))
        found["hit_rate"] = sum(lane.cached_tokens for lane in lanes) / prompts if prompts else 0.0
    drafted = sum(row[_DRAFTED] for row in record.rows)
    if drafted:
        found["acceptance"] = sum(row[_ACCEPTED] for row in record.rows) / drafted
    found |= _of_texts([lane for lane in lanes if lane.status == "done" and lane.text])
    if ttfts:
        found["ttft_s"] = median(ttfts)
    if gaps:
        found["itl_s"], found["itl_p99_s"] = median(gaps), gaps[min(int(0.99 * len(gaps)), len(gaps) - 1)]
    if ends:
        found["e2e_s"] = median(ends)
    return found


def _of_texts(lanes: Sequence[Lane]) -> dict[str, float]:
    """Of the answers that are whole, where a model writes any."""
    found: dict[str, float] = {}
    answers = Counter(lane.prompt for lane in lanes)
    again = [lane for lane in lanes if answers[lane.prompt] > 1]
    if again:
        different = {(lane.prompt, lane.text) for lane in again}
        found["variety"] = len(different) / len(again)
    if lanes:
        found["valid_json"] = sum(_is_json(lane.text) for lane in lanes) / len(lanes)
    return found


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Compared:
    """One metric of both sides: the median over rounds with the least and the greatest."""

    metric: Metric
    a: tuple[float, float, float]  # median, least, greatest
    b: tuple[float, float, float]
    winner: str  # A, B, or nothing where they are the same
    clear: bool | None  # whether the spreads don't touch; None where too few rounds were run to say so

    def told(self) -> dict[str, Any]:
        return {
            "name": self.metric.name, "label": self.metric.label, "winner": self.winner, "clear": self.clear,
            "a": self._cell(self.a), "b": self._cell(self.b), "factor": format_value(self.factor, "sig3"),
        }  # fmt: skip

    @property
    def factor(self) -> float:
        """How many times the greater median is the smaller one; 0 where the smaller is 0."""
        low, high = sorted([self.a[0], self.b[0]])
        return high / low if low > 0 else 0.0

    def _cell(self, values: tuple[float, float, float]) -> dict[str, Any]:
        middle, low, high = (format_value(v, self.metric.format) for v in values)
        return {"median": middle, "spread": "" if low == high else f"{low} to {high}", "values": list(values)}


def compare(
    rounds_a: Sequence[dict[str, float]], rounds_b: Sequence[dict[str, float]], *, measured: bool
) -> list[Compared]:
    """All metrics that both sides have. ``measured`` times differ from run to run, modelled ones don't."""
    found = []
    for name, metric in METRICS.items():
        a, b = ([r[name] for r in rounds if name in r] for rounds in (rounds_a, rounds_b))
        if not a or not b or not any([*a, *b]):  # nothing of the kind on either side
            continue
        ours, theirs = ((median(v), min(v), max(v)) for v in (a, b))
        difference = abs(ours[0] - theirs[0])
        if difference <= _SAME * max(ours[0], theirs[0]):
            winner = ""
        else:
            winner = "A" if (ours[0] < theirs[0]) == (metric.better == "lower") else "B"
        if not winner and metric.better == "neither":
            continue
        clear: bool | None = ours[2] < theirs[1] or theirs[2] < ours[1]
        if measured and min(len(a), len(b)) < ENOUGH_ROUNDS:
            clear = None
        found.append(Compared(metric, ours, theirs, winner, clear))
    return found


def sentence(compared: Sequence[Compared], name: str, told_a: str, told_b: str, rounds: int) -> str:
    """Which side won by the metric ``name``, by how much, and whether that is more than the spread."""
    one = next((c for c in compared if c.metric.name == name), None) or next(iter(compared), None)
    if one is None:
        return "Nothing to compare yet: no request has ended on both sides."
    a, b = (format_value(v[0], one.metric.format) for v in (one.a, one.b))
    both = f"{one.metric.label}: {a} in A ({told_a}), {b} in B ({told_b})"
    if not one.winner:
        return f"No difference. {both[0].upper()}{both[1:]}."
    times = f", {format_value(one.factor, 'sig3')} times apart" if one.factor >= 1.05 else ""
    if not rounds:
        noise = " The run goes on."
    elif one.clear is None:
        noise = f" Whether that is more than chance, {ENOUGH_ROUNDS} rounds of the same requests will tell."
    elif one.clear:
        noise = " The difference is larger than the spread." if rounds > 1 else " Modelled time has no spread."
    else:
        noise = " The difference is within the spread of the rounds, so it says nothing."
    verdict = f"More in {one.winner}" if one.metric.better == "neither" else f"{one.winner} wins"
    return f"{verdict}. {both[0].upper()}{both[1:]}{times}.{noise}"
