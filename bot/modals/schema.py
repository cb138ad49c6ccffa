"""Choose the input for a value from its JSON Schema, if any input fits.

A value gets a specific input only if Slack can show and return it without loss; any
other gets a text box with validated JSON. The submitted form is validated against the
tool's full schema, so a wrong choice here cannot let an invalid value through.

The initial text of an input is lossless, with nothing hidden. A date-time is offered in
a picker only if the picker gives exactly this text back: seconds are zero, and it has
an offset from UTC. Slack shows it in the time zone of the person who reads it, so one
without an offset cannot be shown.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, StrEnum, auto
from typing import cast

from pydantic import JsonValue

from keyturn.bot.text import reveal
from keyturn.gateway.approvals.evidence import as_text
from keyturn.gateway.approvals.invisible_characters import is_hidden, mark
from keyturn.gateway.protocol.strict_json import MAX_INTEGER, JsonObject, pointed
from keyturn.gateway.protocol.work import spend
from keyturn.sandbox.blockkit.formats import day, number
from keyturn.sandbox.blockkit.limits import OPTION, SELECT_OPTIONS

PATH_MARK = " \u203a "


def number_text(number: float) -> str:
    """Write a number in plain digits, without an exponent: 1e-7 is 0.0000001."""
    # Slack's number input accepts no exponent. `repr` is the shortest text that reads
    # back as the same float.
    return format(Decimal(repr(number)), "f")


def json_text(value: JsonValue, *, max_length: int) -> str | None:
    """Write a value as JSON without hidden characters; None if it is too long.

    It is indented if that fits, and compact otherwise.

    Args:
        value: any JSON value.
        max_length: maximum characters, by Slack's count.
    """
    for indent in (2, None):
        text = json.dumps(value, ensure_ascii=False, indent=indent)
        # Slack may compose what it carries, so text that is not in NFC would come back
        # as other bytes; escapes survive.
        # The same for the parts of emoji, which Slack writes in a way of its own.
        if any(map(is_hidden, text)) or unicodedata.normalize("NFC", text) != text:
            text = json.dumps(value, ensure_ascii=True, indent=indent)
        if slack_length(text) <= max_length:
            return text
    return None


def option_labels(values: Sequence[JsonValue]) -> list[str]:
    """Write the choices of a menu: texts bare, other values as JSON.

    If two would read alike, such as 1 and "1", all of them are written as JSON.
    """
    labels = [reveal(as_text(value)) for value in values]
    if len(set(labels)) < len(labels):
        labels = [reveal(json.dumps(value, ensure_ascii=False)) for value in values]
    return [
        label.replace("\n", mark("\n")).replace("\t", mark("\t")) for label in labels
    ]


def slack_length(text: str) -> int:
    """Count UTF-16 code units: the highest count of any client."""
    return len(text) + sum(character > "\uffff" for character in text)


def is_carried(before: str, after: str) -> bool:
    """Return whether a text came back unchanged, except line ends and composition."""
    return _carried(before) == _carried(after)


def _carried(text: str) -> str:
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n"))


def path_label(path: tuple[str, ...]) -> str:
    """Name a nested argument by its path; untrusted text."""
    # A name that reads like a sentence is quoted: the agent's schema may declare any.
    return PATH_MARK.join(
        json.dumps(name, ensure_ascii=False) if " " in name else name for name in path
    )


_ZONE = re.compile(r"(Z|[+-][0-9]{2}:[0-9]{2})\Z")
# Limits of Slack's date-time picker: ten digits.
_FIRST_S, _LAST_S = 1_000_000_000, 9_999_999_999
_NEW = "Z"


def zone_of(text: str) -> str:
    """Return the time zone of a date-time; "" for none.

    UTC, or an offset from it, such as ``UTC+01:00``.
    """
    found = _ZONE.search(text)
    if not found:
        return ""
    return "UTC" if found[0] == _NEW else f"UTC{found[0]}"


def seconds_of(text: str) -> int | None:
    """Return a date-time in Unix seconds for a picker, or None.

    None if a picker cannot show it, or would return a different text.
    """
    try:
        seconds = datetime.fromisoformat(text).timestamp()
        is_exact = moment_text(int(seconds), text) == text
    except (ValueError, OverflowError):
        return None
    is_whole = seconds % 60 == 0
    is_offered = is_exact and is_whole and _FIRST_S <= seconds <= _LAST_S
    return int(seconds) if is_offered else None


def moment_text(seconds: int, like: str | None) -> str:
    """Return a picker's date-time, with the offset of the one that it replaces.

    Raises:
        ValueError: the other one has no offset, or is no date-time.
    """
    zone = datetime.fromisoformat(like).tzinfo if like else UTC
    if zone is None:
        raise ValueError(f"The date-time {like!r} has no offset from UTC.")
    text = datetime.fromtimestamp(seconds, zone).isoformat()
    is_short = like is None or like.endswith(_NEW)
    return text.removesuffix("+00:00") + _NEW if is_short else text


_MAX_HOPS = 16
_LONG = 80
_MAX_NUMBER = 40


class Absent(Enum):
    """Marker for an absent argument, as opposed to null."""

    ABSENT = auto()


ABSENT = Absent.ABSENT
Value = JsonValue | Absent


class Kind(StrEnum):
    """Kinds of inputs for a value."""

    TEXT = "text"
    LONG_TEXT = "long_text"
    INTEGER = "integer"
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    CHOICES = "choices"
    LINES = "lines"
    DATE = "date"
    MOMENT = "moment"
    JSON = "json"


_KINDS = {"integer": Kind.INTEGER, "number": Kind.NUMBER, "boolean": Kind.FLAG}


_FORMATS = {"date": Kind.DATE, "date-time": Kind.MOMENT}
_OF_CALENDAR = frozenset(_FORMATS.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """The input for one value, according to its schema."""

    kind: Kind
    is_nullable: bool = False
    options: tuple[JsonValue, ...] = ()
    max_length: int | None = None
    hint: str = ""


def plan(schema: JsonValue, value: Value, root: JsonObject) -> Plan:
    """Choose the input for a value of this schema.

    A value that the input could not show exactly (text with hidden characters, a number
    in place of text) gets a JSON box, regardless of the schema.

    Args:
        schema: of this value; anything but an object allows all values.
        value: the current value, or ABSENT.
        root: the whole schema, the target of local references.
    """
    node, is_nullable = _without_null(resolved(schema, root), value, root)
    hint = node.get("description")
    options = _enumerated(node)
    members = _enumerated(resolved(node.get("items"), root))
    kind = _kind(node, options or members)
    fits = value is ABSENT or (value is None and is_nullable)
    if not (fits or _shows(kind, value, options or members)):
        # A date that no picker can return exactly is edited as text.
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
    """Return the declared members of an object schema, or None if there are none."""
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
    """Follow local references (``#/$defs/…``); {} if that is not possible."""
    node = schema
    # Bounded: a schema may refer to itself.
    for _ in range(_MAX_HOPS):
        spend(1)
        if not isinstance(node, dict):
            return {}
        target = node.get("$ref")
        if target is None:
            return node
        found = _local(target, root)
        if found is None:
            return {}
        # Keywords next to a reference apply, too (2020-12, section 8.2.3.1).
        node = found | {key: member for key, member in node.items() if key != "$ref"}
    return {}


def _local(reference: JsonValue, root: JsonObject) -> JsonObject | None:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    spend(len(reference) // 8)
    node = pointed(root, reference)
    return node if isinstance(node, dict) else None


def _without_null(
    schema: JsonObject, value: Value, root: JsonObject
) -> tuple[JsonObject, bool]:
    """Remove null from a schema, and choose the branch that fits the value."""
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
        # If more than one branch fits, a form for one of them could turn the value into
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
    """Return the choices of a schema if a menu can show each of them whole."""
    listed = [node["const"]] if "const" in node else node.get("enum")
    if not isinstance(listed, list):
        return ()
    spend(len(listed) // 2)
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
    """Return whether a text survives an input unchanged, with nothing hidden.

    Slack may trim, compose or convert a value; a text that this could change is edited
    as JSON, with escapes for every such character.
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
    # Ticks cannot represent a list with a repeated element.
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
    # Slack's number field may round a number of more than 53 bits.
    if abs(cast("float", value)) > MAX_INTEGER:
        return False
    text = number_text(cast("float", value))
    return number(text) is None and len(text) <= _MAX_NUMBER
