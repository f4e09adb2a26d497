"""The live run: the engine's own text, blocks that fit it, times without pauses, and an end on demand."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

import pytest

from minillm.core.config import EngineConfig
from minillm.core.request import RequestError
from minillm.core.sampling import SamplingParams
from minillm.llm import LLM
from visualizers.contract import InputError
from visualizers.figures.live_run import BEFORE, SHOWN_TOKENS, START, STOPS, VISUALIZER, lengthened, recorded
from visualizers.runs import bundled
from visualizers.runs.one_request import FILLED, MODEL, SEED, TEMPERATURE, Run, Stopwatch, middle


def finished(prompt: str = START, *, block_size: int = 16, max_tokens: int = 20) -> Run:
    run = Run(prompt, block_size=block_size, max_tokens=max_tokens)
    while run.advance(0.01):
        pass
    return run


def test_the_text_is_what_the_engine_writes_in_one_go() -> None:
    params = SamplingParams(max_tokens=20, temperature=TEMPERATURE, seed=SEED)
    (expected,) = LLM(MODEL, backend="numpy", config=EngineConfig()).generate(START, params)
    run = finished()
    values = run.data().values
    assert values["text"] == expected.text
    assert values["output_tokens"] == len(expected.token_ids)
    assert values["prompt_tokens"] == expected.prompt_tokens
    assert run.finish_reason == expected.finish_reason


@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_blocks_are_those_that_the_stored_tokens_need(block_size: int) -> None:
    run = finished(block_size=block_size)
    bytes_per_token = LLM(MODEL, backend="numpy").engine.capacity.kv_bytes_per_token
    prompt = run.data().values["prompt_tokens"]
    for n in range(1, 21):
        data = run.data(n)
        stored = prompt + n - 1  # the last token's keys and values are not computed yet
        blocks = -(-stored // block_size)
        assert data.values["stored_tokens"] == stored
        assert data.values["kv_blocks"] == blocks
        assert data.values["kv_bytes"] == blocks * block_size * bytes_per_token
        parts = data.rows["blocks"]
        assert sum(p["to"] - p["from"] for p in parts) == blocks * block_size
        assert sum(p["to"] - p["from"] for p in parts if p["part"] == FILLED) == stored
        assert all(a["to"] == b["from"] for a, b in pairwise(parts))


def test_times_add_up() -> None:
    data = finished().data()
    times = [row["ms"] for row in data.rows["tokens"]]
    assert min(times) > 0
    assert data.values["ttft_s"] == pytest.approx(times[0] / 1e3)
    assert data.values["itl_s"] == pytest.approx(times[-1] / 1e3)
    assert data.values["tokens_per_s"] == pytest.approx(1e3 * (len(times) - 1) / sum(times[1:]))
    assert data.values["tpot_s"] == pytest.approx(1 / data.values["tokens_per_s"])


def test_a_pause_between_two_looks_does_not_count() -> None:
    now = [100.0]
    watch = Stopwatch(lambda: now[0])
    watch.start()
    now[0] += 2
    watch.stop()
    now[0] += 50  # drawing
    assert watch() == 2
    watch.start()
    now[0] += 1
    assert watch() == 3


def test_a_piece_is_bounded_by_tokens_and_makes_at_least_one_step() -> None:
    run = Run(START, max_tokens=20)
    assert run.goes_on
    assert run.data().values["output_tokens"] == 0
    assert run.advance(60, tokens=3)
    assert run.data().values["output_tokens"] == 3
    assert run.advance(0)
    assert run.data().values["output_tokens"] == 4


def test_stopping_gives_the_blocks_back() -> None:
    run = Run(START, max_tokens=200)
    run.advance(60, tokens=5)
    assert run._llm.engine.kv_usage().used_blocks > 0
    run.stop()
    assert not run.goes_on
    assert run.finish_reason == "abort"
    assert run._llm.engine.kv_usage().used_blocks == 0
    run.stop()  # twice is fine
    assert not run.advance(60)
    assert run.data().values["output_tokens"] == 5


def test_a_prompt_that_does_not_fit_says_the_numbers() -> None:
    run = Run("word " * 3000, max_tokens=16)
    with pytest.raises(RequestError, match=r"3,0\d\d"):
        run.advance(0)
    with pytest.raises(InputError, match=r"--prompt: .*\d"):
        VISUALIZER.compute({**VISUALIZER.defaults(), "prompt": "每" * 600})


def test_the_states_of_the_page_are_cut_from_one_run() -> None:
    whole = VISUALIZER.compute(VISUALIZER.defaults())
    assert whole.values["output_tokens"] == SHOWN_TOKENS == STOPS[-1]
    for tokens in STOPS:
        part = VISUALIZER.compute({**VISUALIZER.defaults(), "tokens": tokens})
        assert part.values["output_tokens"] == tokens
        assert whole.values["text"].startswith(part.values["text"])
        assert part.rows["tokens"] == whole.rows["tokens"][:tokens]
    assert recorded(START, 16) is recorded(START, 16)


def test_a_longer_prompt_is_the_prompt_behind_so_many_tokens() -> None:
    lengths = [len(bundled.encode(lengthened(START, before))) for before in BEFORE]
    # Where two texts meet, one token may become two: the text begins again every 80 tokens or so.
    assert all(abs(n - lengths[0] - before) <= 1 + before // 60 for n, before in zip(lengths, BEFORE, strict=True))
    values = [VISUALIZER.compute({**VISUALIZER.defaults(), "before": b}).values for b in (BEFORE[0], BEFORE[-1])]
    assert [v["prompt_tokens"] for v in values] == [lengths[0], lengths[-1]]
    assert values[1]["ttft_s"] > 2 * values[0]["ttft_s"]  # 40 times the tokens


def test_the_middle_of_some_runs_has_the_median_of_each_gap() -> None:
    runs = [finished() for _ in range(3)]
    gaps = [[row["ms"] for row in run.data().rows["tokens"]] for run in runs]
    found = [row["ms"] for row in middle(runs).data().rows["tokens"]]
    assert found == pytest.approx([median(same) for same in zip(*gaps, strict=True)])
    with pytest.raises(RuntimeError, match="different texts"):
        middle([finished(), finished("Another prompt")])


@pytest.mark.parametrize("block_size", [4, 16])
def test_what_is_drawn_over_time_ends_as_the_cache_ends(block_size: int) -> None:
    run = finished(block_size=block_size)
    for tokens in (1, 7, 20):
        data = run.data(tokens)
        rows, values = data.rows, data.values
        assert [a["end"] for a in rows["tokens"][:-1]] == [b["start"] for b in rows["tokens"][1:]]
        assert len(rows["held"]) == values["kv_blocks"]
        assert rows["held"][-1]["high"] == values["kv_blocks"] * block_size <= rows["extent"][0]["slots"]
        assert {block["end"] for block in rows["held"]} == {rows["tokens"][-1]["end"]}
        assert rows["stored"][-1]["tokens"] == values["stored_tokens"]
        for block in rows["held"][1:]:  # taken when the token came that fills the one before it
            before = [s["tokens"] for s in rows["stored"] if s["ms"] <= block["start"]]
            assert before[-1:] <= [block["low"]]
        assert [w["group"] for w in rows["words"] if w["group"] != "prompt"] == [t["group"] for t in rows["tokens"]]
        assert all(row["mib"] > 0 for row in rows["process"])
