"""Choose the input for a value from its JSON Schema, if any input fits.

A value gets a specific input only if Slack can show and return it without loss; any
other gets a text box with validated JSON. The submitted form is validated against the
tool's full schema, so a wrong choice here cannot let an invalid value through.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import cast

from pydantic import JsonValue

from twokey.bot.modals.date_times import clock_of, seconds_of
from twokey.bot.modals.texts import number_text, option_labels, slack_length
from twokey.bot.text import reveal
from twokey.gateway.protocol.pointers import pointed
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.sandbox.blockkit.formats import day, number
from twokey.sandbox.blockkit.limits import OPTION, SELECT_OPTIONS

_MAX_HOPS = 16
_LONG = 80
_MAX_NUMBER = 40


class Absent(Enum):
    """Tell an argument that is not there from one that is null."""

    ABSENT = auto()


ABSENT = Absent.ABSENT
Value = JsonValue | Absent


class Kind(StrEnum):
    """What a person edits a value with."""

    TEXT = "text"
    LONG_TEXT = "long_text"
    INTEGER = "integer"
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    CHOICES = "choices"
    LINES = "lines"
    DATE = "date"
    TIME = "time"
    MOMENT = "moment"
    JSON = "json"
    FIXED = "fixed"


_KINDS = {
    "integer": Kind.INTEGER,
    "number": Kind.NUMBER,
    "boolean": Kind.FLAG,
}


_FORMATS = {"date": Kind.DATE, "time": Kind.TIME, "date-time": Kind.MOMENT}
_OF_CALENDAR = frozenset(_FORMATS.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """How one value is edited, as its schema has it."""

    kind: Kind
    is_nullable: bool = False
    options: tuple[JsonValue, ...] = ()
    max_length: int | None = None
    hint: str = ""


def plan(schema: JsonValue, value: Value, root: JsonObject) -> Plan:
    """Choose the input for a value of this schema.

    A value that the input could not show exactly (text with hidden characters, a
    number where text is due) gets a JSON box, whatever the schema says.

    Args:
        schema: of this value; anything that is not an object leaves all open.
        value: what stands there now, or ABSENT.
        root: the whole schema, where local references point.
    """
    node, is_nullable = _without_null(resolved(schema, root), value, root)
    hint = node.get("description")
    options = _enumerated(node)
    members = _enumerated(resolved(node.get("items"), root))
    kind = _kind(node, options or members)
    fits = value is ABSENT or (value is None and is_nullable)
    if not (fits or _shows(kind, value, options or members)):
        # A date that no picker gives back is edited as the text that it is.
        is_text = kind in _OF_CALENDAR and _shows(Kind.TEXT, value, ())
        kind = Kind.TEXT if is_text else Kind.JSON
    if kind is Kind.TEXT and isinstance(value, str):
        is_long = "\n" in value or slack_length(value) > _LONG
        kind = Kind.LONG_TEXT if is_long else kind
    limit = node.get("maxLength")
    return Plan(
        kind=kind,
        is_nullable=is_nullable,
        options=options or members if kind in {Kind.CHOICE, Kind.CHOICES} else (),
        max_length=limit if isinstance(limit, int) and limit > 0 else None,
        hint=hint if isinstance(hint, str) else "",
    )


def members(schema: JsonValue, value: Value, root: JsonObject) -> JsonObject | None:
    """Return the declared members of an object schema, or None when there are none."""
    node, _ = _without_null(resolved(schema, root), value, root)
    properties = node.get("properties")
    if isinstance(properties, dict) and properties:
        return properties
    return None


def required(schema: JsonValue, value: Value, root: JsonObject) -> frozenset[str]:
    """Return the names that an object schema requires."""
    node, _ = _without_null(resolved(schema, root), value, root)
    names = node.get("required")
    if not isinstance(names, list):
        return frozenset()
    return frozenset(name for name in names if isinstance(name, str))


def resolved(schema: JsonValue, root: JsonObject) -> JsonObject:
    """Follow local references (``#/$defs/…``); {} for what cannot be followed."""
    node = schema
    # Bounded: a schema may refer to itself.
    for _ in range(_MAX_HOPS):
        if not isinstance(node, dict):
            return {}
        target = node.get("$ref")
        if target is None:
            return node
        found = _local(target, root)
        if found is None:
            return {}
        # What stands beside a reference holds too (2020-12, section 8.2.3.1).
        node = found | {key: member for key, member in node.items() if key != "$ref"}
    return {}


def _local(reference: JsonValue, root: JsonObject) -> JsonObject | None:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    node = pointed(root, reference)
    return node if isinstance(node, dict) else None


def _without_null(
    schema: JsonObject, value: Value, root: JsonObject
) -> tuple[JsonObject, bool]:
    """Take null out of a schema, and choose the branch that the value is of."""
    node, is_nullable = schema, False
    kinds = node.get("type")
    if isinstance(kinds, list):
        rest = [kind for kind in kinds if kind != "null"]
        is_nullable = len(rest) < len(kinds)
        kept: JsonValue = rest[0] if len(rest) == 1 else rest
        node = {**node, "type": kept}
    branches = node.get("anyOf", node.get("oneOf"))
    if isinstance(branches, list):
        parts = [resolved(branch, root) for branch in branches]
        rest_parts = [part for part in parts if part.get("type") != "null"]
        is_nullable = is_nullable or len(rest_parts) < len(parts)
        alike = [part for part in rest_parts if _is_of(part.get("type"), value)]
        chosen = rest_parts if len(rest_parts) == 1 else alike
        # More than one branch fits: a form for one of them could turn the value into
        # the other.
        if len(chosen) != 1:
            return {}, is_nullable
        composed = {"anyOf", "oneOf"}
        node = {k: v for k, v in node.items() if k not in composed} | chosen[0]
    values = node.get("enum")
    if isinstance(values, list) and None in values:
        is_nullable = True
    return node, is_nullable


def _kind(node: JsonObject, options: tuple[JsonValue, ...]) -> Kind:
    if node.keys() & {"allOf", "not", "if"}:
        return Kind.JSON
    if node.keys() & {"enum", "const"}:
        return Kind.CHOICE if options else Kind.JSON
    kind = node.get("type")
    if kind == "array":
        return Kind.JSON if "prefixItems" in node else _kind_of_list(node, options)
    if kind == "string":
        return _FORMATS.get(str(node.get("format")), Kind.TEXT)
    return _KINDS.get(str(kind), Kind.JSON)


def _kind_of_list(node: JsonObject, options: tuple[JsonValue, ...]) -> Kind:
    if options:
        return Kind.CHOICES
    items = node.get("items")
    if not isinstance(items, dict) or items.keys() & {"enum", "const"}:
        return Kind.JSON
    return Kind.LINES if items.get("type") == "string" else Kind.JSON


def _enumerated(node: JsonObject) -> tuple[JsonValue, ...]:
    """Return the choices of a schema when a menu can show each of them whole."""
    listed = [node["const"]] if "const" in node else node.get("enum")
    if not isinstance(listed, list):
        return ()
    options = tuple(option for option in listed if option is not None)
    labels = option_labels(options)
    are_short = all(0 < len(label) <= OPTION for label in labels)
    # One place is kept for "not set".
    is_menu = 0 < len(options) < SELECT_OPTIONS and len(set(labels)) == len(labels)
    return options if are_short and is_menu else ()


def _shows(kind: Kind, value: Value, options: tuple[JsonValue, ...]) -> bool:
    match kind:
        case Kind.TEXT:
            is_shown = isinstance(value, str) and is_plain(value)
        case Kind.DATE:
            is_shown = isinstance(value, str) and day(value) is None
        case Kind.TIME:
            is_shown = isinstance(value, str) and clock_of(value) is not None
        case Kind.MOMENT:
            is_shown = isinstance(value, str) and seconds_of(value) is not None
        case Kind.LINES:
            is_shown = isinstance(value, list) and all(map(_is_line, value))
        case Kind.INTEGER | Kind.NUMBER:
            is_shown = _is_of(kind, value) and _is_typed(value)
        case Kind.FLAG:
            is_shown = isinstance(value, bool)
        case Kind.CHOICE:
            is_shown = any(is_same(value, option) for option in options)
        case Kind.CHOICES:
            is_shown = isinstance(value, list) and _are_distinct(value, options)
        case _:
            is_shown = True
    return is_shown


def is_plain(text: str) -> bool:
    """Return whether a text comes back from an input as it went in, nothing hidden.

    Slack may trim, compose or convert what it carries; text on which that could be
    seen is edited as JSON, where every such character is written out.
    """
    return (
        "\t" not in text
        and reveal(text) == text
        and unicodedata.normalize("NFC", text) == text
        and text.strip() == text
    )


def _is_line(value: JsonValue) -> bool:
    return isinstance(value, str) and is_plain(value) and value.splitlines() == [value]


def is_same(first: Value, second: Value) -> bool:
    """Return whether two values are one JSON value; True is not 1."""
    # In Python True == 1.
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    return first == second


def _are_distinct(chosen: list[JsonValue], options: tuple[JsonValue, ...]) -> bool:
    places = [
        next((at for at, option in enumerate(options) if is_same(one, option)), None)
        for one in chosen
    ]
    # A list with one element twice cannot be shown by ticks.
    return None not in places and len(set(places)) == len(places)


def _is_of(kind: JsonValue, value: Value) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        is_whole = float(value).is_integer()
        return kind == "number" or (kind == "integer" and is_whole)
    python = {"string": str, "object": dict, "array": list}.get(str(kind))
    return python is not None and isinstance(value, python)


def _is_typed(value: Value) -> bool:
    text = number_text(cast("float", value))
    return number(text) is None and len(text) <= _MAX_NUMBER
