"""Look up what a JSON Schema declares at one path of the arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pydantic import JsonValue

from twokey.gateway.protocol.pointers import pointed
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.validation_errors import near

_OPEN = frozenset(
    {"allOf", "anyOf", "oneOf", "if", "not", "$dynamicRef", "patternProperties"}
    | {"dependentSchemas", "prefixItems"}
)

_TYPED = frozenset({"type", "enum", "const", "anyOf", "oneOf", "allOf"})

_MAX_REFERENCES = 16

EVERY = "*"
"""In a path to hide: every member or element of one level."""


class Shape(NamedTuple):
    """What a schema says of a place.

    Attributes:
        node: the schema of the place; None when nothing can be said.
        kinds: the JSON types it may have; empty when any.
        missing: why there is no such place; empty when there is, or may be.
    """

    node: JsonObject | None = None
    kinds: frozenset[str] = frozenset()
    missing: str = ""


def shape_at(schema: JsonObject, path: Iterable[str]) -> Shape:
    """Return what a schema says of a path below the arguments."""
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
    """Return True if a schema says of which types, or values, a place may be."""
    node = shape_at(schema, path).node
    return node is not None and not _TYPED.isdisjoint(node)


def _step(node: JsonObject, name: str) -> JsonValue:
    """Return the schema of a member, None for unknown, or why there is none."""
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
    # What may be declared elsewhere is not missing: only a certain mistake is one.
    if more is not False or _OPEN & node.keys():
        return None
    return f"has no {name!r} in its args_schema; {near(name, properties)}"


def _resolved(root: JsonObject, node: JsonValue) -> JsonObject | None:
    # A reference may lead back to itself.
    for _ in range(_MAX_REFERENCES):
        if not isinstance(node, dict):
            return None
        reference = node.get("$ref")
        if isinstance(reference, str):
            node = pointed(root, reference)
        elif (only := _optional(node)) is not None:
            node = only
        else:
            return node
    return None


def _optional(node: JsonObject) -> JsonValue:
    """Return what stands beside null, where that is all there is: ``int | None``."""
    choices = node.get("anyOf", node.get("oneOf"))
    if not isinstance(choices, list) or {"type", "properties", "items"} & node.keys():
        return None
    others = [one for one in choices if one != {"type": "null"}]
    return others[0] if len(others) == 1 else None


def _kinds(node: JsonObject) -> frozenset[str]:
    listed = node.get("type")
    if isinstance(listed, str):
        return frozenset({listed})
    if isinstance(listed, list):
        return frozenset(str(kind) for kind in listed)
    return frozenset()
