"""Say in a reviewer's words why an argument does not fit its JSON Schema.

The messages of the library quote the value and speak of keywords. These are for the
person who typed the value, who sees them under its input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import cast

from jsonschema.exceptions import ValidationError
from pydantic import JsonValue

from twokey.gateway.protocol.formats import wanted_by
from twokey.gateway.protocol.pointers import pointer_to
from twokey.gateway.protocol.schema_validation import matches
from twokey.gateway.protocol.strict_json import JsonObject

_LONGEST = 300
_CHOICES = 10

_TYPES = {
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def sentence(error: ValidationError) -> str:
    """Return one sentence about one problem; it may quote the schema."""
    make = _SENTENCES.get(str(error.validator), _other)
    return make(error)[:_LONGEST]


def pointer(error: ValidationError) -> str:
    """Return where a problem is, as a JSON Pointer into the arguments."""
    tokens = list(error.absolute_path)
    if error.validator == "required":
        # The library points at the object; a form has its field at the member that is
        # missing.
        missing = [
            name
            for name in cast("list[str]", error.validator_value)
            if name not in cast("JsonObject", error.instance)
        ]
        tokens += missing[:1]
    return pointer_to(tokens)


def _type(error: ValidationError) -> str:
    found = cast("JsonValue", error.validator_value)
    names = found if isinstance(found, list) else [found]
    return f"This has to be {' or '.join(_TYPES.get(str(n), str(n)) for n in names)}."


def _enum(error: ValidationError) -> str:
    options = cast("list[JsonValue]", error.validator_value)
    shown = ", ".join(map(_short, options[:_CHOICES]))
    more = len(options) - _CHOICES
    return f"This has to be one of: {shown}{f' and {more} more' if more > 0 else ''}."


def _const(error: ValidationError) -> str:
    return f"This has to be {_short(cast('JsonValue', error.validator_value))}."


def _bound(words: str) -> Callable[[ValidationError], str]:
    return lambda error: f"This has to be {words} {error.validator_value}."


def _size(thing: str, things: str, words: str) -> Callable[[ValidationError], str]:
    def make(error: ValidationError) -> str:
        limit = cast("int", error.validator_value)
        count = len(cast("str | list[object]", error.instance))
        wanted = f"{words} {limit} {thing if limit == 1 else things}"
        return f"This has to have {wanted}; it has {count}."

    return make


def _format(error: ValidationError) -> str:
    return f"This has to be {wanted_by(str(error.validator_value))}."


def _pattern(error: ValidationError) -> str:
    return f"This is not written as the tool needs it: {error.validator_value}"


def _unknown_name(error: ValidationError) -> str:
    schema = cast("Mapping[str, Mapping[str, JsonValue]]", error.schema)
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    names = [
        name
        for name in cast("JsonObject", error.instance)
        if name not in known and not any(matches(name, one) for one in patterns)
    ]
    listed = ", ".join(map(_short, names[:_CHOICES]))
    return f"The tool takes no argument of this name: {listed}."


def _branch(error: ValidationError) -> str:
    """Speak of the one branch that is not null, as of optional arguments."""
    found: dict[object, ValidationError] = {}
    for one in error.context or ():
        if not (one.validator == "type" and one.validator_value == "null"):
            found.setdefault(one.schema_path[0], one)
    only = [*found.values()]
    return sentence(only[0]) if len(only) == 1 else "The tool takes no such value here."


def _other(error: ValidationError) -> str:
    return f"The tool's schema does not allow this here ({error.validator})."


def _short(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:40]


_SENTENCES: dict[str, Callable[[ValidationError], str]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": lambda _: "This is needed.",
    "minimum": _bound("at least"),
    "maximum": _bound("at most"),
    "exclusiveMinimum": _bound("more than"),
    "exclusiveMaximum": _bound("less than"),
    "multipleOf": _bound("a multiple of"),
    "minLength": _size("character", "characters", "at least"),
    "maxLength": _size("character", "characters", "at most"),
    "minItems": _size("entry", "entries", "at least"),
    "maxItems": _size("entry", "entries", "at most"),
    "uniqueItems": lambda _: "Nothing may be in this list twice.",
    "format": _format,
    "pattern": _pattern,
    "additionalProperties": _unknown_name,
    "unevaluatedProperties": lambda _: "The tool does not know every name in this.",
    "anyOf": _branch,
    "oneOf": _branch,
}
