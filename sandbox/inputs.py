"""Validate a person's input like Slack's client, before it is submitted.

There are two kinds of errors. A value that the person can correct is shown at the
input, and nothing is sent to the app. A value that the form cannot produce is refused
as `invalid_values`.
"""

import math
import re
from collections.abc import Callable, Sequence
from datetime import date, time
from urllib.parse import urlsplit

from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.elements import (
    VALUE_FIELDS,
    PlacedElement,
    initial_values,
    offers,
    placed_elements,
)
from keyturn.sandbox.json_types import JsonObject, as_list, as_object

REQUIRED = "Please complete this required field."
EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
DEFAULT_MAX_LENGTH = 3000


def merged(
    blocks: Sequence[JsonObject], before: JsonObject, entered: object
) -> JsonObject:
    """Return the view's values with the person's input over them.

    Raises:
        ApiError: `invalid_values` when an entry matches no element, or has a value that
            its element cannot produce.
    """
    values = initial_values(blocks, before)
    known = {(item.block_id, item.action_id): item for item in placed_elements(blocks)}
    for block_id, actions in as_object(entered).items():
        for action_id, state in as_object(actions).items():
            placed = known.get((block_id, action_id))
            if placed is None or placed.type not in VALUE_FIELDS:
                raise ApiError("invalid_values", at=f"{block_id}/{action_id}")
            values[block_id][action_id] = read_state(placed, as_object(state))
    return values


def read_state(placed: PlacedElement, state: JsonObject) -> JsonObject:
    """Return Slack's state object for one element, or refuse an impossible value."""
    field = VALUE_FIELDS[placed.type]
    value = state.get(field.key, field.empty)
    # Slack sends null for a cleared input, never an empty text.
    if value == "":
        value = None
    if not _is_possible(placed, value):
        raise ApiError("invalid_values", at=f"{placed.block_id}/{placed.action_id}")
    return {"type": placed.type, field.key: value}


def errors_in(blocks: Sequence[JsonObject], values: JsonObject) -> dict[str, str]:
    """Return the errors of Slack's client, by block_id."""
    errors: dict[str, str] = {}
    for placed in placed_elements(blocks):
        if placed.block.get("type") != "input":
            continue
        state = as_object(as_object(values.get(placed.block_id)).get(placed.action_id))
        value = state.get(VALUE_FIELDS[placed.type].key)
        if value in (None, "", []):
            if not placed.block.get("optional"):
                errors[placed.block_id] = REQUIRED
        elif (check := _CHECKS.get(placed.type)) and (
            objection := check(placed.element, str(value))
        ):
            errors[placed.block_id] = objection
    return errors


def _is_possible(placed: PlacedElement, value: object) -> bool:
    empty = VALUE_FIELDS[placed.type].empty
    items = as_list(value) if isinstance(empty, list) else [value]
    if isinstance(empty, list) and not isinstance(value, list):
        return False
    if value is None:
        return True
    possible = _POSSIBLE.get(placed.type, _is_text)
    return all(possible(placed.element, item) for item in items)


def _is_text(element: JsonObject, value: object) -> bool:
    del element
    return isinstance(value, str)


def _is_object(element: JsonObject, value: object) -> bool:
    del element
    return isinstance(value, dict)


def _is_whole(element: JsonObject, value: object) -> bool:
    del element
    # In Python True is an int.
    return isinstance(value, int) and not isinstance(value, bool)


def _is_date(element: JsonObject, value: object) -> bool:
    return _is_text(element, value) and _parses(date.fromisoformat, value)


def _is_time(element: JsonObject, value: object) -> bool:
    return _is_text(element, value) and _parses(time.fromisoformat, value)


def _parses(parse: Callable[[str], object], value: object) -> bool:
    try:
        parse(str(value))
    except ValueError:
        return False
    return True


_POSSIBLE: dict[str, Callable[[JsonObject, object], bool]] = {
    "checkboxes": offers,
    "datepicker": _is_date,
    "datetimepicker": _is_whole,
    "external_select": _is_object,
    "file_input": _is_object,
    "multi_external_select": _is_object,
    "multi_static_select": offers,
    "radio_buttons": offers,
    "rich_text_input": _is_object,
    "static_select": offers,
    "timepicker": _is_time,
}
"""The valid items of each type; all other types contain text."""


def _text(element: JsonObject, value: str) -> str | None:
    least = int(element.get("min_length") or 0)
    most = int(element.get("max_length") or DEFAULT_MAX_LENGTH)
    if len(value) < least:
        return f"Please enter at least {least} characters."
    if len(value) > most:
        return f"Please enter at most {most} characters."
    return None


def _number(element: JsonObject, value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return "Please enter a valid number."
    # `float` also accepts "nan" and "inf".
    if not math.isfinite(number):
        return "Please enter a valid number."
    if not element.get("is_decimal_allowed") and not re.fullmatch(r"[+-]?\d+", value):
        return "Please enter a whole number."
    least, most = element.get("min_value"), element.get("max_value")
    if least is not None and number < float(least):
        return f"Please enter a number of {least} or more."
    if most is not None and number > float(most):
        return f"Please enter a number of {most} or less."
    return None


def _email(element: JsonObject, value: str) -> str | None:
    del element
    return None if EMAIL.fullmatch(value) else "Please enter a valid email address."


def _url(element: JsonObject, value: str) -> str | None:
    del element
    parts = urlsplit(value)
    if parts.scheme in {"http", "https"} and parts.netloc:
        return None
    return "Please enter a valid URL."


_CHECKS: dict[str, Callable[[JsonObject, str], str | None]] = {
    "plain_text_input": _text,
    "number_input": _number,
    "email_text_input": _email,
    "url_text_input": _url,
}
