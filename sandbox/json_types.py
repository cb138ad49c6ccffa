"""JSON types of external data, and functions that narrow them."""

import json
from typing import Any, TypeAlias, TypeGuard, cast

JsonObject: TypeAlias = dict[str, Any]
"""A decoded JSON object with untyped values."""


def as_object(value: object) -> JsonObject:
    """Return `value` if it is a JSON object, otherwise an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def is_list(value: object) -> TypeGuard[list[object]]:
    """Return True if `value` is a JSON array."""
    return isinstance(value, list)


def as_list(value: object) -> list[object]:
    """Return `value` if it is a JSON array, otherwise an empty one."""
    return value if is_list(value) else []


def as_objects(value: object) -> list[JsonObject]:
    """Return the JSON objects in a JSON array, without other items."""
    items = as_list(value)
    return [cast("JsonObject", item) for item in items if isinstance(item, dict)]


def as_text(value: object) -> str:
    """Return `value` if it is a string, otherwise an empty one."""
    return value if isinstance(value, str) else ""


def copied(value: JsonObject) -> JsonObject:
    """Return a deep copy that shares no data with the original."""
    return cast("JsonObject", json.loads(json.dumps(value)))
