"""Say whether a JSON Schema can be used to check arguments, without any network."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from functools import lru_cache

from jsonschema import Draft202012Validator
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, Schema

from gateway.approvals.closing import subschemas
from gateway.approvals.edits import argument_errors, schema_problem
from gateway.approvals.strict_json import JsonObject
from gateway.sentences import shortened, shown

_LONGEST = 80
_ALIKE = 0.8
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_KEYWORDS = frozenset(Draft202012Validator.VALIDATORS) | {
    *("$defs", "$schema", "$id", "$comment", "$anchor", "$vocabulary", "definitions"),
    *("title", "description", "default", "examples", "then", "else", "deprecated"),
    *("readOnly", "writeOnly", "minContains", "maxContains", "$dynamicAnchor"),
}


def unusable(schema: JsonObject, args: JsonObject) -> str | None:
    """Return why a schema cannot check arguments, or None when it can.

    A schema that refers to another document or to nothing, and one that never ends,
    would fail later, while a person waits; here it fails early.

    Args:
        schema: what an agent declares or a policy says.
        args: arguments to try it on; whether they fit does not matter here.
    """
    try:
        problem = _problem(json.dumps(schema))
        if problem is None:
            argument_errors(schema, args)
    except RecursionError:
        return "it refers to itself without end"
    except (ArithmeticError, ValueError) as error:
        # A pattern or an address in it that the libraries themselves trip over.
        return f"nothing can be checked with it ({str(error)[:_LONGEST]})"
    return problem


def no_arguments(schema: JsonObject) -> str | None:
    """Return why a schema of a policy cannot be meant for arguments, or None.

    Arguments are an object, and the one draft that is read is 2020-12.
    """
    draft = schema.get("$schema", _DRAFT)
    if not isinstance(draft, str) or draft.rstrip("#") != _DRAFT:
        return f"'$schema' is {shown(draft)}; leave it out, or write {_DRAFT!r}"
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        return f"'type' is {shown(kinds)}; arguments are an object, so write 'object'"
    for keyword in (word for one in subschemas(schema) for word in one):
        known = () if keyword in _KEYWORDS else _KEYWORDS
        for meant in difflib.get_close_matches(keyword, known, n=1, cutoff=_ALIKE):
            return f"there is no {shortened(keyword)!r}; did you mean {meant!r}?"
    return None


# An agent declares the same schemas with every turn, and looking at one takes longer
# than everything else that is judged of a call which needs nobody.
@lru_cache(maxsize=256)
def _problem(text: str) -> str | None:
    """Return what is wrong with a schema (JSON text), whatever the arguments are."""
    schema: JsonObject = json.loads(text)
    problem = schema_problem(schema)
    if problem is not None:
        return problem
    resource = DRAFT202012.create_resource(schema)
    resolver = Registry[Schema]().resolver_with_root(resource)
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            return f"it refers to {reference[:_LONGEST]!r}, which is not in it"
    return None


def _references(node: JsonValue) -> Iterator[str]:
    if isinstance(node, dict):
        for key, member in node.items():
            if key in {"$ref", "$dynamicRef"} and isinstance(member, str):
                yield member
            yield from _references(member)
    elif isinstance(node, list):
        for element in node:
            yield from _references(element)
