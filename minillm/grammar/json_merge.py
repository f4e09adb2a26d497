"""Several JSON schemas that one value must satisfy, made one: for ``allOf``, ``$ref`` and what stands beside them.

A *flat* schema has no ``$ref``, ``allOf``, ``const``, ``format`` and no annotations: ``const`` is an ``enum`` of one,
a ``format`` is a pattern, and ``pattern`` is the list of all patterns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from minillm.grammar.expressions import GrammarError
from minillm.grammar.json_formats import FORMATS

Schema: TypeAlias = "dict[str, Any] | bool"
Flat: TypeAlias = "dict[str, Any] | bool"

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly")).union(
    ("contentMediaType", "contentEncoding", "$schema", "$comment", "$defs", "definitions")
)
_TIGHTER: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
}
_SHAPE = (
    "properties",
    "additionalProperties",
    "items",
    "prefixItems",
)  # explain each other: they stay together
_FLAT: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "const": lambda value: {"enum": [value]},
    "type": lambda names: {"type": [names] if isinstance(names, str) else names},
    "pattern": lambda pattern: {"pattern": [pattern]},
    "format": lambda name: {"pattern": [FORMATS[name]]},
}
_ARRAY_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SUPPORTED = frozenset(("$id", "$ref", "const", "enum", "type", "required", "pattern", "format")).union(
    _ARRAY_OF_SCHEMAS, _SHAPE, _TIGHTER
)
_MAX_DEPTH = 100
_MAX_COUNT = 10**18  # of characters and items
_MAX_BRANCHES = 500  # of several choices that hold at once


class Flattener:
    """Resolves references within one document. ``GrammarError`` names the keyword and its place."""

    def __init__(self, document: Schema) -> None:
        self._document = document

    def flatten(self, schema: Schema, where: str, depth: int = 0) -> Flat:
        """The flat schema of the same values."""
        if isinstance(schema, bool):
            return schema
        if depth > _MAX_DEPTH:
            raise GrammarError(f"{where}: the schema refers to itself without end: let something stand between")
        check(schema, where)
        shape = {key: argument for key, argument in schema.items() if key in _SHAPE}
        parts: list[Flat] = []
        for key, argument in schema.items():
            if key == "$ref":
                parts.append(self.flatten(self.resolve(argument, where), argument, depth + 1))
            elif key == "allOf":
                for place, entry in enumerate(argument):
                    parts.append(self.flatten(entry, f"{where}/allOf/{place}", depth + 1))
            elif key in _SHAPE:
                parts.append(shape)
            elif key not in _ANNOTATIONS and key != "$id":
                parts.append(_FLAT.get(key, lambda argument, key=key: {key: argument})(argument))
        result: Flat = {}
        for part in parts:
            result = merge(result, part)
        return result

    def resolve(self, reference: str, where: str) -> Schema:
        """The schema that ``#`` or ``#/a/pointer`` names."""
        found: Any = self._document
        parts = unquote(reference).split("/")
        if parts[0] != "#":
            raise GrammarError(f"{where}/$ref is {reference!r}: only #/... within the schema is supported")
        for part in parts[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(part)] if isinstance(found, list) else found[part]
            except (KeyError, IndexError, ValueError, TypeError):
                raise GrammarError(f"{where}/$ref is {reference!r}, which the schema does not have") from None
        if not isinstance(found, (dict, bool)):
            raise GrammarError(f"{where}/$ref is {reference!r}, which is no schema")
        return found


def check(schema: dict[str, Any], where: str) -> None:
    """Refuse what is not supported or malformed, by name and place."""
    for key, argument in schema.items():
        place = f"{where}/{key}"
        if key in _ANNOTATIONS:
            continue
        if key not in _SUPPORTED or (key == "$id" and where != "#"):
            raise GrammarError(f"{place}: the keyword {key!r} is not supported: leave it out or say it otherwise")
        wrong = ""
        if key in _ARRAY_OF_SCHEMAS:
            wrong = "" if _is_list_of(argument, (dict, bool)) and argument else "a list of schemas"
        elif key == "type":
            names = [argument] if isinstance(argument, str) else argument
            wrong = "" if _is_list_of(names, str) and {*names} <= {*TYPES} else f"one or more of {', '.join(TYPES)}"
        elif key == "properties":
            values = list(argument.values()) if isinstance(argument, dict) else None
            wrong = "" if _is_list_of(values, (dict, bool)) else "an object of schemas"
        elif key in ("items", "additionalProperties"):
            wrong = "" if isinstance(argument, (dict, bool)) else "one schema (a list of them goes in prefixItems)"
        elif key == "required":
            wrong = "" if _is_list_of(argument, str) else "a list of names"
        elif key == "enum":
            wrong = "" if isinstance(argument, list) and argument else "a list of values"
        elif key in _TIGHTER:
            is_count = key.endswith(("Length", "Items"))
            is_number = isinstance(argument, (int, float)) and not isinstance(argument, bool)
            if not is_number or (is_count and (not 0 <= argument <= _MAX_COUNT or argument != int(argument))):
                wrong = f"a whole number from 0 to {_MAX_COUNT:,}" if is_count else "a number"
        elif key == "format":
            wrong = (
                ""
                if isinstance(argument, str) and argument in FORMATS
                else f"one of the supported {', '.join(FORMATS)}"
            )
        elif key in ("$ref", "pattern"):
            wrong = "" if isinstance(argument, str) else "a string"
        if wrong:
            raise GrammarError(f"{place} is {argument!r}, it must be {wrong}")


def _is_list_of(argument: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(argument, list) and all(isinstance(entry, kind) for entry in argument)


def merge(one: Flat, other: Flat) -> Flat:
    """A flat schema of the values that satisfy both."""
    if isinstance(one, bool):
        return other if one else False
    if isinstance(other, bool):
        return one if other else False
    merged = {**one, **other}
    for key in one.keys() & other.keys():
        a, b = one[key], other[key]
        if key in _TIGHTER:
            merged[key] = _TIGHTER[key](a, b)
        elif key == "type":
            merged[key] = _common_types(a, b)
        elif key in ("required", "pattern"):
            merged[key] = list(dict.fromkeys([*a, *b]))
        elif key == "enum":
            kept = {identity(value) for value in b}
            merged[key] = [value for value in a if identity(value) in kept]
        elif key in ("anyOf", "oneOf"):  # every pair of a branch of one and a branch of the other
            if len(a) * len(b) > _MAX_BRANCHES:
                raise GrammarError(
                    f"{key} with {len(a)} branches and {key} with {len(b)} hold at once, which makes "
                    f"{len(a) * len(b):,} pairs of branches, the most is {_MAX_BRANCHES}: write out those that can hold"
                )
            merged[key] = [both(x, y) for x in a for y in b]
    merged.update(_merge_members(one, other))
    merged.update(_merge_items(one, other))
    return merged


def identity(value: Any) -> str:
    """A text that is the same for values that JSON Schema calls equal: 1 and 1.0, or members in another order."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return json.dumps(plain(value), sort_keys=True)


def both(one: Schema, other: Schema) -> Schema:
    """A schema, not flat, of the values that satisfy both: each condition once, so that it cannot grow forever."""
    if one is False or other is False:
        return False
    conditions = [part for side in (one, other) for part in _conditions(side)]
    distinct = [part for place, part in enumerate(conditions) if part not in conditions[:place]]
    return {"allOf": distinct} if len(distinct) > 1 else distinct[0] if distinct else True


def _conditions(schema: Schema) -> list[Schema]:
    if schema is True:
        return []
    return schema["allOf"] if isinstance(schema, dict) and [*schema] == ["allOf"] else [schema]


def _common_types(one: list[str], other: list[str]) -> list[str]:
    """Every integer is a number."""
    common = [name for name in one if name in other or (name == "integer" and "number" in other)]
    return common + [name for name in other if name == "integer" and name not in one and "number" in one]


def _merge_members(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What one schema says of additional properties holds for those that only the other names."""
    merged: dict[str, Any] = {}
    sides = [(side.get("properties", {}), side.get("additionalProperties", True)) for side in (one, other)]
    (props, rest), (other_props, other_rest) = sides
    if props or other_props:
        names = dict.fromkeys([*props, *other_props])
        merged["properties"] = {name: both(props.get(name, rest), other_props.get(name, other_rest)) for name in names}
    if "additionalProperties" in one or "additionalProperties" in other:
        merged["additionalProperties"] = both(rest, other_rest)
    return merged


def _merge_items(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Likewise for the items behind the first ones."""
    merged: dict[str, Any] = {}
    (first, rest), (other_first, other_rest) = [
        (side.get("prefixItems", []), side.get("items", True)) for side in (one, other)
    ]
    longer = max(len(first), len(other_first))
    if longer:
        first = [*first, *[rest] * (longer - len(first))]
        other_first = [*other_first, *[other_rest] * (longer - len(other_first))]
        merged["prefixItems"] = [both(a, b) for a, b in zip(first, other_first, strict=True)]
    if "items" in one or "items" in other:
        merged["items"] = both(rest, other_rest)
    return merged
