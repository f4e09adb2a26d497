"""The figure of structured output against the engine: its outputs, its masks asked token by token, its speeds."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft202012Validator

from minillm.core.sampling import SamplingParams
from visualizers.contract import InputError
from visualizers.figures import structured_output as figure
from visualizers.figures.structured_output import VISUALIZER
from visualizers.levels.snapshot import Snapshot
from visualizers.runs.next_token import model, visible
from visualizers.runs.structured_run import END, GRAMMARS, MAX_TOKENS, SEED, SHOWN, grammar, moments


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return Snapshot(VISUALIZER)


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_output_is_the_engines_and_matches(name: str) -> None:
    from minillm.llm import LLM

    source = GRAMMARS[name]
    llm = LLM(figure.MODEL, backend="numpy")
    compiled = llm.compile_grammar(source.kind, source.text)
    params = SamplingParams(temperature=1, seed=SEED, max_tokens=source.max_tokens, grammar=compiled)
    (done,) = llm.generate(source.prompt, params)
    found = moments(name)
    assert found[-1].so_far == done.text
    assert found[-1].drawn in ("", END)
    if name == "schema":
        Draft202012Validator(source.text).validate(json.loads(done.text))
    elif name == "regex":
        assert re.fullmatch(source.text, done.text)
    else:
        assert done.text.count("(") == done.text.count(")")


@pytest.mark.parametrize("name", GRAMMARS)
def test_each_mask_is_that_of_asking_about_every_token(name: str) -> None:
    compiled, tokenizer = grammar(name), model().tokenizer
    state, left = compiled.start(), MAX_TOKENS
    for moment in moments(name)[:-1]:
        after = {i: compiled.advance(state, i) for i in range(compiled.vocab_size)}
        reached = {i: place for i, place in after.items() if place is not None}
        assert moment.num_allowed_by_grammar == len(reached)
        within = [i for i, place in reached.items() if compiled.tokens_to_finish(place) < left]
        assert moment.num_allowed == len(within)
        assert moment.tokens_left == left
        assert sum(token.after for token in moment.tokens) == pytest.approx(1)
        assert sum(token.before for token in moment.tokens) == pytest.approx(1)
        assert sum(token.before for token in moment.tokens if token.is_allowed) == pytest.approx(moment.kept_mass)
        assert all(token.after == 0 for token in moment.tokens if not token.is_allowed)
        if moment.drawn == END:
            break
        drawn = [i for i in within if visible(tokenizer.token_bytes(i)) == moment.drawn]
        state, left = reached[drawn[0]], left - 1


def test_the_budget_is_felt_and_something_is_forced() -> None:
    found = moments("schema")
    assert any(moment.num_allowed < moment.num_allowed_by_grammar for moment in found)
    assert any(moment.num_allowed == 1 for moment in found)
    assert {moment.depth for moment in found} >= {1, 2}


def test_states_of_the_grid(snapshot: Snapshot) -> None:
    assert len(snapshot.states) == len(GRAMMARS) * (MAX_TOKENS + 1)
    assert len({json.dumps(state.spec, sort_keys=True) for state in snapshot.states[::20]}) == 1
    for state in snapshot.states[::9]:
        data = state.state.data
        assert not re.search(r"\{[a-z_]+(\|\w+)?\}", state.state.text().replace(data.values["so_far"], ""))
        tokens = [row["token"] for row in data.rows["tokens"]]
        assert len(set(tokens)) == len(tokens) <= 2 * SHOWN + 2
        assert [row["now"] for row in data.rows["steps"]].index(1) == data.values["written_tokens"]


def test_beyond_the_end_the_output_is_over(snapshot: Snapshot) -> None:
    last = snapshot.at({"grammar": "regex", "written": MAX_TOKENS}).data.values
    assert last["written_tokens"] == last["output_tokens"] == len(moments("regex")) - 1
    assert last["next_words"] == "the output is over"


def test_speeds_are_those_of_the_record() -> None:
    record = figure.measured()
    assert record["command"].startswith("python benchmarks/grammar_mask.py")
    assert record["model"] == "smollm2"
    values = VISUALIZER.compute(VISUALIZER.defaults()).values
    (own,) = (r for r in record["results"] if (r["schema"], r["engine"]) == ("person", "minillm"))
    assert values["own_later_p99_us"] == own["later"]["p99_us"]
    assert values["measured_vocabulary"] == 49152


def test_bad_input(snapshot: Snapshot) -> None:
    with pytest.raises(InputError, match="--grammar 'xml' is unknown: choose from schema, regex, gbnf"):
        snapshot.at({"grammar": "xml"})
    with pytest.raises(InputError, match=r"--written 99 is outside 0 to 34 tokens"):
        snapshot.at({"written": 99})
