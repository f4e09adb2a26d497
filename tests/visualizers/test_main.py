"""The command line: numbers for people and programs, and for bad input a message, code 2 and silence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from example_figure import VISUALIZER

from visualizers import __main__ as command
from visualizers import registry
from visualizers.levels.cache import DataCache
from visualizers.levels.snapshot import Snapshot

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def only_the_example(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    def get(name: str):
        if name.replace("-", "_") != "example":
            raise registry.UnknownVisualizerError(f"there is no visualizer {name!r}: choose from example")
        return VISUALIZER

    monkeypatch.setattr(registry, "get", get)
    monkeypatch.setattr(registry, "all", lambda: (VISUALIZER,))
    monkeypatch.setattr(command, "default_folder", lambda: tmp_path)


def test_list_is_an_array_of_figures(capsys):
    assert command.main(["list", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["name"], entry["title"], entry["chapters"]) == ("example", "Memory & blocks", ["1.6"])
    assert [i["name"] for i in entry["inputs"]] == ["model", "context", "batch", "block", "prompt"]
    assert command.main(["list"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("example: Memory & blocks (1.6)\n  --model  ")
    assert "  --block  Tokens in a block. (1, 16 or 256 tokens; " in text


def test_what_is_kept_says_when_it_was_computed_and_fresh_computes_it_again(capsys):
    folder = command.default_folder()
    snapshot = Snapshot(VISUALIZER, DataCache(VISUALIZER, folder))
    truth = snapshot.default.data.values["kept_bytes"]
    snapshot.save()
    file = folder / "example.json"
    kept = json.loads(file.read_text())
    (state,) = kept["states"].values()
    state["values"]["kept_bytes"], state["at"] = 7, "2020-01-01T00:00:00+00:00"
    file.write_text(json.dumps(kept))

    def told(*words: str) -> dict:
        assert command.main(["example", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert (told()["kept_bytes"], told()["recorded_at"]) == (7, "2020-01-01T00:00:00+00:00")
    assert told("--fresh")["kept_bytes"] == truth
    assert told("--fresh")["recorded_at"] > "2026"
    assert told()["kept_bytes"] == 7  # a look of one's own does not change the site's
    assert command.main(["example"]) == 0
    assert "Recorded at 2020-01-01" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--json", "--help"], ["-h"], ["--context", "5", "--help"]])
def test_help_is_help_wherever_it_stands(capsys, words):
    assert command.main(["example", *words]) == 0
    assert "--fresh  Computed again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("figure", "words", "said"),
    [
        ("preemption", ["--pool", "5000"], "4,096, 6,144, 8,192, 12,288 or 16,384 tokens"),
        ("preemption", ["--limit", "4"], "3, 6 or 12"),
        ("speculation", ["--length", "5"], "1, 2, 4 or 8"),
        ("token-trees", ["--size", "5"], "4, 8 or 16"),
        ("kv-cache-on-off", ["--length", "257"], "16, 32, 64, 128, 192, 256, 384 or 512"),
        ("sampling", ["--temperature", "0.65"], "0 to 2 in steps of 0.1"),
    ],
)
def test_a_value_between_the_stops_is_refused_with_the_stops(capsys, monkeypatch, figure, words, said):
    monkeypatch.undo()
    assert command.main([figure, *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert command.main(["list", "--json"]) == 0
    (entry,) = (e for e in json.loads(capsys.readouterr().out) if e["name"] == figure)
    (given,) = (i for i in entry["inputs"] if i["name"] == words[0][2:])
    assert said in given["takes"]
    assert float(words[1]) not in given["stops"]


@pytest.mark.parametrize("name", ["preemption", "speculation", "structured-output", "live-run"])
def test_the_key_of_the_cache_imports_no_engine(name):
    code = (
        "import sys; from visualizers import registry; from visualizers.levels.cache import digest; "
        f"digest(registry.get({name!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("words", [["--context", "16384", "--model=large"], ["--model", "large", "--context=16384"]])
def test_a_figures_numbers_are_one_flat_object_with_whole_numbers_whole(capsys, words):
    assert command.main(["example", *words, "--json"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert found["kept_bytes"] == 5 * 2**30
    assert f'"kept_bytes": {5 * 2**30},' in text
    assert found["inputs"]["context"] == 16384
    assert (found["name"], found["title"], found["badge"]) == ("example", "Memory & blocks", "computed")
    assert found["sentence"].startswith("The cache takes 5 GiB")
    assert found["table"]["rows"][0] == {"kind": "KV cache", "gib": 5.0}


def test_without_json_it_is_for_people(capsys):
    assert command.main(["example"]) == 0
    text = capsys.readouterr().out
    assert "Context: 8,192 tokens" in text
    assert "The cache takes 512 MiB" in text
    assert "kept_bytes = 536,870,912 bytes" in text
    assert command.main(["example", "--help"]) == 0
    assert "--block  Tokens in a block." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "there is no visualizer 'nothing': choose from example"),
        (["example", "--context", "0"], "--context 0 is outside 1 to 131,072 tokens"),
        (["example", "--context", "many"], "--context 'many' is not a number"),
        (["example", "--context", "1.5"], "--context 1.5 is not a whole number"),
        (["example", "--context", "nan"], "--context nan is outside"),
        (["example", "--context", "inf"], "--context inf is outside"),
        (["example", "--context"], "--context has no value"),
        (["example", "--context", "--json"], "--context has no value"),
        (["example", "--json=yes"], "--json takes no value"),
        (["example", "--block", "17"], "--block 17 has no state that is computed: choose from 1, 16 or 256 tokens"),
        (["list", "--fresh"], "list takes no --fresh"),
        (["example", "--context", "1", "--context", "2"], "--context is given twice"),
        (["example", "--model", "huge"], "--model 'huge' is unknown: choose from small, large"),
        (["example", "--prompt", " "], "--prompt is empty"),
        (["example", "--prompt", "x" * 201], "--prompt has 201 characters, the limit is 200"),
        (["example", "--length", "3"], "example has no input 'length': it takes model, context"),
        (["example", "8192"], "'8192' is no option"),
        (["--json"], "the first word is a figure's name or list"),
        (["list", "--context", "3"], "list takes no --context"),
    ],
)
def test_bad_input_gets_a_message_code_2_and_silence(capsys, words, said):
    assert command.main(words) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_both_spellings_of_an_option_are_one():
    assert command._words(["--block-size", "1", "--json"]) == command._Words({"block_size": "1"}, json=True)
    assert command._words(["--block_size=a=b"]) == command._Words({"block_size": "a=b"})


def test_a_reader_who_stops_reading_is_no_error():
    words = [sys.executable, "-m", "visualizers", "list", "--json"]
    read, write = os.pipe()
    os.close(read)
    finished = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert finished.returncode == 0
    assert finished.stderr == b""


def test_a_python_without_the_packages_is_told_which_one_has_them() -> None:
    command = [sys.executable, "-S", "-m", "visualizers", "list"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stdout == ""
    assert re.fullmatch(r"visualizers: this Python has no \w+: .* \.venv/bin/python -m visualizers\n", run.stderr)


def test_handbook_without_its_packages_says_so_too() -> None:
    command = [sys.executable, "-S", "-m", "visualizers.site.cli", "check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert re.fullmatch(r"handbook: this Python has no \w+: .*\[site\].*\n", run.stderr)
