"""Every figure of the handbook keeps the contract, at its defaults and at both ends of every input."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import pytest
from jsonschema import ValidationError

from visualizers import registry
from visualizers.contract import Choice
from visualizers.levels import charts, describe, printed
from visualizers.levels.cache import DataCache, default_folder
from visualizers.levels.instant import payload
from visualizers.levels.markdown import figure_markdown
from visualizers.levels.snapshot import Snapshot

ROOT = Path(__file__).parents[2]
NAMES = [stem.replace("_", "-") for stem in registry.stems()]
PAYLOAD_BYTES = 120_000  # compressed: 0.11 s of a link with 9 Mbit/s


@cache
def snapshot(name: str) -> Snapshot:
    visualizer = registry.get(name)
    return Snapshot(visualizer, DataCache(visualizer, default_folder()))


def states() -> list[Any]:
    """The defaults, and the defaults with one input at one of its ends."""
    cases = []
    for visualizer in registry.all():
        cases.append(pytest.param(visualizer.name, {}, id=f"{visualizer.name}"))
        for i in visualizer.inputs:
            cases += [
                pytest.param(visualizer.name, {i.name: end}, id=f"{visualizer.name}-{i.name}-{which}")
                for which, end in zip(("low", "high"), i.ends(), strict=True)
            ]
    return cases


# "1 tokens", "1 sequences": but a batch of 1 reads.
ONE_OF_MANY = re.compile(
    r"(?<![\d.,])1 (tokens|sequences|blocks|requests|steps|branches|copies|others|slots|preemptions)\b"
)


@pytest.mark.parametrize(("name", "inputs"), states())
def test_each_state_computes_draws_lists_and_says(name, inputs):
    figure = snapshot(name)
    state = figure.at(inputs)
    for width in (charts.WIDE, charts.NARROW):
        drawn = printed.svg(figure, state, width, "figure")
        assert "NaN" not in drawn
        assert re.search(r"<(path|rect|circle|line|text) ", drawn)
        assert printed.size(drawn)[0] <= width + 4  # the page scales the last pixels away
    assert printed.table_html(state.table, name).count("<tr>") == len(state.table.rows) + 1
    assert state.text()
    assert not re.search(r"\{\w+(\|\w+)?\}", state.text()), "a field of the sentence was not filled"
    for text in (state.text(), *(cell for row in state.table.texts() for cell in row)):
        assert not ONE_OF_MANY.search(text), f"{text}: write {{value|int?word:words}} in the sentence"
    json.dumps(describe.record(figure, state), allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_chart_is_valid_vega_lite(name):
    figure = snapshot(name)
    spec = figure.spec(figure.default)
    alt.Chart.from_dict(spec)
    with pytest.raises(ValidationError):  # which looks at all of it
        alt.Chart.from_dict({**spec, "config": {**spec["config"], "axisX": {"grid": "of iron"}}})


@pytest.mark.parametrize("name", NAMES)
def test_the_payload_is_small_enough_to_come_in_a_second(name):
    text = json.dumps(payload(snapshot(name)), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    assert len(gzip.compress(text.encode())) < PAYLOAD_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_the_twin_and_the_json_have_the_same_numbers(name):
    figure = snapshot(name)
    text = figure_markdown(figure, {}, page_url="https://book.example/")
    text = text[text.index("**Values here**") :]
    found = describe.record(figure, figure.default)
    for value in figure.visualizer.units:
        cell = re.search(rf"\| `{value}` \| (.*?) \|", text)[1]
        expected = found[value]
        if isinstance(expected, int | float) and not isinstance(expected, bool):
            assert float(cell) == float(f"{expected:.6g}" if expected != int(expected) else expected), value
        else:
            assert cell in ("yes", "no", "–") or cell == str(expected).replace("\n", " ").replace("|", "\\|")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_reader_is_told_is_there(name):
    visualizer = registry.get(name)
    assert visualizer.chapters
    assert visualizer.summary.endswith(".")
    for i in visualizer.inputs:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", i.name)
        assert i.label
        assert i.help.endswith(".")
        assert i.parse(i.default) == i.default
        assert [i.parse(end) for end in i.ends()] == list(i.ends())
        assert i.default in i.grid() or i.instant == "formula"
        if isinstance(i, Choice):
            assert all(i.options.values())
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", value) for value in visualizer.units)
    if visualizer.badge != "computed":
        assert visualizer.provenance, f"{name} is {visualizer.badge}: it says on what, and when"


@pytest.mark.parametrize("stem", registry.stems())
def test_a_stem_has_its_notebook_its_test_and_a_chapter(stem):
    assert (ROOT / "notebooks" / f"{stem}.py").is_file()
    assert (ROOT / "tests/visualizers" / f"test_{stem}.py").is_file()
    embed = re.compile(rf"^```figure\n{stem.replace('_', '-')}$", re.MULTILINE)
    pages = [p for p in (ROOT / "handbook").rglob("*.md") if embed.search(p.read_text(encoding="utf-8"))]
    assert pages, f"no chapter embeds {stem}"


def test_every_notebook_and_test_of_a_figure_has_its_module():
    derivations = {
        "arithmetic",
        "bench",
        "cache",
        "contract",
        "formats",
        "levels",
        "main",
        "palette",
        "registry",
        "snapshot",
        "words",
    }
    notebooks = {p.stem for p in (ROOT / "notebooks").glob("*.py")}
    tests = {p.stem.removeprefix("test_") for p in (ROOT / "tests/visualizers").glob("test_*.py")}
    assert notebooks <= set(registry.stems())
    assert tests - derivations <= set(registry.stems())


def test_every_embed_leads_to_a_figure():
    for page in (ROOT / "handbook").rglob("*.md"):
        for name in re.findall(r"^```figure\n([a-z0-9-]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert name in NAMES, f"{page}: there is no figure {name}"
