"""Blocks and views that the sandbox's tests post."""

from typing import Any

JSON = dict[str, Any]


def plain(text: str) -> JSON:
    return {"type": "plain_text", "text": text}


def section(text: str) -> JSON:
    return {"type": "section", "text": plain(text)}


def button(action_id: str, value: str = "v1") -> JSON:
    return {
        "type": "button",
        "action_id": action_id,
        "text": plain(action_id.title()),
        "value": value,
    }


def card(text: str, *action_ids: str) -> list[JSON]:
    buttons = [button(action_id) for action_id in action_ids or ("approve",)]
    actions = {"type": "actions", "block_id": "decide", "elements": buttons}
    return [section(text), actions]


def field(block_id: str, element: JSON, **more: Any) -> JSON:
    return {
        "type": "input",
        "block_id": block_id,
        "label": plain(block_id),
        "element": {"action_id": "value", **element},
        **more,
    }


def options(*values: str) -> list[JSON]:
    return [{"text": plain(value), "value": value} for value in values]


def modal(*blocks: JSON, **more: Any) -> JSON:
    return {
        "type": "modal",
        "callback_id": "edit",
        "title": plain("Edit"),
        "submit": plain("Save"),
        "close": plain("Cancel"),
        "blocks": list(blocks)
        or [field("amount", {"type": "plain_text_input", "initial_value": "899.00"})],
        **more,
    }


def home(text: str = "Hello") -> JSON:
    return {"type": "home", "blocks": card(text, "refresh")}
