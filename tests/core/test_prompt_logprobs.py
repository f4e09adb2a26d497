"""Log-probabilities of a prompt: what is computed for them, in how many pieces, and what they cannot share."""

from __future__ import annotations

import pytest
from core_harness import Case, Job, drive, make_engine, without

from minillm.core import scheduler
from minillm.core.config import EngineConfig
from minillm.core.sampling import SamplingParams

SCORED = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=1)
PLAIN = SamplingParams(temperature=0, max_tokens=3)


def test_a_hit_leaves_no_logits_so_a_scored_prompt_takes_none_and_leaves_its_blocks_to_others() -> None:
    engine, _ = make_engine(EngineConfig(block_size=2, num_blocks=40), vocab_size=9)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    hits = []
    for params in (PLAIN, SCORED, PLAIN):
        request = engine.add_request(prompt, params)
        list(engine.run())
        hits.append(request.num_cached)
        assert len(request.prompt_logprobs) == (6 if params is SCORED else 0)
    assert hits == [0, 0, 6]


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_chunks_and_preemption_score_each_token_once(chunk: int) -> None:
    """``drive`` compares every score with the model's own; a resumed request may hit what is scored already."""
    jobs = tuple(Job((i, 2, 3, 1, 4), SamplingParams(temperature=0, max_tokens=9, prompt_logprobs=2)) for i in range(3))
    case = Case(EngineConfig(block_size=2, num_blocks=60, max_batch_tokens=chunk), jobs, vocab_size=6)
    drive(case)
    tight = drive(without(case, num_blocks=9))
    assert chunk < 3 or tight.engine.scheduler.num_preemptions > 0


def test_a_scored_prompt_is_read_in_small_pieces_for_each_of_its_tokens_takes_a_row_of_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "SCORED_CHUNK", 8)
    engine, model = make_engine(EngineConfig(block_size=4, num_blocks=60), vocab_size=3)
    prompt = [i % 3 for i in range(21)]
    engine.add_request(prompt, SCORED)
    list(engine.run())
    # A draw after each token: 20 for the next one's score, and the last for the first output.
    assert [len(plan.logits_indices) for plan in model.plans[:4]] == [8, 8, 5, 1]
    engine.add_request(prompt[::-1], PLAIN)
    steps = len(model.plans)
    list(engine.run())
    assert len(model.plans[steps].token_ids) == len(prompt)


def test_samples_of_a_scored_prompt_share_its_scores() -> None:
    engine, _ = make_engine(EngineConfig(num_blocks=40), vocab_size=9)
    request = engine.add_request([1, 2, 3], SamplingParams(n=3, seed=1, max_tokens=2, prompt_logprobs=0))
    list(engine.run())
    assert request.group is not None
    assert {len(member.prompt_logprobs) for member in request.group.members} == {2}
