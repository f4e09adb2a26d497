"""Requests as a reader gives them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visualizers.desk.asks import MOST_REQUESTS, Ask, every, pasted, poisson
from visualizers.desk.recipe import Recipe
from visualizers.desk.setup import LEVERS, DeskError, Setup


@pytest.mark.parametrize(
    "text",
    [
        '[{"at_s": 3, "prompt_tokens": 10, "max_tokens": 5}, {"at_s": 4.5, "prompt_tokens": 20, "max_tokens": 6}]',
        '{"arrival_s": 3, "input_length": 10, "output_length": 5}\n'
        '{"arrival_s": 4.5, "input_length": 20, "output_length": 6}',
        '{"timestamp": 3000, "input_length": 10, "output_length": 5}\n'
        '{"timestamp": 4500, "input_length": 20, "output_length": 6}',
        "at_s,prompt_tokens,max_tokens\n3,10,5\n4.5,20,6\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0000000,10,5\n2023-11-16 18:17:04.5000000,20,6\n",
        "at_s, prompt_tokens, max_tokens\n4.5, 20, 6\n3, 10, 5",  # in no order
    ],
)
def test_one_trace_in_the_forms_that_people_have(text: str) -> None:
    assert pasted(text) == (Ask(0.0, 10, 5), Ask(1.5, 20, 6))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the trace is empty"),
        ("[{]", "no JSON"),
        ('{"requests": 3}', "no list of objects"),
        ("at_s,prompt_tokens,max_tokens\n1,ten,5", "row 1 of the trace: prompt_tokens is 'ten'"),
        ("at_s,prompt_tokens,max_tokens\n1,10,5\n1,10", "row 2 of the trace has not as many cells"),
        ("at_s,prompt_tokens,max_tokens\n1,10.5,5", "tokens are whole numbers"),
        ("at_s,prompt_tokens\n1,10", "has no max_tokens"),
        ("at_s,prompt_tokens,max_tokens\n1,0,5", "give 1 to 100,000"),
        ("at_s,prompt_tokens,max_tokens\n1,10,-1", "max_tokens is -1"),
        ('[{"at_s": 1, "prompt": " ", "max_tokens": 5}]', "the prompt is empty"),
        ("at_s,prompt_tokens,max_tokens\n0,1,1\n99999,1,1", "give seconds from 0 to 3,600"),
        ("at_s,prompt_tokens,max_tokens\nnan,1,1", "give a number"),
        ("a,prompt_tokens,max_tokens\n" + "0,1,1\n" * (MOST_REQUESTS + 1), "201 requests, the desk takes 200"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused_with_the_row_and_the_way_out(text: str, said: str) -> None:
    with pytest.raises(DeskError, match=said.replace("(", r"\(")):
        pasted(text)


def test_arrivals_at_random_are_the_same_for_the_same_seed_and_come_at_the_rate() -> None:
    asks = poisson(10, ("a",), (4,), 200)
    assert asks == poisson(10, ("a",), (4,), 200)
    assert 15 < asks[-1].at_s < 26  # 200 at 10 a second, three standard deviations of 1.4 s and more


setups = st.fixed_dictionaries({}, optional={name: st.sampled_from(list(v.options)) for name, v in LEVERS.items()})
asks = st.builds(
    Ask,
    st.floats(0, 3600).map(lambda v: round(v, 4)),
    st.one_of(st.integers(1, 100_000), st.text(min_size=1, max_size=30).filter(str.strip)),
    st.integers(1, 1000),
)


@given(setups, st.one_of(st.none(), setups), st.lists(asks, max_size=8), st.floats(0, 64), st.integers(1, 20))
def test_an_address_brings_the_run_back(
    a: dict[str, str], b: dict[str, str] | None, found: list[Ask], rate: float, rounds: int
) -> None:
    recipe = Recipe(
        a=Setup.of(a), b=None if b is None else Setup.of(b), requests=tuple(found), rate=rate, rounds=rounds
    )
    assert Recipe().opened(recipe.packed()) == recipe


@pytest.mark.parametrize("packed", ["", "x", "AAAA", "é", "A" * 5000, Recipe(rate=3).packed()[:-6]])
def test_an_address_that_was_cut_or_changed_is_refused(packed: str) -> None:
    with pytest.raises(DeskError, match="recipe"):
        Recipe().opened(packed)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda v: (
            st.lists(v)
            | st.dictionaries(
                st.sampled_from(["v", "a", "b", "requests", "rate", "speed", "clock", "model", "rounds"]), v
            )
        ),
    )
)
def test_whatever_a_recipe_holds_it_is_taken_or_refused(found: object) -> None:
    if isinstance(found, dict):
        found["v"] = 1
    try:
        Recipe().with_record(json.loads(json.dumps(found)))
    except DeskError:
        return


def test_each_lever_has_a_default_that_is_one_of_its_options_and_makes_a_configuration() -> None:
    for name, lever in LEVERS.items():
        for value in lever.options:
            assert Setup.of({name: value}).config().num_blocks
    with pytest.raises(DeskError, match="choose from on, off"):
        Setup(prefix_cache="perhaps")
    with pytest.raises(DeskError, match="there is no lever 'colour'"):
        Setup.of({"colour": "red"})
    assert every(0.5, ("a", "b"), (1,), 3)[2] == Ask(1.0, "a", 1)
