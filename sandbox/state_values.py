"""Convert Python values into Slack's ``view.state.values``, to fill in a form."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time

from keyturn.sandbox.elements import (
    VALUE_FIELDS,
    PlacedElement,
    options_of,
    placed_elements,
)
from keyturn.sandbox.json_types import JsonObject, as_object, is_list

OPTION_KEYS = ("selected_option", "selected_options")


def entered(
    blocks: Sequence[JsonObject], values: Mapping[str, object]
) -> dict[str, JsonObject]:
    """Return Slack's `state.values` for values given by block_id or action_id.

    Raises:
        LookupError: a key matches no element, or a value no option of its element.
    """
    result: dict[str, JsonObject] = {}
    elements = [item for item in placed_elements(blocks) if item.type in VALUE_FIELDS]
    for key, value in values.items():
        found = [item for item in elements if key == item.block_id] or [
            item for item in elements if key == item.action_id
        ]
        if not found:
            known = sorted({item.block_id for item in elements})
            raise LookupError(f"No input is called {key!r}; there are {known!r}.")
        for placed in found:
            states = as_object(value)
            given = states.get(placed.action_id) if key == placed.block_id else None
            state = as_object(given) or choice(placed, value)
            result.setdefault(placed.block_id, {})[placed.action_id] = state
    return result


def choice(placed: PlacedElement, value: object) -> JsonObject:
    """Return the state of one element for a plain value; None clears it."""
    field = VALUE_FIELDS.get(placed.type)
    key = field.key if field else "selected_option"
    if value is None:
        return {"type": placed.type, key: field.empty if field else None}
    if key in OPTION_KEYS:
        wanted = value if is_list(value) else [value]
        chosen = [_option(placed, item) for item in wanted]
        held = chosen if key == "selected_options" else chosen[0]
        return {"type": placed.type, key: held}
    return {"type": placed.type, key: _plain(value)}


def _option(placed: PlacedElement, value: object) -> JsonObject:
    if as_object(value):
        return as_object(value)
    offered = options_of(placed.element)
    for option in offered:
        if value in (option.get("value"), as_object(option.get("text")).get("text")):
            return option
    known = [option.get("value") for option in offered]
    raise LookupError(
        f"{placed.action_id!r} does not offer {value!r}; it offers {known!r}."
    )


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, date | time):
        return value.isoformat()[: len("2026-01-01") if isinstance(value, date) else 5]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return value
