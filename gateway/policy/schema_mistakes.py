"""Describe errors in a policy's argument schema: location, cause and fix."""

from __future__ import annotations

import difflib
from typing import cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from twokey.gateway.policy.schemas import unusable
from twokey.gateway.protocol.schema_closing import subschemas
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.validation_errors import Path, ProblemAt, near, shortened, shown

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_ALIKE = 0.8
_CHECKS = frozenset(Draft202012Validator.VALIDATORS) | {"then", "else", "$defs"}
_KINDS = ("array", "boolean", "integer", "null", "number", "object", "string")
_WRITTEN = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a mapping",
    "string": "text",
}


def mistake(schema: JsonObject) -> ProblemAt | None:
    """Return what is wrong with a schema and where, or None when it can be used.

    Arguments are an object, the one draft that is read is 2020-12, and a keyword that
    is nearly one would check nothing.
    """
    return (
        _other_draft(schema)
        or _no_schema(schema)
        or _no_object(schema)
        or _misspelt(schema)
        or _unusable(schema)
    )


def _other_draft(schema: JsonObject) -> ProblemAt | None:
    draft = schema.get("$schema", _DRAFT)
    if isinstance(draft, str) and draft.rstrip("#") == _DRAFT:
        return None
    text = f"{shown(draft)} is another draft; leave it out, or write {_DRAFT!r}."
    return ("$schema",), text


def _no_schema(schema: JsonObject) -> ProblemAt | None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        path = tuple(error.absolute_path)
        return path, f"{shown(error.instance)} {_meant(path, error)}"
    except (ArithmeticError, RecursionError, ValueError):
        return None  # the library trips over a part, and `unusable` says so
    return None


def _meant(path: Path, error: SchemaError) -> str:
    if path[-1:] == ("type",):
        word = error.instance if isinstance(error.instance, str) else ""
        return f"is not a type; {near(word, _KINDS)}"
    if error.validator != "type":
        why = f"{error.validator}: {shown(error.validator_value)}"
        return f"cannot stand here ({why}); mend or remove it."
    kinds = cast("str | list[str]", error.validator_value)
    named = [kinds] if isinstance(kinds, str) else kinds
    words = [_WRITTEN[kind] for kind in named]
    return f"cannot stand here; write {' or '.join(words)}."


def _no_object(schema: JsonObject) -> ProblemAt | None:
    kinds = schema.get("type", "object")
    if "object" in (kinds if isinstance(kinds, list) else [kinds]):
        return None
    text = f"it is {shown(kinds)}, and arguments are an object; write object."
    return ("type",), text


def _misspelt(schema: JsonObject) -> ProblemAt | None:
    for path, one in subschemas(schema):
        # A keyword that JSON Schema does not know is allowed by it and checks nothing.
        # Sorted: the order of a set of text differs from run to run.
        for word in sorted(one.keys() - _CHECKS):
            for meant in difflib.get_close_matches(word, _CHECKS, 1, _ALIKE):
                text = f"there is no {shortened(word)!r}; did you mean {meant!r}?"
                return (*path, word), text
    return None


def _unusable(schema: JsonObject) -> ProblemAt | None:
    problem = unusable(schema, {})
    return ((), f"{problem}; mend or remove that part.") if problem else None
