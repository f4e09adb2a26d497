"""Whether two JSON schemas are seen to have no value in common, which ``oneOf`` asks of its branches."""

from __future__ import annotations

from typing import Any

from minillm.grammar.json_merge import TYPES, Flat, Flattener, Schema, identity


def kind(value: Any) -> str:
    """The type of a value; a number without fraction is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if value == int(value) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def kinds(flat: dict[str, Any]) -> set[str]:
    """The types that a flat schema leaves open; "number" stands for those that are no integers."""
    names = set(flat.get("type", TYPES))
    if "number" in names:
        names.add("integer")
    return names & {kind(value) for value in flat["enum"]} if "enum" in flat else names


def are_disjoint(one: Flat, other: Flat, flattener: Flattener, depth: int = 0) -> bool:
    """True if no value satisfies both; False also where that is not seen."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is False or other is False
    shared = kinds(one) & kinds(other)
    if not shared:
        return True
    if "enum" in one and "enum" in other:
        return not {identity(value) for value in one["enum"]} & {identity(value) for value in other["enum"]}
    if shared != {"object"} or depth > 10:
        return False

    def flat(schema: Schema) -> Flat:
        return flattener.flatten(schema, "#")

    def lacks(flat: dict[str, Any], name: str) -> bool:
        return name not in flat.get("properties", {}) and flat.get("additionalProperties") is False

    required, other_required = set(one.get("required", ())), set(other.get("required", ()))
    if any(lacks(other, name) for name in required) or any(lacks(one, name) for name in other_required):
        return True
    named = required & other_required & one.get("properties", {}).keys() & other.get("properties", {}).keys()
    return any(
        are_disjoint(flat(one["properties"][name]), flat(other["properties"][name]), flattener, depth + 1)
        for name in named
    )
