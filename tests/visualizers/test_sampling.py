"""The sampling figure against the engine's own sampler, in the states of its grid and beyond."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.core.sampling import SamplingParams, distribution
from visualizers.contract import InputError
from visualizers.figures import sampling as figure
from visualizers.figures.sampling import VISUALIZER
from visualizers.levels.snapshot import Snapshot
from visualizers.runs.next_token import SHOWN, cut, entropy_bits, logits_after

GRID = {i.name: i.grid() for i in VISUALIZER.inputs if i.instant == "grid"}


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return Snapshot(VISUALIZER)


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=1, max_size=40),
    temperature=st.sampled_from(GRID["temperature"][1:]),
    top_k=st.sampled_from([*GRID["top_k"], 2, 39]),
    top_p=st.sampled_from([*GRID["top_p"], 0.33]),
    min_p=st.sampled_from([*GRID["min_p"], 0.07]),
)
def test_the_cuts_are_the_engines(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    ranked = np.sort(np.array(logits))[::-1]
    weights = np.exp((ranked - ranked[0]) / temperature)
    left = cut(weights / weights.sum(), top_k, top_p, min_p)

    def wanted(**params: Any) -> list[float]:
        return [p for _, p in distribution(ranked.tolist(), SamplingParams(temperature=temperature, **params))]

    # Where a running sum meets top-p, or a probability the bar of min-p, to the last bit, rounding decides.
    by_top_k = np.array(wanted(top_k=top_k))
    if np.abs(np.cumsum(by_top_k) - top_p).min() < 1e-9 or np.abs(by_top_k / by_top_k[0] - min_p).min() < 1e-9:
        return
    assert left.after_top_k == len(by_top_k)
    assert left.after_top_p == len(wanted(top_k=top_k, top_p=top_p))
    final = wanted(top_k=top_k, top_p=top_p, min_p=min_p)
    assert left.after_min_p == len(final)
    np.testing.assert_allclose(left.final, final, rtol=1e-12)


def test_states_of_the_grid_are_what_the_engine_draws_from(snapshot: Snapshot) -> None:
    """Every seventh state, with the reference over the real logits."""
    ranked = logits_after(figure.PROMPT).ranked.tolist()
    for values in list(itertools.product(*GRID.values()))[::7][:120]:
        inputs = dict(zip(GRID, values, strict=True))
        params = SamplingParams(**{**inputs, "top_k": int(inputs["top_k"])})
        wanted = distribution(ranked, params)
        found = snapshot.at(inputs).data
        assert found.values["candidates"] == len(wanted), inputs
        shown = {row["rank"]: row["after"] for row in found.rows["tokens"]}
        for rank, probability in wanted[:SHOWN]:
            assert shown[rank + 1] == pytest.approx(probability, rel=1e-5)
        assert shown[SHOWN + 1] == pytest.approx(sum(p for _, p in wanted[SHOWN:]), abs=1e-5)


def test_the_logits_are_the_models_own() -> None:
    """The same next token as the engine's greedy answer."""
    from minillm.llm import LLM

    llm = LLM(figure.MODEL, backend="numpy")
    done = llm.generate(figure.PROMPT, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))[0]
    assert done.text.replace(" ", "·") == logits_after(figure.PROMPT).texts[0]


def test_limits(snapshot: Snapshot) -> None:
    greedy = snapshot.at({"temperature": 0}).data
    assert greedy.values["candidates"] == 1
    assert greedy.values["top_probability"] == 1
    assert greedy.values["entropy_bits"] == 0
    everything = snapshot.at({"top_p": 1, "top_k": 0, "min_p": 0}).data
    assert everything.values["candidates"] == everything.values["vocabulary"] == 4096
    assert everything.values["kept_mass"] == pytest.approx(1)
    assert everything.values["entropy_bits"] == everything.values["entropy_before_bits"]
    assert all(row["before"] == row["after"] for row in everything.rows["tokens"])


def test_the_cut_stands_where_the_candidates_end(snapshot: Snapshot) -> None:
    bites = set()
    for state in snapshot.states[::13]:
        data = state.state.data
        (cut_row,) = data.rows["cut"]
        assert cut_row["rank"] == data.values["candidates"]
        assert cut_row["mass"] == data.values["kept_mass"]
        line = data.rows["line"]
        assert line[-1]["mass"] == 1
        assert all(a["mass"] <= b["mass"] for a, b in itertools.pairwise(line))
        # The line of a rank lies between its neighbours' wherever the cut stands.
        around = [r["mass"] for r in line if r["rank"] <= cut_row["rank"]][-1]
        assert around <= cut_row["mass"] + 1e-9
        rules = data.rows["rules"]
        assert min((r["rank"] for r in rules), default=cut_row["rank"]) == cut_row["rank"]
        bites |= {r["rule"] for r in rules}
        for column in ("before", "after"):
            assert sum(row[column] for row in data.rows["tokens"]) == pytest.approx(1, abs=1e-5)
    assert bites == {"top-k", "top-p", "min-p"}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_where_the_cut_is_dragged_to_it_stands(snapshot: Snapshot, temperature: float) -> None:
    """A stop of the drag is where the cut then is, as long as min-p is off."""
    stops = {r["top_p"]: r for r in snapshot.at({"temperature": temperature}).data.rows["stops"]}
    assert tuple(stops) == GRID["top_p"]
    for top_p, stop in stops.items():
        (found,) = snapshot.at({"temperature": temperature, "top_p": top_p}).data.rows["cut"]
        assert (found["rank"], found["mass"]) == (stop["rank"], stop["mass"])


def test_every_state_draws_with_one_chart(snapshot: Snapshot) -> None:
    assert len(snapshot.states) == math.prod(len(v) for v in GRID.values()) <= 3000
    assert len({json.dumps(s.spec, sort_keys=True) for s in snapshot.states[::50]}) == 1
    assert all("{" not in s.state.text() for s in snapshot.states[::50])


@pytest.mark.parametrize("prompt", ["a", "\U0001f600" * figure.MAX_CHARACTERS, "x {y} | <b>", "  \n "[:2] + "z"])
def test_prompts_that_a_reader_types(snapshot: Snapshot, prompt: str) -> None:
    state = snapshot.at({"prompt": prompt, "temperature": 0.7})
    assert prompt in state.text()
    tokens = [row["token"] for row in state.data.rows["tokens"]]
    assert len(set(tokens)) == SHOWN + 1
    assert state.data.values["prompt_tokens"] <= 1024


def test_entropy() -> None:
    assert entropy_bits(np.full(8, 0.125)) == 3
    assert entropy_bits(np.array([1.0, 0.0])) == 0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"temperature": -1}, "--temperature -1 is outside 0 to 2"),
        ({"top_p": 0}, r"--top_p 0 is outside 0\.1"),
        ({"top_k": 2.5}, "--top_k 2.5 is not a whole number"),
        ({"prompt": " "}, "--prompt is empty"),
        ({"prompt": "x" * 251}, "--prompt has 251 characters, the limit is 250"),
    ],
)
def test_bad_input(snapshot: Snapshot, raw: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        snapshot.at(raw)
