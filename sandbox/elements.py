"""Find interactive elements in Block Kit blocks, and their initial values."""

import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keyturn.sandbox.json_types import (
    JsonObject,
    as_object,
    as_objects,
    as_text,
    copied,
)

NESTED_BLOCKS = ("child_blocks",)
ELEMENT_LISTS = ("elements", "actions")
SINGLE_ELEMENTS = ("accessory", "element")


class ValueField(NamedTuple):
    """The place of an element type's value in the state object.

    `key` is the member of Slack's state (and action) object. `initial` is the member of
    the element with the initial value. `empty` is the value without a choice.
    """

    key: str
    initial: str
    empty: object


_TEXT = ValueField("value", "initial_value", None)
_OPTION = ValueField("selected_option", "initial_option", None)
_OPTIONS = ValueField("selected_options", "initial_options", [])

VALUE_FIELDS: dict[str, ValueField] = {
    "plain_text_input": _TEXT,
    "email_text_input": _TEXT,
    "url_text_input": _TEXT,
    "number_input": _TEXT,
    "rich_text_input": ValueField("rich_text_value", "initial_value", None),
    "static_select": _OPTION,
    "external_select": _OPTION,
    "radio_buttons": _OPTION,
    "checkboxes": _OPTIONS,
    "multi_static_select": _OPTIONS,
    "multi_external_select": _OPTIONS,
    "users_select": ValueField("selected_user", "initial_user", None),
    "multi_users_select": ValueField("selected_users", "initial_users", []),
    "conversations_select": ValueField(
        "selected_conversation", "initial_conversation", None
    ),
    "multi_conversations_select": ValueField(
        "selected_conversations", "initial_conversations", []
    ),
    "channels_select": ValueField("selected_channel", "initial_channel", None),
    "multi_channels_select": ValueField("selected_channels", "initial_channels", []),
    "datepicker": ValueField("selected_date", "initial_date", None),
    "timepicker": ValueField("selected_time", "initial_time", None),
    "datetimepicker": ValueField("selected_date_time", "initial_date_time", None),
    "file_input": ValueField("files", "", []),
}
"""https://docs.slack.dev/reference/interaction-payloads/view-interactions-payload"""

CLICKABLE = frozenset({"button", "overflow", "workflow_button"})
INTERACTIVE = frozenset(VALUE_FIELDS) | CLICKABLE


class PlacedElement(NamedTuple):
    """An interactive element together with its block."""

    block: JsonObject
    element: JsonObject

    @property
    def block_id(self) -> str:
        """Return the id of the block."""
        return as_text(self.block.get("block_id"))

    @property
    def action_id(self) -> str:
        """Return the id of the element."""
        return as_text(self.element.get("action_id"))

    @property
    def type(self) -> str:
        """Return the element's type, such as `button`."""
        return as_text(self.element.get("type"))


def walk(blocks: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield every block, including those inside containers."""
    for block in blocks:
        yield block
        for key in NESTED_BLOCKS:
            yield from walk(as_objects(block.get(key)))


def placed_elements(blocks: Sequence[JsonObject]) -> Iterator[PlacedElement]:
    """Yield every interactive element, in reading order."""
    for block in walk(blocks):
        found = [as_object(block.get(key)) for key in SINGLE_ELEMENTS]
        for key in ELEMENT_LISTS:
            found.extend(as_objects(block.get(key)))
        for element in found:
            if element.get("type") in INTERACTIVE:
                yield PlacedElement(block, element)


def find(
    blocks: Sequence[JsonObject], action_id: str, block_id: str | None = None
) -> PlacedElement | None:
    """Return the element with these ids; without `block_id`, the first match."""
    for placed in placed_elements(blocks):
        if placed.action_id == action_id and block_id in (None, placed.block_id):
            return placed
    return None


def with_ids(blocks: Sequence[JsonObject]) -> list[JsonObject]:
    """Return a copy in which every block and element has an id, as Slack stores it."""
    kept = [copied(block) for block in blocks]
    for block in walk(kept):
        if not block.get("block_id"):
            block["block_id"] = secrets.token_hex(3)
    for placed in placed_elements(kept):
        if not placed.action_id:
            placed.element["action_id"] = secrets.token_hex(3)
    return kept


def initial_state(element: JsonObject) -> JsonObject | None:
    """Return the initial state of an element; None for elements without a value."""
    field = VALUE_FIELDS.get(as_text(element.get("type")))
    if field is None:
        return None
    return {
        "type": element["type"],
        field.key: element.get(field.initial, field.empty),
    }


def initial_values(
    blocks: Sequence[JsonObject], earlier: JsonObject | None = None
) -> JsonObject:
    """Return Slack's `state.values` for blocks.

    If `earlier` values contain an element of the same ids and type, the person's input
    is kept, as in Slack when a view is updated during typing.
    """
    values: JsonObject = {}
    for placed in placed_elements(blocks):
        state = initial_state(placed.element)
        if state is None:
            continue
        before = as_object(as_object(earlier).get(placed.block_id))
        kept = as_object(before.get(placed.action_id))
        if kept.get("type") == placed.type:
            state = kept
        values.setdefault(placed.block_id, {})[placed.action_id] = state
    return values


def options_of(element: JsonObject) -> list[JsonObject]:
    """Return the options of an element, including those in groups."""
    options = as_objects(element.get("options"))
    for group in as_objects(element.get("option_groups")):
        options.extend(as_objects(group.get("options")))
    return options


def offers(element: JsonObject, option: object) -> bool:
    """Return True if the element has this option, compared by its value."""
    value = as_object(option).get("value")
    return any(offered.get("value") == value for offered in options_of(element))


def input_blocks(blocks: Sequence[JsonObject]) -> set[str]:
    """Return the ids of the input blocks, the only ones that can show an error."""
    return {
        as_text(block.get("block_id"))
        for block in walk(blocks)
        if block.get("type") == "input"
    }
