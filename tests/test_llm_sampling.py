"""The parameters as users of ``LLM`` and of the command give them, on the bundled model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from minillm.backends.plans import Chunk, plan_of
from minillm.cli import main
from minillm.core.request import RequestError
from minillm.core.sampling import SamplingParams
from minillm.llm import LLM

PROMPT = "The state of the"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", backend="numpy")


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 8, **fields})


def log_softmax(logits: Any) -> Any:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def test_log_probabilities_are_those_of_the_models_logits(llm: LLM) -> None:
    [one] = llm.generate(PROMPT, greedy(logprobs=2, prompt_logprobs=1, repetition_penalty=1.5))
    ids = llm.encode(PROMPT) + one.token_ids
    plan = plan_of([Chunk(ids, list(range(1, 6)))], llm.engine.config.block_size)
    plan.logits_indices = list(range(len(ids)))
    plan.sampling, plan.uniforms = [SamplingParams(temperature=0)] * len(ids), [0.0] * len(ids)
    rows: Any = log_softmax(llm.backend.logits(plan))  # type: ignore[attr-defined]
    assert one.logprobs is not None
    assert one.prompt_logprobs is not None
    assert one.prompt_logprobs[0] is None
    found = [*one.prompt_logprobs[1:], *one.logprobs]
    assert len(found) == len(ids) - 1
    for row, (token, scored) in zip(rows, zip(ids[1:], found, strict=True), strict=False):
        assert scored is not None
        assert scored.token_id == token
        assert scored.token == llm.tokenizer.decode([token])
        assert scored.logprob == pytest.approx(row[token], abs=1e-4)
        assert [t.token_id for t in scored.top] == np.argsort(-row)[: len(scored.top)].tolist()
        assert scored.rank == 1 + int((row > row[token]).sum())
    assert one.cumulative_logprob == pytest.approx(sum(s.logprob for s in one.logprobs))
    assert any(s.rank > 1 for s in one.logprobs), "the penalty turned some token down, and the log-probability is raw"


def test_a_prompt_that_is_cached_still_gets_its_log_probabilities(llm: LLM) -> None:
    prompt = PROMPT + " Union is strong, and the people of this country are well and free, as they ought to be."
    first, again = llm.generate([prompt, prompt], greedy())
    [plain] = llm.generate(prompt, greedy())
    assert plain.cached_tokens > 0
    [scored] = llm.generate(prompt, greedy(prompt_logprobs=0))
    assert scored.cached_tokens == 0
    assert scored.token_ids == plain.token_ids == first.token_ids == again.token_ids
    assert scored.prompt_logprobs is not None
    assert len(scored.prompt_logprobs) == scored.prompt_tokens


def test_a_bad_word_is_not_written_with_or_without_a_space_before_it(llm: LLM) -> None:
    [free] = llm.generate(PROMPT, greedy())
    word = free.text.split()[0]
    assert free.text.startswith(" " + word)
    [banned] = llm.generate(PROMPT, greedy(bad_words=(word,)))
    assert word not in banned.text
    assert banned.text


def test_a_bias_demands_or_forbids_a_token(llm: LLM) -> None:
    [free] = llm.generate(PROMPT, greedy())
    wanted = free.token_ids[3]
    [always] = llm.generate(PROMPT, greedy(logit_bias={wanted: 100.0}))
    assert set(always.token_ids) == {wanted}
    [never] = llm.generate(PROMPT, greedy(logit_bias={wanted: -100.0}))
    assert wanted not in never.token_ids


def test_outputs_of_a_prompt_come_together_and_the_first_is_the_one_of_n_1(llm: LLM) -> None:
    params = SamplingParams(temperature=1, max_tokens=6, seed=3)
    alone = llm.generate([PROMPT, "We must"], params)
    several = llm.generate([PROMPT, "We must"], SamplingParams(temperature=1, max_tokens=6, seed=3, n=3))
    assert [(one.prompt, one.index) for one in several] == [(p, i) for p in (PROMPT, "We must") for i in range(3)]
    assert [several[0].token_ids, several[3].token_ids] == [one.token_ids for one in alone]
    assert len({tuple(one.token_ids) for one in several}) == 6


def test_best_of_and_beams_come_best_first(llm: LLM) -> None:
    ranked = llm.generate(PROMPT, SamplingParams(temperature=1, max_tokens=6, seed=3, n=3, best_of=5))
    scores = [one.cumulative_logprob or 0.0 for one in ranked]
    assert scores == sorted(scores, reverse=True)
    assert len(ranked) == 3
    assert ranked[0].logprobs is None  # nobody asked for them
    found = llm.generate(PROMPT, greedy(beam_width=4, n=2))
    [first] = llm.generate(PROMPT, greedy(logprobs=0))
    assert found[0].cumulative_logprob is not None
    assert first.cumulative_logprob is not None
    assert found[0].cumulative_logprob >= first.cumulative_logprob
    [narrow] = llm.generate(PROMPT, greedy(beam_width=1))
    assert narrow.token_ids == first.token_ids


def test_a_stream_of_several_outputs_is_refused(llm: LLM) -> None:
    for params in (SamplingParams(n=2), SamplingParams(best_of=2), greedy(beam_width=1)):
        with pytest.raises(RequestError, match="use generate"):
            next(llm.stream(PROMPT, params))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["generate", "--prompt", PROMPT, "--max-tokens", "5", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_json_has_the_options_results(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--n 2 --temperature 1 --logprobs 1 --prompt-logprobs 0 --repetition-penalty 1.2 --presence-penalty 0.5"
    options += " --frequency-penalty 0.5 --logit-bias 14=-100 --bad-word Union --typical-p 0.9 --min-tokens 2"
    code, out, _ = run(capsys, "--json", *options.split(), "--stop-token-id", "17")
    assert code == 0
    completions = json.loads(out)["completions"]
    assert [one["index"] for one in completions] == [0, 1]
    for one in completions:
        assert [scored["token_id"] for scored in one["logprobs"]] == one["token_ids"]
        assert all(len(scored["top"]) == 1 for scored in one["logprobs"])
        assert one["prompt_logprobs"][0] is None
        assert len(one["prompt_logprobs"]) == one["prompt_tokens"]
        assert 14 not in one["token_ids"]


def test_text_shows_each_output_under_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--beam-width", "3", "--n", "2")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("---")] == [f"--- [{i}] {PROMPT}" for i in (0, 1)]
    assert err.count("finish: length") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--n 2 --temperature 0", "2 samples at temperature 0 are all the same"),
        ("--beam-width 2 --temperature 0.5", "temperature is 0.5, but beam search draws nothing"),
        ("--beam-width 2 --top-k 5", "top_k is 5, which beam search does not look at"),
        ("--length-penalty 2", "length_penalty is 2.0 without beam_width"),
        ("--logit-bias 3=500", "logit_bias of 3 is 500.0, it must be finite and from -100 to 100"),
        ("--logit-bias 5000=1", "logit_bias has token 5000, the vocabulary has 4,096 ids"),
        ("--logprobs 5000", "logprobs is 5,000, the vocabulary has 4,096 ids"),
        ("--stop-token-id 5000", "stop_token_ids has token 5000"),
        ("--n 100", "n is 100, which run together with a token each in a step, but max_running_requests is 64"),
        ("--presence-penalty 3", "presence_penalty is 3.0, it must be finite and from -2 to 2"),
        ("--min-tokens 6", "min_tokens is 6, above max_tokens 5"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    code, out, err = run(capsys, *options.split())
    assert code == 2
    assert message in err
    assert out == ""


def test_a_bias_that_is_no_pair_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", "x", "--logit-bias", "5"]) == 2
    assert "'5' is not ID=VALUE" in capsys.readouterr().err


def test_a_prompt_may_be_token_ids(llm: LLM) -> None:
    by_text, by_ids = llm.generate([PROMPT, llm.encode(PROMPT)], greedy())
    assert by_ids.token_ids == by_text.token_ids
    assert by_ids.prompt == PROMPT


def test_one_list_of_ids_is_not_taken_for_prompts(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"text or a sequence of token ids, not \d+: put it in a list"):
        llm.generate(llm.encode(PROMPT), greedy())  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="vocabulary"):
        llm.generate([[1, 10**6]], greedy())
