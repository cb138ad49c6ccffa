"""Validate arguments against a JSON Schema in bounded time, and close a schema.

The library matches patterns with `re`, which takes exponential time on hostile texts.
It compares all elements of a list with each other, and follows every branch of a choice
for every element. One call within the limits of `strict_json` could block all others
for hours. Here patterns are matched in linear time (`matches`), elements are compared
by their canonical bytes, and every keyword spends steps of the call's budget (`work`)
for each element it reads.

JSON Schema (2020-12) accepts every key that a schema does not mention. Once `closed`, a
schema refuses undeclared keys, unless it sets ``additionalProperties`` or
``unevaluatedProperties``. An object without any declared key stays open.

String formats are checked as pydantic reads them. A reviewer types a URL without its
slash, a UUID without dashes or a blank for the ``T`` of a date-time. A tool with
pydantic types reads such a text as another spelling of the same value, so it would not
run with the approved text. `canonical` returns the spelling that the tool keeps
unchanged. Only edits are checked: the tool itself reads the arguments of an agent.
Pydantic writes times and date-times without an offset. RFC 3339 does not allow this,
but they are accepted.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeGuard, cast
from uuid import UUID

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from pydantic import AnyUrl, JsonValue, TypeAdapter
from pydantic_core import SchemaError, SchemaValidator, core_schema
from referencing import Registry
from referencing.jsonschema import Schema

from keyturn.gateway.errors import BadJson
from keyturn.gateway.failures import any_failure
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.strict_json import JsonObject, pointed
from keyturn.gateway.protocol.work import TooMuchWork, one_budget, spend


def matches(text: str, pattern: str) -> bool:
    """Return whether a pattern (RE2 syntax) is found in a string, in linear time.

    Raises:
        TypeError: when the text is not a string.
        ValueError: when the pattern is invalid, or has look-around or a back-reference.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - rules pass any value of a call
        raise TypeError("only a string can match a pattern")
    # The engine is linear in the characters, and slower with more parts.
    spend(1 + len(text) * _parts(pattern)[0] // 4_000)
    return _compiled(pattern).isinstance_python(text)


def problems(
    schema: JsonObject, args: JsonObject, *, has_formats: bool = False
) -> list[ValidationError]:
    """Return every error of arguments against a schema.

    With ``has_formats``, formats of texts are checked as well (`formats`).

    Raises:
        Unresolvable: when the schema refers to another one; none is ever fetched.
        TooMuchWork: when the surrounding budget, or that of one call, is spent.
        ValueError: when `matches` does not support a pattern in it.
    """
    # An empty registry resolves no outside reference: schemas cannot cause requests.
    checker = _FormatChecker if has_formats else _Checker
    validator = checker(_of_our_draft(schema), registry=Registry[Schema]())
    try:
        with one_budget():
            return list(validator.iter_errors(args))
    except RecursionError as deep:
        raise TooMuchWork from deep
    except Exception:
        raise
    except any_failure() as panic:
        # A panic of a Rust library at the end of the stack.
        raise TooMuchWork from panic


def unmatched(schema: JsonObject) -> str:
    """Return the first pattern of a schema that `matches` does not support; "" if none.

    `unevaluatedProperties` matches names with `re`, so it excludes patterns of names.
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
    spend(_parts(pattern)[1])
    try:
        _compiled(pattern)
    except ValueError:
        return True
    return False


def checkable(schema: JsonObject) -> JsonObject:
    """Return a tool's schema in draft 2020-12, without unsupported patterns.

    Patterns with look-around come from pydantic types, such as Decimal, and from Zod's
    formats in MCP servers. Such a pattern would make the whole schema unusable, and
    edits impossible. The tool checks its patterns anyway: pydantic does, and MCP
    requires servers to validate their input
    (https://modelcontextprotocol.io/specification/2025-06-18/server/tools).
    """
    # A copy: the tool still uses its schema.
    plain = copy.deepcopy(schema)
    for _, one in subschemas(plain):
        if _is_unmatchable(one.get("pattern")):
            del one["pattern"]
        _renew(one)
    return plain


def _renew(schema: JsonObject) -> None:
    """Convert keywords of earlier drafts (4 to 2019-09) to 2020-12.

    MCP servers still declare them: Zod writes a tuple as a list of ``items``.
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


# Parts of a pattern: a Unicode class, the edges of a bracket class and of a group, a
# repetition, and any other character.
_PART = re.compile(
    r"(?P<wide>\\[pP](?:\{[^}]*\}|.)|\\[wWdDsSbB])|\\.|(?P<opens>\[\^?\]?|\()"
    r"|(?P<closes>[\])])|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|.",
    re.DOTALL,
)
_WIDE, _CLASS = 1_600, 30
"""Weights of a Unicode class and of a bracket class; a plain letter weighs 1."""


@lru_cache(maxsize=1024)
def _parts(pattern: str) -> tuple[int, int]:
    """Return the number of parts of a pattern with repetitions, and its cost.

    The cost is an upper bound of the steps to compile it. The library expands every
    repetition, and a Unicode class into all of its ranges.
    """
    # For each open group: the edge that closes it, and its parts and weight.
    ends, groups, last = [""], [(0, 0)], (0, 0)
    for found in _PART.finditer(pattern):
        is_in_class = ends[-1] == "]"
        if found["opens"] and not (is_in_class and found["opens"] == "("):
            ends.append("]" if found["opens"][0] == "[" else ")")
            groups.append((0, 0))
            continue
        if found["least"] and not is_in_class:
            times = max(int(found["least"]), int(found["most"] or 0))
            last = (last[0] * (times - 1), last[1] * (times - 1))
        elif found["closes"] == ends[-1]:
            last = groups.pop()
            last = (last[0], last[1] + (_CLASS if ends.pop() == "]" else 0))
        else:
            weight = _CLASS if found[0] == "." or not found[0].isascii() else 1
            last = (1, _WIDE if found["wide"] else weight)
        groups[-1] = (groups[-1][0] + last[0], groups[-1][1] + last[1])
    parts, weight = map(sum, zip(*groups, strict=True))
    return parts, 1 + weight // 16


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> SchemaValidator:
    # Rust's `regex`, the engine that pydantic uses for tools' patterns.
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError as error:
        raise ValueError(f"{pattern!r} is not a pattern in RE2 syntax") from (error)


def _of_our_draft(schema: JsonObject) -> JsonObject:
    """Remove ``$schema``: for a named draft, the library uses its standard checker."""
    # A copy only if needed: this runs for every call.
    if not any("$schema" in one for _, one in subschemas(schema)):
        return schema
    plain = copy.deepcopy(schema)
    for _, one in subschemas(plain):
        one.pop("$schema", None)
    return plain


_LOOK_AT_EACH = frozenset(
    {"items", "prefixItems", "contains", "propertyNames", "additionalProperties"}
    | {"patternProperties", "unevaluatedProperties", "unevaluatedItems"}
)
_COMPARE = frozenset({"const", "enum", "uniqueItems"})


def _charged(keyword: str, check: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the check of a keyword so that it spends its cost beforehand."""
    compares, looks_at_each = keyword in _COMPARE, keyword in _LOOK_AT_EACH
    is_quadratic = keyword.startswith("unevaluated")
    is_reference = keyword in {"$ref", "$dynamicRef"}

    def run(
        validator: object, value: JsonValue, instance: JsonValue, schema: object
    ) -> Iterator[ValidationError]:
        steps = 1 + (len(value) // 8 if isinstance(value, list | dict) else 0)
        if is_reference and isinstance(value, str):
            # The library searches the whole schema for an anchor.
            is_pointer = value[:2] in {"#", "#/"}
            steps += 5 + len(value) // 8 if is_pointer else 500
        if isinstance(instance, list | dict):
            if looks_at_each:
                steps += len(instance)
            if is_quadratic:
                steps += len(instance) ** 2 // 100
            if compares:
                steps += _size(instance) * (1 + steps) // 16
        spend(steps)
        for error in check(validator, value, instance, schema) or ():
            # The text of an error contains the whole value and the whole schema.
            spend(3 + (_size(instance) + _size(value)) // 32)
            yield error

    return run


def _size(value: JsonValue) -> int:
    """Return roughly how many parts a value has; spends steps for counting."""
    waiting, size = [value], 0
    while waiting:
        one = waiting.pop()
        size += 1
        if isinstance(one, str):
            size += len(one) // 64
        elif isinstance(one, list | dict) and one:
            spend(len(one) // 16)
            waiting += one.values() if isinstance(one, dict) else one
    return size


def _is_boolean(_checker: object, instance: object) -> bool:
    # The library calls this for each schema in its search for evaluated parts, which
    # runs outside the keyword checks.
    spend(3)
    return isinstance(instance, bool)


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
    """Let the library validate the names that match no pattern."""
    patterns = cast("Mapping[str, JsonValue]", schema.get("patternProperties", {}))
    if patterns and isinstance(instance, dict):
        instance = {
            name: member
            for name, member in instance.items()
            if not any(matches(name, pattern) for pattern in patterns)
        }
        # Empty patterns would appear in the error as the reason.
        schema = {key: schema[key] for key in schema if key != "patternProperties"}
    library = Draft202012Validator.VALIDATORS["additionalProperties"]
    yield from library(validator, below, instance, schema) or ()


def _unique_items(
    _: object,
    wanted: bool,  # noqa: FBT001 - called by the library
    instance: JsonValue,
    schema: object,
) -> Iterator[ValidationError]:
    del schema
    if wanted and isinstance(instance, list):
        try:
            # By hash: the library compares each pair.
            each = {digest.canonical(element) for element in instance}
        except BadJson:
            each = set[bytes]()  # such arguments are also refused elsewhere
        if len(each) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _format(
    _: object, name: JsonValue, instance: JsonValue, schema: object
) -> Iterator[ValidationError]:
    del schema
    if not (isinstance(name, str) and isinstance(instance, str)):
        return  # only a text has a format
    if canonical(instance, name) != instance:
        yield ValidationError(f"{instance!r} is not a {name!r}")


_CHECKS: Mapping[str, Callable[..., Any]] = {
    **Draft202012Validator.VALIDATORS,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
_Checker: Any = cast("Any", validators).extend(
    Draft202012Validator,
    {name: _charged(name, check) for name, check in _CHECKS.items()},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("boolean", _is_boolean),
)
_FormatChecker: Any = cast("Any", validators).extend(
    _Checker, {"format": _charged("format", _format)}
)


_DECLARING = frozenset({"properties", "patternProperties"})
_DECIDES_REST = frozenset({"additionalProperties", "unevaluatedProperties"})

# Keywords that apply their schemas to child instances (members and elements).
_CHILD = frozenset({"items", "contains", *_DECIDES_REST, "unevaluatedItems"})
_CHILD_LISTED = frozenset({"prefixItems"})
_CHILD_NAMED = _DECLARING

# Keywords that apply their schemas in place, to the same instance. ``if`` and ``not``
# are unchanged: closing their schemas would accept values that they refuse.
_IN_PLACE = frozenset({"then", "else"})
_IN_PLACE_LISTED = frozenset({"allOf", "anyOf", "oneOf"})
_IN_PLACE_NAMED = frozenset({"dependentSchemas", "$defs", "definitions"})
_UNTOUCHED = frozenset({"if", "not", "propertyNames"})
SAME_INSTANCE = _IN_PLACE | _IN_PLACE_LISTED | {"if", "not", "dependentSchemas"}
"""Keywords whose schemas apply to the same instance as the surrounding schema."""
_JOINED = _IN_PLACE | {"allOf", "anyOf", "oneOf", "dependentSchemas", "if", "$ref"}

Visit = Callable[[JsonValue], JsonValue]


def closed(schema: JsonObject) -> JsonObject:
    """Return a schema that refuses undeclared keys.

    With ``not`` or ``oneOf`` it may accept more than the original, so arguments have to
    fit both.
    """
    return _Closer(schema).close(schema)


def subschemas(
    schema: JsonObject, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], JsonObject]]:
    """Yield a schema and every schema in it, with paths; data in it is skipped."""
    yield path, schema
    for below, one in members(schema):
        yield from subschemas(one, (*path, *below))


def members(schema: JsonObject) -> Iterator[tuple[tuple[str | int, ...], JsonObject]]:
    """Yield the direct subschemas of a schema's keywords, with their paths."""
    for key, value in schema.items():
        found: Iterable[tuple[tuple[str | int, ...], JsonValue]] = ()
        if key in _CHILD | _IN_PLACE | _UNTOUCHED:
            found = (((key,), value),)
        elif key in _CHILD_LISTED | _IN_PLACE_LISTED and isinstance(value, list):
            found = (((key, index), one) for index, one in enumerate(value))
        elif key in _CHILD_NAMED | _IN_PLACE_NAMED and isinstance(value, dict):
            found = (((key, name), one) for name, one in value.items())
        for below, one in found:
            if isinstance(one, dict):
                yield below, one


class _Closer:
    def __init__(self, root: JsonObject) -> None:
        self._root = root
        # By identity. False while it is computed: a schema may refer to itself.
        self._declaring = dict[int, bool]()

    def close(self, node: JsonObject) -> JsonObject:
        """Close a schema that is the only one applied to its instance."""
        result = self._inside(node)
        spend(1)
        if self._declares(node) and not _DECIDES_REST & node.keys():
            is_plain = not _JOINED & node.keys()
            # `additionalProperties` sees only the properties next to it. With `allOf`
            # or `$ref` in the same schema it would refuse their properties. It is
            # cheaper, so it is used where it is enough.
            word = "additionalProperties" if is_plain else "unevaluatedProperties"
            result[word] = False
        return result

    def _inside(self, node: JsonObject) -> JsonObject:
        """Close the schemas of children, not this one: others apply in place, too."""
        return {key: self._member(key, value) for key, value in node.items()}

    def _member(self, key: str, value: JsonValue) -> JsonValue:
        visit = self._each(self.close)
        # Not closed themselves: a branch would refuse the keys of the surrounding
        # schema.
        if key in _IN_PLACE | _IN_PLACE_LISTED | _IN_PLACE_NAMED:
            visit = self._each(self._inside)
        if key in _CHILD | _IN_PLACE:
            return visit(value)
        if key in _CHILD_LISTED | _IN_PLACE_LISTED and isinstance(value, list):
            return [visit(element) for element in value]
        if key in _CHILD_NAMED | _IN_PLACE_NAMED and isinstance(value, dict):
            return {name: visit(member) for name, member in value.items()}
        return value

    @staticmethod
    def _each(change: Callable[[JsonObject], JsonObject]) -> Visit:
        return lambda node: change(node) if isinstance(node, dict) else node

    def _declares(self, node: JsonValue) -> bool:
        """Return whether a schema declares keys, directly or by reference."""
        if not isinstance(node, dict):
            return False
        if id(node) not in self._declaring:
            spend(1)
            self._declaring[id(node)] = False
            self._declaring[id(node)] = self._works_out(node)
        return self._declaring[id(node)]

    def _works_out(self, node: JsonObject) -> bool:
        if _DECLARING & node.keys():
            return True
        reference = node.get("$ref")
        if isinstance(reference, str):
            target = self._target(reference)
            # A target that is not found here may declare keys: closing is the strict
            # side.
            if target is None or self._declares(target):
                return True
        if any(map(self._declares, _list(node.get("allOf")))):
            return True
        return any(
            self._choice_declares(_list(node.get(key))) for key in ("anyOf", "oneOf")
        )

    def _choice_declares(self, branches: list[JsonValue]) -> bool:
        """Return whether every branch for objects declares keys."""
        found = [one for one in branches if _may_be_object(one)]
        return bool(found) and all(map(self._declares, found))

    def _target(self, reference: str) -> JsonValue:
        """Return the target of a JSON Pointer; None if it is not found."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        spend(len(reference) // 8)
        return pointed(self._root, reference)


def _may_be_object(node: JsonValue) -> bool:
    if not isinstance(node, dict):
        return node is not False
    kinds = node.get("type", "object")
    return "object" in (kinds if isinstance(kinds, list) else [kinds])


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


def _email(text: str) -> str:
    if _EMAIL.fullmatch(text) is None:
        raise ValueError(text)
    name, _, domain = text.partition("@")
    return f"{name}@{domain.lower()}"


def _as(kind: Any) -> Callable[[str], str]:  # noqa: ANN401 - any type that pydantic reads
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    return lambda text: str(
        adapter.dump_python(adapter.validate_python(text), mode="json")
    )


_FORMATS: dict[str, tuple[Callable[[str], str], str]] = {
    "date": (_as(date), "a date, such as 2026-11-30"),
    "time": (_as(time), "a time of day, such as 14:30:00"),
    "date-time": (_as(datetime), "a date and time, such as 2026-11-30T14:30:00Z"),
    "decimal": (_as(Decimal), "a number, such as 449.50"),
    "email": (_email, "an e-mail address, such as ana@example.com"),
    "uri": (_as(AnyUrl), "an address with its scheme, such as https://example.com"),
    "uuid": (_as(UUID), "a UUID, such as 123e4567-e89b-12d3-a456-426614174000"),
    "ipv4": (_as(IPv4Address), "an IPv4 address, such as 192.0.2.1"),
    "ipv6": (_as(IPv6Address), "an IPv6 address, such as 2001:db8::1"),
}


def canonical(text: str, name: str) -> str | None:
    """Return a text in the spelling that tools keep unchanged.

    Returns None for a text that does not fit the format. If the format is not checked,
    the text is returned unchanged.
    """
    if name not in _FORMATS:
        return text
    read, _ = _FORMATS[name]
    try:
        return read(text)
    except ValueError:
        return None


def wanted_by(name: str) -> str:
    """Return a format as a noun for a sentence; "" for an unchecked format."""
    return _FORMATS[name][1] if name in _FORMATS else ""
