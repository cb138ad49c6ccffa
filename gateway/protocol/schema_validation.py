"""Validate arguments against a JSON Schema in bounded time.

The library matches patterns with `re`, which takes exponential time on texts that an
attacker chooses; it compares all elements of a list with each other; and it follows
every branch of a choice, which on a schema that refers to itself doubles with each
level of the arguments. One call within the limits of `strict_json` could so hold up
everybody's for hours. Here a pattern is matched in linear time (`matches`), elements
are compared by their canonical bytes, and references are followed so often and no more.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeGuard, cast

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from pydantic import JsonValue
from pydantic_core import SchemaError, SchemaValidator, core_schema
from referencing import Registry
from referencing.jsonschema import Schema

from twokey.gateway.errors import BadJson
from twokey.gateway.protocol import digest, formats
from twokey.gateway.protocol.schema_closing import subschemas
from twokey.gateway.protocol.strict_json import JsonObject

MAX_REFERENCES = 10_000
"""How many references of a schema are followed for one call; takes about a second."""


class TooMuchWork(ValueError):
    """Arguments take too long to check, so nobody knows whether they fit."""


def matches(text: str, pattern: str) -> bool:
    """Return whether a pattern (RE2 syntax) is found in a string, in linear time.

    Raises:
        TypeError: when the text is none.
        ValueError: when the pattern is none, or has look-around or a back-reference.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - rules hand over what a call holds
        raise TypeError("only a string can match a pattern")
    return _compiled(pattern).isinstance_python(text)


def problems(
    schema: JsonObject, args: JsonObject, *, has_formats: bool = False
) -> list[ValidationError]:
    """Return everything in which arguments do not fit a schema.

    With ``has_formats`` the formats of its texts count as well (`formats`).

    Raises:
        Unresolvable: when the schema refers to another one. None is ever fetched.
        TooMuchWork: when more than `MAX_REFERENCES` would have to be followed.
        ValueError: when a pattern in it is none that `matches` takes.
    """
    # An empty registry resolves nothing from outside: no schema makes us fetch a URL.
    checker = _FormatChecker if has_formats else _Checker
    validator = checker(_of_our_draft(schema), registry=Registry[Schema]())
    token = _left.set([MAX_REFERENCES])
    try:
        return list(validator.iter_errors(args))
    finally:
        _left.reset(token)


def unmatched(schema: JsonObject) -> str:
    """Return the first pattern of a schema that `matches` does not take; "" for none.

    `unevaluatedProperties` looks at names with `re`, so it allows no pattern of names.
    """
    every = [one for _, one in subschemas(schema)]
    is_joined = any("unevaluatedProperties" in one for one in every)
    for one in every:
        names = one.get("patternProperties")
        named = list(names) if isinstance(names, dict) else []
        if named and is_joined:
            return named[0]
        for pattern in [*named, one.get("pattern")]:
            if _is_unmatchable(pattern):
                return pattern
    return ""


def _is_unmatchable(pattern: object) -> TypeGuard[str]:
    if not isinstance(pattern, str):
        return False  # only a text is a pattern
    try:
        _compiled(pattern)
    except ValueError:
        return True
    return False


def checkable(schema: JsonObject) -> JsonObject:
    """Return a schema of a tool in the draft of 2020-12, without some patterns.

    Without those that `matches` does not take.
    Pydantic's own types, such as Decimal, and Zod's formats, which tools of MCP servers
    declare, have look-around. Left in, one of them would take the whole schema away,
    and the decision to edit with it. The tool checks its pattern itself: pydantic does,
    and MCP obliges servers to validate what they get
    (https://modelcontextprotocol.io/specification/2025-06-18/server/tools).
    """
    if not any(
        _is_unmatchable(one.get("pattern")) or _is_older(one)
        for _, one in subschemas(schema)
    ):
        return schema
    # A copy: the schema is the tool's own.
    plain = copy.deepcopy(schema)
    for _, one in subschemas(plain):
        if _is_unmatchable(one.get("pattern")):
            del one["pattern"]
        _renew(one)
    return plain


def _is_older(schema: JsonObject) -> bool:
    bounds = (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum"))
    is_draft_4 = any(isinstance(one, bool) for one in bounds)
    return is_draft_4 or isinstance(schema.get("items"), list)


def _renew(schema: JsonObject) -> None:
    """Write keywords of earlier drafts (4 to 2019-09) as 2020-12 has them.

    Servers of MCP still declare them: Zod writes a tuple as a list of ``items``.
    """
    if isinstance(schema.get("items"), list):
        first = schema.pop("items")
        if first:
            schema["prefixItems"] = first
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")
    for bound in ("minimum", "maximum"):
        exclusive = f"exclusive{bound.capitalize()}"
        if isinstance(schema.get(exclusive), bool):
            is_exclusive = schema.pop(exclusive)
            if is_exclusive and bound in schema:
                schema[exclusive] = schema.pop(bound)


# In the context, because the library calls the checks of keywords without an argument
# of ours. A list, so that the count is shared down the recursion.
_left: ContextVar[list[int]] = ContextVar("twokey_references_left")


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> SchemaValidator:
    # Rust's `regex`, the engine that pydantic matches tools' own patterns with.
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError as error:
        raise ValueError(f"{pattern!r} is not a pattern in RE2 syntax") from (error)


def _of_our_draft(schema: JsonObject) -> JsonObject:
    """Return a schema that names no draft: one by name is checked by the library's."""
    # A copy only where it is needed: this runs for every call.
    if not any("$schema" in one for _, one in subschemas(schema)):
        return schema
    plain = copy.deepcopy(schema)
    for _, one in subschemas(plain):
        one.pop("$schema", None)
    return plain


def _counted(keyword: str) -> Any:  # noqa: ANN401 - jsonschema ships partial types
    """Return the library's check of a reference, which counts how often it is asked."""
    library = Draft202012Validator.VALIDATORS[keyword]

    def check(
        validator: object, reference: str, instance: JsonValue, schema: object
    ) -> Iterator[ValidationError]:
        left = _left.get()
        left[0] -= 1
        if left[0] < 0:
            # Raised through the library, which catches nothing of its callers'.
            raise TooMuchWork("these arguments take too long to check")
        yield from library(validator, reference, instance, schema) or ()

    return check


def _pattern(
    _: object, pattern: str, instance: JsonValue, schema: object
) -> Iterator[ValidationError]:
    del schema
    if isinstance(instance, str) and not matches(instance, pattern):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any,  # noqa: ANN401 - jsonschema ships partial types
    patterns: Mapping[str, JsonValue],
    instance: JsonValue,
    schema: object,
) -> Iterator[ValidationError]:
    del schema
    if not isinstance(instance, dict):
        return
    for pattern, below in patterns.items():
        for name, member in instance.items():
            if matches(name, pattern):
                yield from validator.descend(
                    member, below, path=name, schema_path=pattern
                )


def _additional_properties(
    validator: Any,  # noqa: ANN401 - jsonschema ships partial types
    below: JsonValue,
    instance: JsonValue,
    schema: Mapping[str, JsonValue],
) -> Iterator[ValidationError]:
    """Let the library validate those names that no pattern stands for."""
    patterns = cast("Mapping[str, JsonValue]", schema.get("patternProperties", {}))
    if patterns and isinstance(instance, dict):
        instance = {
            name: member
            for name, member in instance.items()
            if not any(matches(name, pattern) for pattern in patterns)
        }
        # An empty one would be named to the person as what the name does not match.
        schema = {key: schema[key] for key in schema if key != "patternProperties"}
    library = Draft202012Validator.VALIDATORS["additionalProperties"]
    yield from library(validator, below, instance, schema) or ()


def _unique_items(
    _: object,
    wanted: bool,  # noqa: FBT001 - the library hands over what the schema says
    instance: JsonValue,
    schema: object,
) -> Iterator[ValidationError]:
    del schema
    if wanted and isinstance(instance, list):
        try:
            # By hash: the library compares each pair.
            each = {digest.canonical(element) for element in instance}
        except BadJson:
            each = set[bytes]()  # such arguments are refused elsewhere as well
        if len(each) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _format(
    _: object, name: JsonValue, instance: JsonValue, schema: object
) -> Iterator[ValidationError]:
    del schema
    if not (isinstance(name, str) and isinstance(instance, str)):
        return  # only a text has a format
    if not formats.fits(instance, name):
        yield ValidationError(f"{instance!r} is not a {name!r}")


_Checker: Any = cast("Any", validators).extend(
    Draft202012Validator,
    {
        "$ref": _counted("$ref"),
        "$dynamicRef": _counted("$dynamicRef"),
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    },
)
_FormatChecker: Any = cast("Any", validators).extend(_Checker, {"format": _format})
