"""JSON schemas as rules: whatever the rules match is JSON that satisfies the schema.

The reverse does not hold: of the values that a schema allows, the rules match those that a model should
write. Properties come in the order of the schema; without ``additionalProperties`` an object with
``properties`` has no others; white space and the length of numbers are bounded (``json_text``); a pattern's
characters have one spelling each. ``oneOf`` needs branches that are seen to exclude each other. Everything that
is not supported is refused, by the keyword's name and its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from itertools import combinations
from typing import Any

from minillm.grammar import json_text
from minillm.grammar.characters import EVERY
from minillm.grammar.expressions import (
    NEVER,
    Bytes,
    Call,
    Expr,
    GrammarError,
    Rules,
    alt,
    literal,
    optional,
    repeat,
    seq,
)
from minillm.grammar.intersection import intersect
from minillm.grammar.json_disjoint import are_disjoint, kind, kinds
from minillm.grammar.json_merge import TYPES, Flat, Flattener, Schema, merge
from minillm.grammar.json_text import COLON, COMMA, MAX_DIGITS
from minillm.grammar.regex import search_expr

_KEYWORDS = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
_PLACES = 6  # digits after the point of a number with bounds
_MAX_DEPTH = 60
_MAX_LEVELS = 300  # of lists and objects in the text of a schema


def json_schema_rules(schema: Schema | str) -> Rules:
    """Rules for a schema, given as the text of a JSON file or parsed.

    Raises:
        GrammarError: the schema is no JSON, malformed, uses what is not supported, or allows nothing.
    """
    found = _read(schema)
    if not isinstance(found, (dict, bool)):
        raise GrammarError(f"the schema is {schema!r}, it must be an object, true or false")
    compiler = _Compiler(found)
    compiler.rules["root"] = compiler.compile(found, "#")
    return Rules(compiler.rules, "root")


def _read(schema: object) -> object:
    """What JSON makes of a schema, text or parsed: with names for keys, finite numbers, and no values but its own."""
    try:
        found = json.loads(schema if isinstance(schema, str) else json.dumps(schema))
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise GrammarError(f"the schema is not JSON: {error}") from error
    except RecursionError as error:
        raise GrammarError("the schema nests too deep to be read: refer to its parts by $ref instead") from error
    levels = [found]
    for _ in range(_MAX_LEVELS):
        levels = [inner for outer in levels for inner in _inner(outer)]
    if levels:
        raise GrammarError(f"the schema nests deeper than {_MAX_LEVELS} levels: refer to its parts by $ref instead")
    return found


def _inner(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


class _Compiler:
    """Everything is written out where it stands, but for what contains itself and for strings and numbers:
    those are rules, so that all their uses share one set of masks."""

    def __init__(self, document: Schema) -> None:
        self.rules: dict[str, Expr] = {}
        self._flattener = Flattener(document)
        self._open: dict[str, str] = {}  # text of a flat schema that is being compiled -> name for its rule
        self._done: dict[str, Expr] = {}

    def compile(self, schema: Schema, where: str) -> Expr:
        return self._flat(self._flattener.flatten(schema, where), where)

    def _flat(self, flat: Flat, where: str) -> Expr:
        # References count from the root, so equal texts mean the same anywhere.
        key = json.dumps(flat)
        if key in self._open:
            name = self._open[key]
            self.rules.setdefault(name, NEVER)  # until it is done
            return Call(name)
        if key not in self._done:
            if len(self._open) > _MAX_DEPTH:
                raise GrammarError(f"{where}: schemas nest deeper than {_MAX_DEPTH}: refer to one by $ref instead")
            name = self._open[key] = f"{where} ({len(self._done)}.{len(self._open)})"
            expr = self._by_keyword(flat, where)
            del self._open[key]
            if name in self.rules:
                self.rules[name] = expr
                expr = Call(name)
            self._done[key] = expr
        return self._done[key]

    def _by_keyword(self, flat: Flat, where: str) -> Expr:
        if isinstance(flat, bool):
            return self._anything() if flat else NEVER
        for keyword in ("anyOf", "oneOf"):
            if keyword in flat:
                return self._choice(keyword, flat, where)
        if "enum" in flat:
            return self._enum(flat, where)
        if not flat:
            return self._anything()
        names = flat.get("type", [name for name in TYPES if any(key in flat for key in _KEYWORDS.get(name, ()))])
        return alt(*(self._of_type(name, flat, where) for name in names))

    def _of_type(self, name: str, flat: dict[str, Any], where: str) -> Expr:
        match name:
            case "object":
                return self._object(flat, where)
            case "array":
                return self._array(flat, where)
            case "string":
                return self._string(flat, where)
            case "number" | "integer":
                return self._number(name, flat, where)
            case "boolean":
                return alt(literal("true"), literal("false"))
        return literal("null")

    def _choice(self, keyword: str, flat: dict[str, Any], where: str) -> Expr:
        beside = {key: argument for key, argument in flat.items() if key != keyword}
        places = [f"{where}/{keyword}/{number}" for number in range(len(flat[keyword]))]
        branches = [
            merge(beside, self._flattener.flatten(branch, place))
            for branch, place in zip(flat[keyword], places, strict=True)
        ]
        if keyword == "oneOf":
            for (a, one), (b, other) in combinations(enumerate(branches), 2):
                if not are_disjoint(one, other, self._flattener):
                    raise GrammarError(
                        f"{where}/oneOf: a value may satisfy both branch {a} and branch {b}, so it would satisfy "
                        "neither alone: use anyOf, or a required property whose values tell the branches apart"
                    )
        return alt(*(self._flat(branch, place) for branch, place in zip(branches, places, strict=True)))

    def _enum(self, flat: dict[str, Any], where: str) -> Expr:
        others = sorted(flat.keys() - {"enum", "type"})
        if others:
            raise GrammarError(f"{where}: {', '.join(others)} beside enum or const is not supported: leave it out")
        allowed = kinds({key: flat[key] for key in ("type",) if key in flat})
        return alt(*(json_text.value(value) for value in flat["enum"] if kind(value) in allowed))

    def _object(self, flat: dict[str, Any], where: str) -> Expr:
        properties: dict[str, Schema] = dict(flat.get("properties", {}))
        required = flat.get("required", [])
        rest: Schema = flat.get("additionalProperties", not properties)
        unnamed: Schema = flat.get("additionalProperties", True)
        for name in required:
            properties.setdefault(name, unnamed)
        members: list[tuple[Expr, bool]] = []
        for name, schema in properties.items():
            is_required = name in required
            found = self.compile(schema, f"{where}/properties/{name}")
            members.append((seq(literal(json.dumps(name, ensure_ascii=False)), COLON, found), is_required))
        more: Expr = self.compile(rest, f"{where}/additionalProperties")
        if more is not NEVER:
            more = seq(self._other_key(properties), COLON, more)
        return seq(Bytes(b"{"), _members(members, more), Bytes(b"}"))

    def _other_key(self, properties: dict[str, Schema]) -> Expr:
        if not properties:
            return self._string({}, "")
        return self._rule(
            f"a key but {', '.join(properties)}", lambda: json_text.string(json_text.content_except(properties))
        )

    def _array(self, flat: dict[str, Any], where: str) -> Expr:
        first = [self.compile(s, f"{where}/prefixItems/{place}") for place, s in enumerate(flat.get("prefixItems", []))]
        item = self.compile(flat.get("items", True), f"{where}/items")
        low = int(flat.get("minItems", 0))
        high = int(flat["maxItems"]) if "maxItems" in flat else None
        if high is not None and high < low:
            return NEVER
        first = first if high is None else first[:high]
        # From the last to the first: what may follow each item.
        rest = repeat(seq(COMMA, item), max(low - len(first), 0), None if high is None else high - len(first))
        if not first:
            some = seq(item, repeat(seq(COMMA, item), max(low - 1, 0), None if high is None else max(high - 1, 0)))
            return seq(Bytes(b"["), _unless(low > 0, NEVER if high == 0 else some), Bytes(b"]"))
        for place in range(len(first) - 1, 0, -1):
            rest = _unless(low > place, seq(COMMA, first[place], rest))
        return seq(Bytes(b"["), _unless(low > 0, seq(first[0], rest)), Bytes(b"]"))

    def _string(self, flat: dict[str, Any], where: str) -> Expr:
        low = int(flat.get("minLength", 0))
        high = int(flat["maxLength"]) if "maxLength" in flat else None
        patterns: list[str] = flat.get("pattern", [])
        if high is not None and high < low:
            return NEVER

        def content() -> Expr:
            if not patterns:
                return repeat(json_text.CHARACTER, low, high)
            try:
                parts = [search_expr(pattern, json_text.one_way) for pattern in patterns]
                if low or high is not None:
                    parts.append(repeat(json_text.one_way(EVERY), low, high))
                return intersect(parts, self.rules)
            except GrammarError as error:
                raise GrammarError(f"{where}/pattern: {error}") from error

        return self._rule(f"string {low} {high} {patterns}", lambda: json_text.string(content()))

    def _number(self, name: str, flat: dict[str, Any], where: str) -> Expr:
        bounds = {key: Decimal(repr(flat[key])) for key in _KEYWORDS["number"] if key in flat}
        if not bounds and name == "number":
            return self._rule("number", json_text.number)
        places = 0
        if name == "number":
            digits = max(len(str(abs(int(bound)))) for bound in bounds.values())
            decimals = max(-int(bound.normalize().as_tuple().exponent) for bound in bounds.values())
            places = max(min(max(_PLACES, decimals), MAX_DIGITS - digits), 0)
        for key, bound in bounds.items():
            if abs(bound).scaleb(places) >= 10**MAX_DIGITS:
                raise GrammarError(f"{where}/{key} is {flat[key]!r}: a bound has at most {MAX_DIGITS} digits")
        scaled = {key: bound.scaleb(places) for key, bound in bounds.items()}
        lows = [math.ceil(scaled[key]) for key in ("minimum",) if key in scaled]
        lows += [math.floor(scaled[key]) + 1 for key in ("exclusiveMinimum",) if key in scaled]
        highs = [math.floor(scaled[key]) for key in ("maximum",) if key in scaled]
        highs += [math.ceil(scaled[key]) - 1 for key in ("exclusiveMaximum",) if key in scaled]
        low, high = max(lows, default=None), min(highs, default=None)
        return self._rule(f"number {low} {high} {places}", lambda: json_text.decimal(low, high, places))

    def _anything(self) -> Expr:
        def value() -> Expr:
            member = seq(self._string({}, ""), COLON, Call("value"))
            item = Call("value")
            return alt(
                seq(Bytes(b"{"), optional(seq(member, repeat(seq(COMMA, member), 0, None))), Bytes(b"}")),
                seq(Bytes(b"["), optional(seq(item, repeat(seq(COMMA, item), 0, None))), Bytes(b"]")),
                self._string({}, ""),
                self._number("number", {}, ""),
                *map(literal, ("true", "false", "null")),
            )

        return self._rule("value", value)

    def _rule(self, name: str, expr: Callable[[], Expr]) -> Expr:
        if name not in self.rules:
            self.rules[name] = NEVER  # it may call itself
            self.rules[name] = expr()
        return Call(name)


def _unless(required: bool, expr: Expr) -> Expr:
    return expr if required else optional(expr)


def _members(members: list[tuple[Expr, bool]], more: Expr) -> Expr:
    """Members in their order, each that is not required perhaps left out, then any number of ``more``."""
    after: Expr = repeat(seq(COMMA, more), 0, None)  # what may follow a member
    first: Expr = optional(seq(more, after))  # what may come where no member has been yet
    for member, is_required in reversed(members):
        first = seq(member, after) if is_required else alt(seq(member, after), first)
        after = seq(_unless(is_required, seq(COMMA, member)), after)
    return first
