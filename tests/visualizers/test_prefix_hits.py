"""The figure of prefix hits: what is found follows from the tokens alone, and changes no answer."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from minillm import hub
from minillm.backends.hash_model import HashModel
from minillm.core.clock import VirtualClock
from minillm.models.tokenizer import load_tokenizer
from visualizers.figures import prefix_hits
from visualizers.figures.prefix_hits import LONGEST, NAMES, VISUALIZER
from visualizers.runs import bundled, prefix_run
from visualizers.runs.prefix_run import BLOCK_SIZES, REPEATS, SYSTEM_TOKENS, Served, serve, shared_tokens

_encode = load_tokenizer(hub.BUNDLED / "tiny").encode
STATES = list(product(SYSTEM_TOKENS, BLOCK_SIZES, (False, True)))


def hashed(system: int, size: int, salted: bool, caching: bool) -> tuple[Served, ...]:
    """The run on the hash model, whose every token depends on every token before: a wrong hit shows."""
    return tuple(serve(HashModel(vocab_size=4096), _encode, system, size, salted, caching, VirtualClock()))


@pytest.fixture(scope="module")
def plain() -> dict[int, tuple[Served, ...]]:
    return {system: hashed(system, 16, False, False) for system in SYSTEM_TOKENS}


@pytest.mark.parametrize(("system", "size", "salted"), STATES)
def test_hits_are_the_whole_blocks_of_what_was_said_before(
    system: int, size: int, salted: bool, plain: dict[int, tuple[Served, ...]]
) -> None:
    served = hashed(system, size, salted, True)
    assert [s.written for s in served] == [s.written for s in plain[system]]
    assert not any(s.hit_tokens for s in plain[system])
    for i, one in enumerate(served):
        # By definition, a prefix at a time, over everything that was in the cache when it came.
        known = [
            (*other.sent.tokens, *other.written[:-1])
            for other in served[:i]
            if not salted or other.sent.tenant == one.sent.tenant
        ]
        whole = range(size, len(one.sent.tokens), size)  # at least one token is left to compute
        found = [n for n in whole if any(k[:n] == one.sent.tokens[:n] for k in known)]
        assert one.hit_tokens == max(found, default=0), one.sent.name
        shared = [n for n in range(1, len(one.sent.tokens) + 1) if any(k[:n] == one.sent.tokens[:n] for k in known)]
        assert shared_tokens(one.sent, served[:i], salted) == max(shared, default=0)


def test_each_request_is_what_its_name_says(plain: dict[int, tuple[Served, ...]]) -> None:
    for system, served in plain.items():
        a, b, c, d, e, f = (s.sent.tokens for s in served)
        assert a[:system] == b[:system] == f[:system]
        assert a[system] != b[system]
        assert c[: len(a) + 24] == (*a, *served[0].written)
        assert d == a
        assert e[-len(a) :] == a
        assert e[0] != a[0]
        assert max(map(len, (a, b, c, d, e, f))) <= LONGEST
        assert {s.sent.tenant for s in served[:5]} == {"one"} != {served[5].sent.tenant}


def test_a_repeated_prompt_never_hits_its_last_token() -> None:
    for system in SYSTEM_TOKENS:
        d = hashed(system, 1, False, True)[3]
        assert d.hit_tokens == len(d.sent.tokens) - 1


@pytest.mark.parametrize("salt", ["all", "tenant"])
def test_the_bars_add_up_to_the_prompts(monkeypatch: pytest.MonkeyPatch, salt: str) -> None:
    monkeypatch.setattr(prefix_run, "repeats", lambda *asked: (hashed(*asked),) * 2)
    data = prefix_hits.compute({"block_size": "16", "system": 250, "salt": salt})
    for row in data.rows["requests"]:
        bars = {p["part"]: (p["from"], p["to"]) for p in data.rows["parts"] if p["request"] == row["request"]}
        lengths = {part: b - a for part, (a, b) in bars.items()}
        assert sum(lengths.values()) == row["prompt"] == row["found"] + row["computed"]
        assert lengths.get(prefix_hits.FOUND, 0) == row["found"]
        assert lengths.get(prefix_hits.LOST, 0) == row["shared"] - row["found"]
        # The words are those at the place where the hit ends.
        tokens = next(
            s.sent.tokens for s in hashed(250, 16, salt == "tenant", True) if row["request"] == NAMES[s.sent.name]
        )
        words = {w["part"]: w["text"] for w in data.rows["words"] if w["request"] == row["request"]}
        assert set(words) == set(bars)
        text = bundled.decode(list(tokens[row["found"] :]))
        assert text.startswith(words.get(prefix_hits.LOST) or words[prefix_hits.NEW])
        assert bundled.decode(list(tokens[: row["found"]])).endswith(words.get(prefix_hits.FOUND, ""))
    assert data.values["hit_rate"] == pytest.approx(
        sum(r["found"] for r in data.rows["requests"]) / sum(r["prompt"] for r in data.rows["requests"])
    )
    assert data.values["same_answers"] == len(NAMES)
    # Another tenant's hit is what a salt takes away, and nothing else.
    assert (data.values["found_f"] == 0) == (salt == "tenant")
    assert data.values["found_b"] == 240
    assert data.values["found_e"] == 0


def test_the_real_model_answers_the_same_with_the_cache() -> None:
    data = prefix_hits.compute({"block_size": "16", "system": 60, "salt": "all"})
    assert data.values["same_answers"] == len(NAMES)
    assert data.values["found_b"] == 48
    assert all(row["ttft"] > 0 and row["ttft_without"] > 0 for row in data.rows["requests"])
    assert f"median of {REPEATS} runs" in VISUALIZER.provenance()


def test_times_are_medians_and_a_difference_within_the_spread_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def repeats(seconds: tuple[float, ...], without: tuple[float, ...]) -> None:
        def run(system: int, size: int, salted: bool, caching: bool) -> tuple[tuple[Served, ...], ...]:
            one = hashed(system, size, salted, caching)
            return tuple(tuple(replace(s, ttft_s=t) for s in one) for t in (seconds if caching else without))

        monkeypatch.setattr(prefix_run, "repeats", run)

    repeats((1.0, 1.1, 3.0), (1.05, 1.2, 0.9))
    data = prefix_hits.compute(VISUALIZER.defaults())
    assert (data.values["ttft_b"], data.values["ttft_without_b"]) == (1.1, 1.05)
    assert "within the spread" in VISUALIZER.sentence(data)
    repeats((1.0, 1.1, 1.2), (2.0, 2.1, 2.2))
    assert "within the spread" not in VISUALIZER.sentence(prefix_hits.compute(VISUALIZER.defaults()))
