"""Check that a JSON Schema is valid, ends, and needs no network access.

The library takes a millisecond to compare one keyword with the metaschema. Agents
declare schemas with every turn, so this module checks their types instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, Schema

from keyturn.gateway.protocol.edits import TOO_LONG, argument_errors
from keyturn.gateway.protocol.schema_validation import (
    SAME_INSTANCE,
    closed,
    members,
    unmatched,
)
from keyturn.gateway.protocol.strict_json import MAX_DEPTH, JsonObject, pointed
from keyturn.gateway.protocol.work import TooMuchWork, one_budget, spend
from keyturn.gateway.validation_errors import near

_MAX_QUOTED = 80  # characters

MAX_PARTS = 2000
"""Most parts of a schema."""

TAKES_LONG = "it takes too long to check"
"""Reason for a schema that is unusable for these arguments but maybe not for others."""


def unusable(schema: JsonObject, args: JsonObject) -> str | None:
    """Return why a schema cannot check arguments; None if it can.

    A broken reference or an endless recursion would otherwise fail later, while a
    person waits.

    Args:
        schema: declared by an agent or set in the policy.
        args: arguments for a trial; whether they fit does not matter here.
    """
    try:
        with one_budget():
            if parts_of(schema) > MAX_PARTS:
                return TAKES_LONG
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
            spend(len(text) // 100)
            # Half of a surrogate pair, anywhere in the schema, could not be stored.
            text.encode("utf-8")
            problem, spent = _problem(text)
            # Also for a cached result: equal calls have equal outcomes.
            spend(spent, is_done=True)
            if problem is None and TOO_LONG in argument_errors(schema, args).values():
                return TAKES_LONG
    except TooMuchWork:
        return TAKES_LONG
    except RecursionError:
        return "it is nested too deep"
    except (ArithmeticError, ValueError) as error:
        # A pattern or an address in it on which the libraries fail.
        return f"nothing can be checked with it ({str(error)[:_MAX_QUOTED]})"
    return problem


def parts_of(node: JsonValue, depth: int = 0) -> int:
    """Return an upper bound of the schemas in one; data in it counts as well.

    Raises:
        RecursionError: when it is nested too deep.
    """
    if depth > 2 * MAX_DEPTH:
        raise RecursionError
    if isinstance(node, dict | list):
        spend(len(node) // 4)
    if isinstance(node, dict):
        return 1 + sum(parts_of(one, depth + 1) for one in node.values())
    if isinstance(node, list):
        return sum(parts_of(one, depth + 1) for one in node)
    # true and false are schemas, too.
    return int(isinstance(node, bool))


# An agent declares the same schemas with every turn. Checking one takes longer than the
# rest of evaluating an auto-approved call.
@lru_cache(maxsize=256)
def _problem(text: str) -> tuple[str | None, int]:
    """Return the problem of a schema (JSON text), and the number of steps used."""
    schema: JsonObject = json.loads(text)
    with one_budget(is_own=True) as budget:
        try:
            problem = _broken(schema)
            pattern = "" if problem else unmatched(schema) or unmatched(closed(schema))
        except TooMuchWork:
            return TAKES_LONG, budget.spent
    if pattern:
        problem = (
            f"the pattern {pattern[:_MAX_QUOTED]!r} cannot be checked in little time"
        )
    return problem, budget.spent


def _broken(schema: JsonObject) -> str | None:
    """Return the first mistake in the keywords or references of a schema."""
    root = DRAFT202012.create_resource(cast("Schema", schema))
    waiting = [(cast("JsonValue", schema), Registry[Schema]().resolver_with_root(root))]
    # By identity: the schemas that apply to the same instance as another one.
    same_instance = dict[int, list[int]]()
    parts = parts_of(schema)
    while waiting:
        node, resolver = waiting.pop()
        if not isinstance(node, dict) or id(node) in same_instance:
            continue
        if wrong := _wrong(node):
            return wrong
        resource = DRAFT202012.create_resource(cast("Schema", node))
        resolver = resolver.in_subresource(resource)
        below = same_instance[id(node)] = list[int]()
        for reference in _references(node):
            # The library searches the whole schema for an anchor.
            spend(parts * (reference[:2] not in {"#", "#/"}))
            try:
                found = resolver.lookup(reference)
            except Unresolvable:
                return f"it refers to {reference[:_MAX_QUOTED]!r}, which is not in it"
            waiting.append((cast("JsonValue", found.contents), found.resolver))
            below.append(id(found.contents))
        for path, one in members(node):
            waiting.append((one, resolver))
            if path[0] in SAME_INSTANCE:
                below.append(id(one))
    try:
        TopologicalSorter(same_instance).prepare()
    except CycleError:
        return "it refers to itself without end"
    return None


def _wrong(node: JsonObject) -> str:
    spend(2 + len(node) // 2)
    for key, value in node.items():
        try:
            if key in _RIGHT:
                _RIGHT[key].validate_python(value)
        except ValidationError:
            return f"{key!r} cannot be {json.dumps(value)[:_MAX_QUOTED]}"
    return ""


def _references(node: JsonObject) -> Iterator[str]:
    for reference in (node.get("$ref"), node.get("$dynamicRef")):
        if isinstance(reference, str):
            spend(10 + len(reference) // 8)
            yield reference


_PART = bool | dict[str, Any]
_NUMBER = Annotated[float, Field(strict=True)]  # also an integer, but no bool
_TYPE = Literal["array", "boolean", "integer", "null", "number", "object", "string"]
_TEXTS = (
    *("$id", "$schema", "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "pattern"),
    *("format", "title", "description", "contentMediaType", "contentEncoding"),
)
_PARTS = (
    *("items", "contains", "additionalProperties", "propertyNames", "contentSchema"),
    *("not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
)
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_COUNTS = (
    *("maxLength", "minLength", "maxItems", "minItems", "maxContains", "minContains"),
    *("maxProperties", "minProperties"),
)
_BOUNDS = ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(_PARTS, _PART),
    **dict.fromkeys(_NAMED, dict[str, _PART]),
    **dict.fromkeys(_COUNTS, Annotated[_NUMBER, Field(ge=0, multiple_of=1)]),
    **dict.fromkeys(_BOUNDS, _NUMBER),
    **dict.fromkeys(_LISTED, Annotated[list[_PART], Field(min_length=1)]),
    **dict.fromkeys(("enum", "examples"), list[Any]),
    "multipleOf": Annotated[_NUMBER, Field(gt=0)],
    "type": _TYPE | Annotated[list[_TYPE], Field(min_length=1)],
    "required": list[str],
    "dependentRequired": dict[str, list[str]],
    "uniqueItems": bool,
}
_RIGHT = {
    keyword: TypeAdapter(kind, config=ConfigDict(strict=True))
    for keyword, kind in _KINDS.items()
}
"""For each keyword, the values that the library can evaluate."""


_OPEN = frozenset(
    {"allOf", "anyOf", "oneOf", "if", "not", "$dynamicRef", "patternProperties"}
    | {"dependentSchemas", "prefixItems"}
)

_TYPED = frozenset({"type", "enum", "const", "anyOf", "oneOf", "allOf"})

_MAX_REFERENCES = 16

EVERY = "*"
"""In a path to hide: every member or element of one level."""


class Shape(NamedTuple):
    """The part of a schema that applies to one path.

    Attributes:
        node: the schema at the path; None if unknown.
        kinds: the JSON types of a value there; empty for any.
        missing: why the path cannot exist; empty if it can.
    """

    node: JsonObject | None = None
    kinds: frozenset[str] = frozenset()
    missing: str = ""


def shape_at(schema: JsonObject, path: Iterable[str]) -> Shape:
    """Return the shape at a path below the arguments."""
    node = _resolved(schema, schema)
    for name in path:
        if node is None:
            return Shape()
        step = _step(node, name)
        if isinstance(step, str):
            return Shape(missing=step)
        node = _resolved(schema, step)
    return Shape() if node is None else Shape(node, _kinds(node))


def is_typed(schema: JsonObject, path: Iterable[str]) -> bool:
    """Return True if a schema sets types or values for a path."""
    node = shape_at(schema, path).node
    return node is not None and not _TYPED.isdisjoint(node)


def _step(node: JsonObject, name: str) -> JsonValue:
    """Return the schema of a member, None if unknown, or the reason it is missing."""
    kinds = _kinds(node)
    if kinds == frozenset({"array"}):
        is_element = name == EVERY or name.isdigit()
        return node.get("items") if is_element else f"has a list before {name!r}"
    if kinds and not kinds & {"array", "object"}:
        return f"has {' or '.join(sorted(kinds))} before {name!r}"
    return None if name == EVERY else _member(node, name)


def _member(node: JsonObject, name: str) -> JsonValue:
    properties = node.get("properties")
    if not isinstance(properties, dict):
        return None
    if name in properties:
        return properties[name]
    more = node.get("additionalProperties", node.get("unevaluatedProperties", False))
    # A member may be declared elsewhere: only a certain mistake is reported.
    if more is not False or _OPEN & node.keys():
        return None
    return f"has no {name!r} in its args_schema; {near(name, properties)}"


def _resolved(root: JsonObject, node: JsonValue) -> JsonObject | None:
    # A reference may lead back to itself.
    for _ in range(_MAX_REFERENCES):
        if not isinstance(node, dict):
            return None
        reference = node.get("$ref")
        spend(1)
        if isinstance(reference, str):
            spend(len(reference) // 8)
            node = pointed(root, reference)
        elif (only := _optional(node)) is not None:
            node = only
        else:
            return node
    return None


def _optional(node: JsonObject) -> JsonValue:
    """Return the only alternative to null, as for ``int | None``."""
    choices = node.get("anyOf", node.get("oneOf"))
    if not isinstance(choices, list) or {"type", "properties", "items"} & node.keys():
        return None
    spend(len(choices) // 8)
    others = [one for one in choices if one != {"type": "null"}]
    return others[0] if len(others) == 1 else None


def _kinds(node: JsonObject) -> frozenset[str]:
    listed = node.get("type")
    if isinstance(listed, str):
        return frozenset({listed})
    if isinstance(listed, list):
        return frozenset(str(kind) for kind in listed)
    return frozenset()
