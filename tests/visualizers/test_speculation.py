"""The figure of drafts: an oracle meets the formula, outputs are what they were, numbers are those of the runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from minillm.backends.simulated import Weightless
from minillm.core.backend import Capacity
from minillm.costs import speculated_tokens
from minillm.speculate.draft import Ask, Draft, Drafter
from visualizers.contract import Data
from visualizers.figures import speculation
from visualizers.figures.speculation import KEPT, MEASURED, OWN, PROMPT, SHOWN, STRUCK, VISUALIZER
from visualizers.levels.words import measured
from visualizers.runs import bundled, speculation_run
from visualizers.runs.speculation_run import DRAFTERS, LENGTHS, Outcome, run, serve

PROMPTS = [[0] * 7] * 4
TOKENS = 500


class Oracle:
    """Knows that a backend without a model always draws 0, and drafts that with a chance, else 1."""

    cost_ratio = 0.0
    wants_hidden = False
    uses_slots = False

    def __init__(self, chance: float) -> None:
        self._chance = chance
        self._drawn = 1

    def start(self, capacity: Capacity) -> None:
        pass

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft([self._token() for _ in range(min(ask.max_tokens, ask.max_depth))]) for ask in asks]

    def forget(self, request_id: str) -> None:
        pass

    def _token(self) -> int:
        # A multiplicative generator: even numbers without a library's.
        self._drawn = self._drawn * 48271 % 2147483647
        return int(self._drawn / 2147483647 >= self._chance)


def without_a_model(drafter: Drafter | None, length: int) -> Outcome:
    return serve(Weightless(max_model_len=1024, vocab_size=2), PROMPTS, "greedy", drafter, length, TOKENS)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("chance", [0.0, 0.5, 0.8, 1.0])
def test_with_equal_chances_the_engine_yields_what_the_formula_says(chance: float, length: int) -> None:
    found = without_a_model(Oracle(chance), length)
    # Hundreds of drafts at least; the last one of each request is cut by the end of its output.
    assert found.tokens_per_draft == pytest.approx(speculated_tokens(chance, length), rel=0.06)
    assert found.tokens_per_step == pytest.approx(found.tokens_per_draft, rel=0.03)  # every step but the first drafts
    assert len(found.accepted_at) == length
    for place, share in enumerate(found.accepted_at, start=1):
        assert share == pytest.approx(chance**place, abs=0.06)


def test_a_run_without_drafts_counts_none() -> None:
    plain = without_a_model(None, 1)
    assert (plain.drafts, plain.drafted, plain.accepted, plain.accepted_at) == (0, 0, 0, ())
    assert plain.tokens_per_step == 1
    assert plain.outputs == ((0,) * TOKENS,) * len(PROMPTS)


@pytest.mark.parametrize("setting", ["greedy", "drawn"])
def test_the_real_models_write_the_same_with_every_drafter(setting: speculation_run.Setting) -> None:
    plain = run(setting, None)
    for drafter in DRAFTERS:
        found = run(setting, drafter, 4)
        assert found.outputs == plain.outputs
        assert sum(map(len, found.outputs)) == found.steps + found.accepted


def test_the_rule_that_weighs_chances_accepts_more() -> None:
    """What the chapter says: both are lossless, but one keeps the draft model's token far more often."""
    drawn, rejection = (run(setting, "draft", 1).accepted_at[0] for setting in ("drawn", "rejection"))
    assert rejection > 2 * drawn
    # The model card's chance that one token is kept, measured on held-out text.
    assert rejection == pytest.approx(0.587, abs=0.08)


def test_the_figure_is_what_the_runs_were() -> None:
    data = at()
    assert len(data.rows["drafters"]) == len(DRAFTERS) * len(LENGTHS)
    for drafter in DRAFTERS:
        found = run("greedy", drafter, 4)
        acceptance = run("greedy", drafter, 1).accepted_at[0]
        assert data.values[f"acceptance_{drafter}"] == acceptance
        assert data.values[f"tokens_{drafter}"] == 1 + found.accepted / found.drafts
        assert data.values[f"predicted_{drafter}"] == pytest.approx(sum(acceptance**i for i in range(5)))
        assert data.values[f"per_step_{drafter}"] == sum(map(len, found.outputs)) / found.steps
    assert data.values["same_tokens"] == data.values["compared_tokens"]
    assert "are those of the run without drafts" in VISUALIZER.sentence(data)
    assert "with the same chances" in VISUALIZER.sentence(at(setting="rejection", length=1))


def at(**inputs: object) -> Data:
    return speculation.compute({**VISUALIZER.defaults(), **inputs})


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("setting", ["greedy", "drawn", "rejection"])
def test_words_that_are_not_struck_are_the_answer(setting: speculation_run.Setting, drafter: str) -> None:
    for length in LENGTHS:
        data = at(setting=setting, drafter=drafter, length=length)
        words = data.rows["words"]
        answer = [w["text"] for w in words if w["kind"] in (OWN, KEPT)]
        output = run(setting, drafter, length).outputs[0]  # type: ignore[arg-type]
        assert answer == [measured(bundled.decode([t]))["text"] for t in output[: len(answer)]]
        assert SHOWN <= len(answer) <= SHOWN + length  # the last step is shown whole
        # A step is one group: kept words, then the struck rest of its draft, then one word of the target's own.
        steps = {w["group"] for w in words if w["kind"] != PROMPT}
        for step in steps:
            kinds = [w["kind"] for w in words if w["group"] == step]
            kept, struck = kinds.count(KEPT), kinds.count(STRUCK)
            assert kinds == [KEPT] * kept + [STRUCK] * struck + [OWN]
            assert kept + struck <= length
        assert data.values["shown_steps"] == len(steps)
        assert data.values["shown_kept"] + len(steps) == len(answer)


def test_the_line_of_the_drafter_has_its_runs_and_its_formula() -> None:
    data = at(drafter="ngram", length=8)
    lines = data.rows["lines"]
    assert [r["tokens"] for r in lines if r["line"] == MEASURED] == [
        round(run("greedy", "ngram", k).tokens_per_draft, 4) for k in LENGTHS
    ]
    assert [r["k"] for r in lines if r["now"]] == [8]
    ends = {r["line"]: r["tokens"] for r in lines}  # the last record of each line
    assert {r["line"]: r["tokens"] for r in data.rows["ends"]} == pytest.approx(ends, abs=1e-4)
