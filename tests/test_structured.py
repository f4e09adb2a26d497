"""Structured output on a real model: from Python, from the command line, on both numeric backends."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from minillm.cli import main
from minillm.core.sampling import SamplingParams
from minillm.grammar import GrammarError
from minillm.llm import LLM
from minillm.structured import compile_grammar, vocabulary_of

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},  # without a bound: only the tokens left end it
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["old", "new"]}, "maxItems": 2},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", backend="numpy")


def test_every_object_is_whole_and_satisfies_its_schema_however_few_tokens_there_are(llm: LLM) -> None:
    cut = []
    for seed in range(10):
        params = SamplingParams(temperature=1, seed=seed, max_tokens=16 + 4 * seed)
        (one,) = llm.generate("A person: ", params, json_schema=PERSON)
        Draft202012Validator(PERSON).validate(json.loads(one.text))
        assert one.matches_grammar
        assert one.finish_reason == "stop"
        cut.append(one.grammar_cut)
    assert any(cut)


def test_grammars_and_none_side_by_side_in_one_batch(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=3, max_tokens=12)
    alone = llm.generate("Number ", params, regex="[0-9]{3,} (apples|pears)")
    free = llm.generate("Number ", params)
    grammar = llm.compile_grammar("regex", "[0-9]{3,} (apples|pears)")
    ids = llm.encode("Number ")
    bound = SamplingParams(temperature=1, seed=3, max_tokens=12, grammar=grammar)
    requests = [llm.engine.add_request(ids, each) for each in (bound, params, bound)]
    for _ in llm.engine.run():
        pass
    assert [r.output_ids for r in requests] == [alone[0].token_ids, free[0].token_ids, alone[0].token_ids]
    assert re.fullmatch("[0-9]{3,} (apples|pears)", alone[0].text)
    assert free[0].matches_grammar is None


def test_both_backends_draw_the_same_under_a_grammar(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=5, max_tokens=24)
    (numpy,) = llm.generate("A person: ", params, json_schema=PERSON)
    (torch,) = LLM("tiny", backend="torch", dtype="float32").generate("A person: ", params, json_schema=PERSON)
    assert numpy.token_ids == torch.token_ids


def test_a_grammar_file_from_python(llm: LLM) -> None:
    sums = 'root ::= t ("+" t)*\nt ::= [0-9] | "(" root ")"'
    (one,) = llm.generate("Sum: ", SamplingParams(max_tokens=20, seed=1), grammar=sums)
    assert re.fullmatch(r"[0-9()+]+", one.text)
    assert one.text.count("(") == one.text.count(")")


def test_an_output_matches_one_grammar(llm: LLM) -> None:
    with pytest.raises(ValueError, match="an output matches one"):
        llm.generate("x", regex="a", json_schema={})
    with pytest.raises(ValueError, match="an output matches one"):
        llm.generate("x", SamplingParams(grammar=llm.compile_grammar("regex", "a")), regex="a")
    with pytest.raises(GrammarError, match="choose from minillm, llguidance"):
        compile_grammar("regex", "a", llm.compile_grammar("regex", "a").vocabulary, "other")  # type: ignore


def cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["generate", "--model", "tiny", "--backend", "numpy", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON))
    return str(path)


def test_the_command_prints_the_object_alone(
    schema: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))  # no prompt at all: the schema speaks for itself
    code, out, err = cli(capsys, "--json-schema", schema, "--temperature", "1")
    assert code == 0, err
    Draft202012Validator(PERSON).validate(json.loads(out))
    code, out, _ = cli(capsys, "--json-schema", schema, "--prompt", "One: ", "--prompt", "Two: ", "--json")
    for one in json.loads(out)["completions"]:
        Draft202012Validator(PERSON).validate(json.loads(one["text"]))
        assert one["matches_grammar"] is True


def test_what_was_cut_short_is_said(schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = cli(capsys, "--json-schema", schema, "--prompt", "x", "--max-tokens", "20", "--seed", "1")
    Draft202012Validator(PERSON).validate(json.loads(out))
    assert "whole, but cut short to fit into max-tokens" in err


def test_what_is_not_whole_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    arguments = ("--regex", "[a-z]{9}[a-z ]*!", "--prompt", "x", "--max-tokens", "3", "--grammar-engine", "llguidance")
    code, _, err = cli(capsys, *arguments)
    assert code == 0
    assert "NOT WHOLE: the output ended before its grammar did" in err


def test_a_pattern_and_a_grammar_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cli(capsys, "--regex", "(yes|no)", "--prompt", "Is it so? ")
    assert (code, out.strip() in ("yes", "no")) == (0, True)
    path = tmp_path / "brackets.gbnf"
    path.write_text('root ::= "(" root ")" | "x"')
    code, out, _ = cli(capsys, "--grammar", str(path), "--prompt", "Brackets: ")
    assert re.fullmatch(r"(\(*)x(\)*)", out.strip())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--json-schema", "FILE", "--prompt", "x"), "#/items/uniqueItems: the keyword 'uniqueItems' is not supported"),
        (("--regex", "(a", "--prompt", "x"), "the group is not closed"),
        (("--regex", "a{9}", "--prompt", "x", "--max-tokens", "2"), "raise max_tokens to at least "),
        (("--regex", "a", "--prompt", "x", "--stop", "b"), "beside a grammar"),
        (("--regex", "a", "--prompt", "x", "--ignore-eos"), "beside a grammar"),
        (("--grammar", "/does/not/exist", "--prompt", "x"), "No such file"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"items": {"uniqueItems": true}}')
    code, out, err = cli(capsys, *(str(path) if each == "FILE" else each for each in arguments))
    assert code != 0
    assert out == ""
    assert message in err


def test_a_vocabulary_may_be_longer_or_shorter_than_the_models(llm: LLM) -> None:
    assert vocabulary_of(llm.tokenizer, 5000).tokens[4096:] == [None] * 904
    assert vocabulary_of(llm.tokenizer, 300).size == 300


@pytest.mark.parametrize(("option", "source"), [("--json-schema", '{"const": null}'), ("--grammar", 'root ::= "null"')])
def test_a_file_is_utf8_with_or_without_its_mark(
    option: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "source"
    file.write_text(source, encoding="utf-8-sig")
    code, out, _ = cli(capsys, option, str(file), "--prompt", "x", "--json")
    assert (code, json.loads(out)["text"]) == (0, "null")
    file.write_text(source, encoding="utf-16")
    code, out, err = cli(capsys, option, str(file), "--prompt", "x")
    assert (code, out) == (2, "")
    assert f"{file}: byte 0 is no UTF-8" in err
