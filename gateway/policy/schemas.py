"""Check that a JSON Schema is valid and needs no network access."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import lru_cache

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, Schema

from twokey.gateway.protocol.edits import argument_errors
from twokey.gateway.protocol.schema_closing import closed
from twokey.gateway.protocol.schema_validation import unmatched
from twokey.gateway.protocol.strict_json import JsonObject

_MAX_QUOTED = 80  # characters

MAX_PARTS = 2000
"""How many schemas one of an agent may consist of: to look at so many takes about a
second, in which nobody else is answered."""


def unusable(
    schema: JsonObject, args: JsonObject, *, most_parts: float = math.inf
) -> str | None:
    """Return why a schema cannot check arguments, or None when it can.

    A schema that refers to another document or to nothing, and one that never ends,
    would fail later, while a person waits; here it fails early.

    Args:
        schema: what an agent declares or a policy says.
        args: arguments to try it on; whether they fit does not matter here.
        most_parts: how many schemas it may consist of, see `MAX_PARTS`.
    """
    try:
        if parts_of(schema) > most_parts:
            return f"it has more than {most_parts} parts: they take too long to check"
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        # Half of a surrogate pair, anywhere in it, could not be stored.
        text.encode("utf-8")
        problem = _problem(text)
        if problem is None:
            argument_errors(schema, args)
    except RecursionError:
        return "it refers to itself without end"
    except (ArithmeticError, ValueError) as error:
        # A pattern or an address in it that the libraries themselves trip over.
        return f"nothing can be checked with it ({str(error)[:_MAX_QUOTED]})"
    return problem


def parts_of(node: JsonValue) -> int:
    """Return how many schemas one may consist of at most; data in it counts as well.

    Raises:
        RecursionError: when it is nested too deep.
    """
    if isinstance(node, dict):
        return 1 + sum(map(parts_of, node.values()))
    if isinstance(node, list):
        return sum(map(parts_of, node))
    # Also true and false are schemas.
    return int(isinstance(node, bool))


# An agent declares the same schemas with every turn, and looking at one takes longer
# than everything else that is evaluated of a call which needs nobody.
@lru_cache(maxsize=256)
def _problem(text: str) -> str | None:
    """Return what is wrong with a schema (JSON text), whatever the arguments are."""
    schema: JsonObject = json.loads(text)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"{error.message[:300]} (at {error.json_path[:300]})"
    pattern = unmatched(schema) or unmatched(closed(schema))
    if pattern:
        return f"the pattern {pattern[:_MAX_QUOTED]!r} cannot be checked in little time"
    resource = DRAFT202012.create_resource(schema)
    resolver = Registry[Schema]().resolver_with_root(resource)
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            return f"it refers to {reference[:_MAX_QUOTED]!r}, which is not in it"
    return None


# Data (``const``, ``default``) is searched as well, so a string under "$ref" in it is
# taken for a reference and the schema is refused. Known keywords alone would miss a
# schema that a reference reaches under a key of its author's own.
def _references(node: JsonValue) -> Iterator[str]:
    if isinstance(node, dict):
        for key, member in node.items():
            if key in {"$ref", "$dynamicRef"} and isinstance(member, str):
                yield member
            yield from _references(member)
    elif isinstance(node, list):
        for element in node:
            yield from _references(element)
