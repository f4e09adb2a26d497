"""JSON schemas: whatever a grammar emits is accepted by the ``jsonschema`` package, and what it should emit it can."""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from grammar_harness import accepts, byte_vocabulary, ids_of
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from minillm.grammar import CompiledGrammar, GrammarError, Vocabulary, compile_json_schema
from minillm.grammar.json_formats import FORMATS

BYTES = byte_vocabulary()
# Tokens that cut across everything JSON has, on top of the single bytes.
_LONGER = [
    '{"',
    '": ',
    '":',
    '", "',
    '","',
    '"}',
    '"]',
    "},",
    "]}",
    "[{",
    '"a":',
    "true",
    "null",
    "12",
    ".5",
    "e+",
    "-1",
]
_LONGER += ['\\"', "\\u00", 'a"', "ab", "é", '"b', ', "', "}}", '{"a', "fals", "00", "\\n"]
MIXED = Vocabulary([*BYTES.tokens[:256], *(text.encode() for text in _LONGER), None], {256 + len(_LONGER)})


def emit(grammar: CompiledGrammar, seed: int, slack: int = 12) -> str:
    """A random output. Half of the choices are made where the grammar wants to end soon."""
    rng = random.Random(seed)
    vocabulary, state, output = grammar.vocabulary, grammar.start(), b""
    budget = grammar.tokens_to_finish(state) + slack
    while budget and not grammar.is_finished(state):
        choice = rng.choice(ids_of(grammar.allowed(state, budget)))
        if choice in vocabulary.eos_ids:
            break
        output += vocabulary.tokens[choice] or b""
        after = grammar.advance(state, choice)
        assert after is not None
        state, budget = after, budget - 1
    assert grammar.is_accepting(state)
    return output.decode()


def check(schema: Any, text: str) -> None:
    value = json.loads(text)
    error = next(Draft202012Validator(schema).iter_errors(value), None)
    assert error is None, f"{text} against {json.dumps(schema)}: {error.message}"


def compiled(schema: Any) -> CompiledGrammar | None:
    """None for a schema that allows nothing, or says beside an enum what cannot be joined with it."""
    try:
        return compile_json_schema(schema, MIXED)
    except GrammarError as error:
        if re.search("nothing matches|beside enum", str(error)):
            return None
        raise


# --- schemas made by hypothesis ---------------------------------------------------------------------------

_NAMES = st.sampled_from(["a", "b", "ab", "", 'q"', "é"])
_SMALL = st.integers(-12, 12)


def _optional(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


def _with(fixed: dict[str, Any], strategy: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return strategy.map(lambda found: fixed | found)


_VALUES = st.recursive(
    st.none() | st.booleans() | _SMALL | st.sampled_from([1.5, -0.25, "", "a", 'é"\\\n']),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES, inner, max_size=2),
    max_leaves=4,
)
_STRINGS = _with(
    {"type": "string"},
    _optional(minLength=st.integers(0, 3), maxLength=st.integers(3, 6), title=st.just("an annotation"))
    | _optional(
        pattern=st.sampled_from(["^a+$", "b", r"^[^\d]", r"^\w{2,3}$", '^"|x$', "^.$", r"[\s]", r"^\W\S$", "é|\\x07"]),
        maxLength=st.integers(4, 5),
    )
    | _optional(format=st.sampled_from([*FORMATS])),
)
_BOUND = _SMALL | st.sampled_from([0.5, -0.25, 1.125, 10.0, 1e3, 99.99])
_NUMBERS = st.sampled_from(["number", "integer"]).flatmap(
    lambda name: _with(
        {"type": name},
        _optional(minimum=_BOUND, exclusiveMaximum=_BOUND.map(lambda bound: bound + 30))
        | _optional(exclusiveMinimum=_BOUND, maximum=_BOUND.map(lambda bound: bound + 2)),
    )
)
_SCALARS = (
    _STRINGS
    | _NUMBERS
    | st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null", "string"]}, True, {}])
    | st.lists(_VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values})
    | _VALUES.map(lambda value: {"const": value})
)


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = _optional(
        properties=st.dictionaries(_NAMES, inner, max_size=3),
        required=st.lists(_NAMES, max_size=2, unique=True),
        additionalProperties=st.booleans() | inner,
    )
    arrays = _optional(
        items=inner,
        prefixItems=st.lists(inner, min_size=1, max_size=2),
        minItems=st.integers(0, 3),
        maxItems=st.integers(1, 4),
    )
    choices = st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches})
    every = st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"allOf": parts})
    beside = st.tuples(objects, choices | every).map(lambda two: two[0] | two[1])
    return _with({"type": "object"}, objects) | _with({"type": "array"}, arrays) | choices | every | beside | objects


SCHEMAS = st.recursive(_SCALARS, _larger, max_leaves=6)


@given(SCHEMAS, st.integers(0, 2**32))
@settings(max_examples=200)
def test_whatever_is_emitted_satisfies_its_schema(schema: Any, seed: int) -> None:
    Draft202012Validator.check_schema(schema)
    grammar = compiled(schema)
    for walk in range(3 if grammar else 0):
        assert grammar is not None
        check(schema, emit(grammar, seed + walk, slack=4 * walk + 4))


def test_most_schemas_of_the_property_can_be_compiled() -> None:
    found: list[bool] = []

    @given(SCHEMAS)
    @settings(max_examples=100, database=None, derandomize=True)
    def count(schema: Any) -> None:
        found.append(compiled(schema) is not None)

    count()
    assert sum(found) > 0.8 * len(found)


# --- numbers ----------------------------------------------------------------------------------------------


@given(st.integers(-1300, 1300), st.integers(-1300, 1300), st.lists(st.integers(-1400, 1400), max_size=20))
def test_whole_numbers_within_bounds_and_no_others(low: int, high: int, numbers: list[int]) -> None:
    low, high = sorted((low, high))
    grammar = compile_json_schema({"type": "integer", "minimum": low, "maximum": high}, BYTES)
    for number in [low - 1, low, low + 1, high - 1, high, high + 1, *numbers]:
        assert accepts(grammar, str(number)) == (low <= number <= high)
    assert not accepts(grammar, "-0")
    assert not any(accepts(grammar, text) for text in ("", "-", f"0{high}", f"{high}.0", f"+{high}"))


_DECIMALS = st.integers(-3000, 3000).map(lambda scaled: scaled / 100)


@given(_DECIMALS, _DECIMALS, st.booleans(), st.booleans(), st.lists(_DECIMALS, max_size=20))
def test_decimals_within_bounds_and_no_others(
    low: float, high: float, above: bool, below: bool, numbers: list[float]
) -> None:
    low, high = min(low, high), round(max(low, high) + 0.01, 2)
    schema = {
        "type": "number",
        "exclusiveMinimum" if above else "minimum": low,
        "exclusiveMaximum" if below else "maximum": high,
    }
    grammar = compile_json_schema(schema, BYTES)
    for number in [low - 0.000001, low, low + 0.000001, (low + high) / 2, high - 0.000001, high, high + 1, *numbers]:
        text = f"{number:.6f}".rstrip("0").rstrip(".")
        inside = next(Draft202012Validator(schema).iter_errors(json.loads(text)), None) is None
        assert accepts(grammar, text) == (inside and text != "-0"), text


@pytest.mark.parametrize("text", ["0", "-12", "1.5", "0.000001", "-3e10", "12E-5", "999999999999999", "1e+99"])
def test_any_number(text: str) -> None:
    assert accepts(compile_json_schema({"type": "number"}, BYTES), text)
    assert not accepts(compile_json_schema({"type": "number"}, BYTES), f"{text}x")


# --- what is matched, and what is not ---------------------------------------------------------------------

TREE = {
    "$defs": {"tree": {"type": ["object", "null"], "properties": {"left": {"$ref": "#/$defs/tree"}}}},
    "$ref": "#/$defs/tree",
}
BESIDE_REF = {
    "$defs": {"named": {"properties": {"name": {"type": "string"}}, "required": ["name"]}},
    "$ref": "#/$defs/named",
    "properties": {"age": {"type": "integer"}},
}
SHAPES = {
    "oneOf": [
        {"properties": {"kind": {"const": "dot"}}, "required": ["kind"]},
        {"properties": {"kind": {"const": "disc"}, "r": {"type": "integer"}}, "required": ["kind", "r"]},
    ],
    "type": "object",
}


@pytest.mark.parametrize(
    ("schema", "texts", "others"),
    [
        (True, ["null", '{"a":[1,{"b":true}]}', '"x"', "[[[]]]"], ["", "nul", "[1,]", "[1 ]", " 1", "{'a':1}"]),
        ({"type": "string"}, ['""', '"\\u00e9"', '"é"', '"\\/"'], ['"\n"', '"\\ud800"', '"\\x"', '"']),
        ({"type": "string", "maxLength": 2}, ['"é𝄞"', '"\\n\\""'], ['"abc"', '"é𝄞\\u0041"']),
        ({"type": "string", "pattern": "b"}, ['"abc"', '"b\\n"'], ['"ac"', '"B"']),
        ({"type": "string", "pattern": "^b*$", "minLength": 2}, ['"bb"', '"bbb"'], ['"b"', '"bc"']),
        ({"enum": ["a", 1, None, {"k": [1, 2]}]}, ['"a"', "1", "null", '{"k":[1, 2]}'], ['"b"', "{}", '{ "k":[1,2]}']),
        ({"type": ["integer", "string"], "enum": ["a", 1.0, 1.5]}, ['"a"', "1.0"], ["1.5"]),
        ({"type": "object"}, ["{}", '{"a":1}', '{"a": 1, "a": 2}'], ["{ }", '{"a":1,}', '{"a" :1}']),
        (
            {"properties": {"a": {"type": "null"}, "b": {}}, "required": ["b"]},
            ['{"b":1}', '{"a": null, "b": []}'],
            ["{}", '{"a":null}', '{"b":1,"a":null}', '{"b":1,"c":1}', "1"],
        ),
        (
            {"properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
            ["{}", '{"ab":null,"a":1,"abc":2}', '{"":1}', '{"b":1}'],
            ['{"ab":1}', '{"a":null}', '{"a":1,"ab":null}', '{"ab":null,"ab":1}', '{"\\u0061b":1}'],
        ),
        ({"required": ["x"]}, ['{"x":1}', '{"x":1,"y":2}'], ["{}", '{"y":2}']),
        ({"required": ["x"], "additionalProperties": {"type": "null"}}, ['{"x":null}'], ['{"x":1}']),
        ({"items": {"const": 0}, "minItems": 1, "maxItems": 2}, ["[0]", "[0, 0]"], ["[]", "[0,0,0]"]),
        ({"prefixItems": [{"const": 1}, {"const": 2}]}, ["[]", "[1]", "[1,2]", '[1,2,"x"]'], ["[2]", "[1,1]"]),
        ({"prefixItems": [{"const": 1}], "items": False, "minItems": 1}, ["[1]"], ["[]", "[1,1]"]),
        ({"prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 1}, ["[]", "[1]"], ["[1,2]"]),
        ({"maxItems": 0}, ["[]"], ["[1]"]),
        (TREE, ["null", '{"left":{"left":null}}', "{}"], ['{"left":1}', '{"left":{}', '{"right":null}']),
        (BESIDE_REF, ['{"name":"x"}', '{"name":"x", "age":3}'], ['{"age":3}', '{"name":"x","age":"y"}']),
        (SHAPES, ['{"kind":"dot"}', '{"kind": "disc", "r": 2}'], ['{"kind":"disc"}', '{"kind":"dot","r":2}']),
        ({"allOf": [{"minimum": 3}, {"maximum": 5, "type": "integer"}]}, ["3", "5"], ["2", "6", "3.5"]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "maxLength": 1}, ['"a"', "null"], ['"ab"']),
        ({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, ['"ab"', '"axb"'], ['"a"', '"b"']),
        ({"allOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, ["2"], ["1", "3"]),
    ],
)  # fmt: skip
def test_what_a_schema_matches(schema: Any, texts: list[str], others: list[str]) -> None:
    grammar = compile_json_schema(schema, BYTES)
    assert [text for text in [*texts, *others] if accepts(grammar, text)] == texts
    for text in texts:
        check(schema, text)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"items": {"patternProperties": {}}}, "#/items/patternProperties: the keyword 'patternProperties' is not"),
        ({"not": {}}, "'not'"),
        ({"if": True}, "'if'"),
        ({"items": {"uniqueItems": True}}, "#/items/uniqueItems"),
        ({"multipleOf": 2}, "'multipleOf'"),
        ({"anyOf": [True, {"contains": {}}]}, "#/anyOf/1/contains"),
        ({"properties": {"a": {"$id": "x"}}}, "'$id'"),
        ({"type": "text"}, "#/type is 'text'"),
        ({"type": "string", "format": "hostname"}, "it must be one of the supported date, "),
        ({"minLength": -1}, "#/minLength is -1"),
        ({"minimum": "1"}, "#/minimum is '1'"),
        ({"items": [{}]}, "prefixItems"),
        ({"properties": []}, "an object of schemas"),
        ({"required": "a"}, "a list of names"),
        ({"enum": []}, "a list of values"),
        ({"anyOf": []}, "a list of schemas"),
        ({"pattern": 3}, "a string"),
        ({"pattern": r"\bx"}, "is not supported"),
        ({"pattern": "(a", "type": "string"}, "#/pattern: regular expression '(a'"),
        ({"$ref": "other.json"}, "only #/..."),
        ({"$ref": "#/$defs/none"}, "does not have"),
        ({"$ref": "#/title", "title": "x"}, "is no schema"),
        ({"$ref": "#"}, "without end"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "left recursion"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "nothing matches"),
        (False, "nothing matches"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "nothing matches"),
        ({"minLength": 2, "maxLength": 1}, "nothing matches"),
        ({"minItems": 2, "maxItems": 1}, "nothing matches"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "nothing matches"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "branch 0 and branch 1"),
        ({"oneOf": [{"properties": {"a": True}}, {"properties": {"b": True}}]}, "branch 0 and branch 1"),
        ({"enum": ["a"], "minLength": 1}, "minLength beside enum"),
        ({"type": "integer", "minimum": 1e300}, "at most 15 digits"),
        ({"type": "number", "exclusiveMaximum": 1234567890123456}, "at most 15 digits"),
        ({"pattern": "^a*$", "maxLength": 50_000}, "more than 1,000 states"),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "branch 0 and branch 1"),
        ({"oneOf": [{"enum": [[{"a": 1, "b": 2}]]}, {"enum": [[{"b": 2.0, "a": 1}]]}]}, "branch 0 and branch 1"),
        ({"allOf": [{"anyOf": [{"minimum": i * j} for i in range(30)]} for j in range(9)]}, "900 pairs of branches"),
        ({"format": ["date"]}, "it must be one of the supported date, "),
        ({"minLength": 10**400}, "from 0 to 1,000,000,000,000,000,000"),
        ('{"minLength": 1e400}', "not JSON"),
        ('{"maximum": Infinity}', "not JSON"),
        ({"exclusiveMinimum": float("nan")}, "not JSON"),
        ({"const": [float("inf")]}, "not JSON"),
        ({"enum": [b"a"]}, "not JSON"),
        ({"const": {1, 2}}, "not JSON"),
        ("[" * 100_000, "nests too deep"),
        ('{"const":' + "[" * 300 + "]" * 300 + "}", "nests deeper than 300 levels"),
        ('{"items":' * 299 + "{}" + "}" * 299, "nest deeper than 60"),
        ('{"allOf":[' * 149 + "{}" + "]}" * 149, "without end"),
        ("{", "not JSON"),
        ("3", "must be an object"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named_with_its_place(schema: Any, named: str) -> None:
    with pytest.raises(GrammarError) as error:
        compile_json_schema(schema, BYTES)
    assert named in str(error.value)


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "integer"}, {"type": ["string", "null"]}],
        [{"enum": [1, "a"]}, {"enum": [2, "b"]}],
        [{"enum": [1, 2]}, {"type": "string"}],
        [{"type": "object", "required": ["a"]}, {"additionalProperties": False, "type": "object"}],
        [
            {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
            {"type": "object", "required": ["a"], "properties": {"a": {"type": "null"}}},
        ],
    ],
)  # fmt: skip
def test_branches_that_exclude_each_other_may_stand_in_one_of(branches: list[Any]) -> None:
    grammar = compile_json_schema({"oneOf": branches}, MIXED)
    for seed in range(8):
        check({"oneOf": branches}, emit(grammar, seed))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"allOf": [{"enum": [1, 2]}, {"enum": [3, 1.0]}]}, "1"),
        ({"allOf": [{"const": {"a": 1, "b": 2}}, {"const": {"b": 2, "a": 1.0}}]}, '{"a":1,"b":2}'),
        ({"properties": {1: {"const": {2: (3,)}}}, "required": ["1"]}, '{"1":{"2":[3]}}'),
        ({"const": 1}, "1"),
        ({"const": True}, "true"),
        ({"oneOf": [{"const": True}, {"const": 1}]}, "true"),
    ],
)  # fmt: skip
def test_values_are_compared_and_written_as_json_does(schema: Any, text: str) -> None:
    grammar = compile_json_schema(schema, BYTES)
    assert accepts(grammar, text)
    check(json.loads(json.dumps(schema)), text)


def test_the_deepest_schema_that_is_read_can_be_used() -> None:
    deep = "[" * 299 + "]" * 299
    assert accepts(compile_json_schema('{"const":' + deep + "}", BYTES), deep)


_READ: dict[str, Callable[[str], object]] = {
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "date-time": datetime.datetime.fromisoformat,
    "uuid": uuid.UUID,
    "ipv4": ipaddress.IPv4Address,
    "email": lambda text: text.index("@"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_read_by_who_knows_them(name: str) -> None:
    grammar = compile_json_schema({"type": "string", "format": name}, MIXED)
    for seed in range(30):
        _READ[name](json.loads(emit(grammar, seed, slack=seed)))


def test_a_string_without_end_is_closed_when_the_budget_ends() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    grammar = compile_json_schema(schema, MIXED)
    needed = grammar.tokens_to_finish(grammar.start())
    assert needed == 5  # {"a and ": by the longest tokens there are, then a quote, a quote and the brace
    for slack in range(10):
        check(schema, emit(grammar, seed=slack, slack=slack))


def test_a_list_of_any_length_keeps_a_short_stack_and_a_deep_value_a_deep_one() -> None:
    grammar = compile_json_schema(True, BYTES)
    flat = "[" + "1," * 5000 + "1]"
    deep = "[" * 3000 + "]" * 3000  # deeper than Python's own stack
    assert accepts(grammar, flat)
    assert accepts(grammar, deep)
    assert not accepts(grammar, deep + "]")
