"""Drafters that need no model: each is compared with a search that anyone can read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.core.request import Request
from minillm.core.sampling import SamplingParams
from minillm.speculate.adaptive import AdaptiveLength, FixedLength, best_length, expected_speedup, expected_tokens
from minillm.speculate.automaton import SuffixAutomaton
from minillm.speculate.draft import Ask, Draft, DraftError, check_draft
from minillm.speculate.ngram import NgramDrafter
from minillm.speculate.suffix import SuffixDrafter
from minillm.speculate.tree import ROOT, check_parents, depths, longest_path, path_to, visible

TEXTS = st.lists(st.integers(0, 2), max_size=40)


def ask_for(tokens: list[int], *, num_prompt: int = 1, most: int = 4, name: str = "r", salt: str | None = None) -> Ask:
    request = Request(name, tokens[:num_prompt], SamplingParams(), 0.0, 0, 0, 1000, salt=salt)
    request.token_ids += tokens[num_prompt:]
    return Ask(request, most, most, [1], 0)


def occurrences(text: list[int], part: list[int]) -> list[int]:
    return [i for i in range(len(text) - len(part) + 1) if text[i : i + len(part)] == part]


@given(TEXTS.filter(bool), st.integers(1, 5))
def test_ngram_finds_the_longest_and_latest_place(tokens: list[int], longest: int) -> None:
    expected: list[int] = []
    for n in range(min(longest, len(tokens) - 1), 0, -1):
        before = [i for i in occurrences(tokens, tokens[len(tokens) - n :]) if i < len(tokens) - n]
        if before:
            whole = list(tokens)
            while len(whole) < len(tokens) + 4:
                whole.append(whole[before[-1] + n + len(whole) - len(tokens)])
            expected = whole[len(tokens) :]
            break
    assert list(NgramDrafter(longest).propose([ask_for(tokens)])[0].token_ids) == expected


def test_ngram_compares_tokens_and_not_bytes() -> None:
    # 0x01000000 and 0x00000001 read alike one byte apart.
    tokens = [1 << 24, 0, 1 << 24, 9, 1 << 16, 0, 1 << 16]
    assert list(NgramDrafter(1).propose([ask_for(tokens, most=2)])[0].token_ids) == [0, 1 << 16]
    assert list(NgramDrafter(1).propose([ask_for([256, 65536, 7, 1], most=2)])[0].token_ids) == []


def test_ngram_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="n-grams of 3 to 2"):
        NgramDrafter(2, 3)


def grown(text: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    return automaton


@given(TEXTS, TEXTS)
def test_automaton_matches_the_longest_end_of_another_text(text: list[int], other: list[int]) -> None:
    automaton = grown(text)
    state, length = 0, 0
    for i, token in enumerate(other, start=1):
        state, length = automaton.advance(state, length, token)
        ends = [other[i - n : i] for n in range(i, -1, -1)]
        assert length == next(len(end) for end in ends if occurrences(text, end))


@given(TEXTS, TEXTS)
def test_automaton_matches_while_it_grows(text: list[int], more: list[int]) -> None:
    """A place found before more text came still stands for the same string."""
    automaton = grown(text)
    state, length = 0, 0
    for token in text[:5]:
        state, length = automaton.advance(state, length, token)
    for token in more:
        automaton.append(token)
    whole, start = text + more, text[:5][len(text[:5]) - length :]
    for token in (0, 1, 2):
        _, found = automaton.advance(state, length, token)
        ends = [[*start, token][n:] for n in range(length + 2)]
        assert found == next(len(end) for end in ends if occurrences(whole, end))


@given(TEXTS)
def test_automaton_knows_what_stood_earlier(text: list[int]) -> None:
    _, length = grown(text).earlier()
    repeated = [n for n in range(len(text)) if len(occurrences(text, text[len(text) - n :])) > 1]
    assert length == max(repeated, default=0)


@given(TEXTS.filter(lambda text: len(text) > 1))
def test_automaton_follows_by_frequency(text: list[int]) -> None:
    automaton = grown(text)
    state, length = automaton.earlier()
    tokens, expected = automaton.follow(state, length, 1, 0.0)
    context = text[len(text) - length :]
    follows = [text[i + length] for i in occurrences(text, context) if i + length < len(text)]
    counts = {token: follows.count(token) for token in set(follows)}
    best = max(counts.values())
    assert tokens == [min(token for token, count in counts.items() if count == best)]
    assert expected == pytest.approx(best / len(follows))


def test_automaton_stops_where_the_whole_becomes_unlikely() -> None:
    automaton = SuffixAutomaton()
    for token in (1, 2, 1, 2, 1, 3):  # behind a 1 comes a 2 in two cases of three
        automaton.append(token)
    state, length = automaton.advance(0, 0, 1)
    assert automaton.follow(state, length, 3, 0.0)[0] == [2, 1, 2]
    assert automaton.follow(state, length, 3, 0.6)[0] == [2, 1]
    assert automaton.follow(state, length, 3, 0.7) == ([], 0.0)


def test_suffix_learns_from_outputs_that_ended_of_the_same_salt_alone() -> None:
    drafter = SuffixDrafter()
    drafter.propose([ask_for([9, 1, 2, 3, 4, 5, 6], name="a", salt="x")])
    drafter.forget("a")
    drafter.forget("never seen")
    here, there = ask_for([8, 1, 2], name="b", salt="x"), ask_for([8, 1, 2], name="c", salt="y")
    first, second = drafter.propose([here, there])
    assert list(first.token_ids) == [3, 4, 5, 6]
    assert list(second.token_ids) == []


def test_suffix_matches_no_prompt_of_another_and_not_across_outputs() -> None:
    drafter = SuffixDrafter()
    drafter.propose([ask_for([1, 2, 3, 4], num_prompt=3, name="a"), ask_for([7, 5, 6], num_prompt=1, name="b")])
    drafter.forget("a")
    drafter.forget("b")
    behind_prompt, across = drafter.propose([ask_for([8, 1, 2], name="c"), ask_for([8, 4], name="d")])
    assert list(behind_prompt.token_ids) == []
    assert list(across.token_ids) == []


def test_suffix_takes_in_the_first_outputs_while_a_request_runs() -> None:
    drafter = SuffixDrafter()
    ask = ask_for([8, 1, 2], name="b")
    drafter.propose([ask, ask_for([9, 1, 2, 3], name="a")])
    drafter.forget("a")
    assert list(drafter.propose([ask])[0].token_ids) == [3]


def test_suffix_forgets_outputs_beyond_its_limit() -> None:
    drafter = SuffixDrafter(most_outputs=3)
    for name in ("a", "b"):
        drafter.propose([ask_for([9, *([1, 2, 3, 4] if name == "a" else [5, 6])], name=name)])
        drafter.forget(name)
    known, gone = drafter.propose([ask_for([8, 5], name="c"), ask_for([8, 1, 2], name="d")])
    assert list(known.token_ids) == [6]
    assert list(gone.token_ids) == []


@given(st.floats(0, 0.99), st.integers(0, 6))
def test_expected_tokens_is_the_sum_over_outcomes(acceptance: float, length: int) -> None:
    """By the definition: i tokens accepted and one more drawn, with chance a^i (1 - a), or all of them."""
    outcomes = sum((i + 1) * acceptance**i * (1 - acceptance) for i in range(length))
    assert expected_tokens(acceptance, length) == pytest.approx(outcomes + (length + 1) * acceptance**length)


def test_the_best_length_is_none_where_drafting_does_not_pay() -> None:
    assert best_length(0.9, 0.0, 8) == 8
    assert best_length(0.0, 0.1, 8) == 0
    assert best_length(0.5, 0.5, 8) == 0
    lengths = [best_length(a / 20, 0.1, 8) for a in range(20)]
    assert lengths == sorted(lengths)
    assert expected_speedup(0.8, 0, 0.3) == 1


def test_adaptive_length_follows_the_acceptance_and_tries_again() -> None:
    policy = AdaptiveLength(6, 0.2)
    assert policy.acceptance("r") == pytest.approx(0.5)
    for _ in range(20):
        policy.observe("r", policy.length("r"), policy.length("r"))
    assert policy.length("r") == 6
    lengths = []
    for _ in range(40):
        lengths.append(policy.length("r"))
        if lengths[-1]:
            policy.observe("r", lengths[-1], 0)
    idle = lengths.index(0)  # nothing is drafted after nothing was accepted
    assert max(lengths[idle:]) > 0, "after a while it is tried again"
    assert lengths.count(0) > 20
    policy.forget("r")
    policy.forget("r")
    assert policy.acceptance("r") == pytest.approx(0.5)
    assert policy.acceptance("another") == pytest.approx(0.5)


def test_tokens_behind_a_rejected_one_do_not_count() -> None:
    policy = AdaptiveLength(6, 0.2)
    policy.observe("r", 6, 1)
    assert policy.acceptance("r") == pytest.approx((1 + 0.5) / (2 + 1))
    fixed = FixedLength(3)
    fixed.observe("r", 3, 0)
    fixed.forget("r")
    assert fixed.length("r") == 3


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    return [draw(st.integers(ROOT, node - 1)) for node in range(draw(st.integers(0, 8)))]


@given(trees())
def test_a_tree_is_the_union_of_its_paths(parents: list[int]) -> None:
    check_parents(parents, len(parents))
    sees = visible(parents)
    for node in range(len(parents)):
        path = path_to(parents, node)
        assert [i for i in range(len(parents)) if sees[node][i]] == path
        assert depths(parents)[node] == len(path) - 1
    assert longest_path(parents) == max((len(path_to(parents, n)) for n in range(len(parents))), default=0)
    assert path_to(parents, ROOT) == []


class Named:
    """A drafter for messages."""


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Draft([0] * 5), "5 tokens, it was asked for 4"),
        (Draft([0, 7]), "token 7 is outside the target's vocabulary of 3"),
        (Draft([-1]), "token -1 is outside"),
        (Draft([1.0]), "token 1.0 is outside"),  # type: ignore[list-item]
        (Draft([0, 1], [-1]), "1 parents for 2 tokens"),
        (Draft([0, 1], [-1, 1]), "token 1 has parent 1"),
        (Draft([0, 1, 2], [-1, 0, 1]), "a path of 3 tokens, only 2"),
        (Draft([0], [-1], [[1.0, 0.0, 0.0]]), "a tree with probabilities"),
        (Draft([0, 1], None, [[1.0, 0.0, 0.0]]), "1 distributions for 2 tokens"),
        (Draft([0], None, [[1.0, 0.0]]), "over 2 ids"),
        (Draft([1], None, [[1.0, 0.0, 0.0]]), "gives it 0"),
        (Draft([1], None, [[0.0, float("nan"), 0.0]]), "gives it nan"),
    ],
)
def test_a_draft_that_cannot_be_verified_is_named(draft: Draft, message: str) -> None:
    ask = ask_for([0, 1])
    limited = Ask(ask.request, 4, 2, ask.blocks, 0)
    with pytest.raises(DraftError, match=f"Named drafts for r: .*{message}"):
        check_draft(Named(), limited, draft, 3)
    check_draft(Named(), limited, Draft([0, 1, 2], [-1, -1, 1]), 3)
    check_draft(Named(), limited, Draft([0, 1], None, [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]), 3)
