"""Web API methods ``views.*`` and ``blocks.validate``."""

from collections.abc import Callable
from typing import cast

from keyturn.sandbox import views
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.arguments import optional, required
from keyturn.sandbox.blockkit import (
    ReadOnlyJSON,
    validate_home,
    validate_message,
    validate_modal,
)
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject, as_object
from keyturn.sandbox.validation import INVALID_VIEW, check_view, read_json


def open_view(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Open a modal for the person whose interaction made the trigger."""
    document = _document(arguments, "modal")
    trigger = slack.triggers.check(arguments.get("trigger_id"))
    view = views.open_modal(slack, trigger.user, document)
    slack.triggers.spend(trigger)
    return {"view": views.wire(slack, view)}


def push(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Push a modal over the one whose element made the trigger."""
    document = _document(arguments, "modal")
    trigger = slack.triggers.check(arguments.get("trigger_id"))
    if not (trigger.from_modal and slack.workspace.modals[trigger.user]):
        raise ApiError("not_found")
    view = views.push_modal(slack, trigger.user, document)
    slack.triggers.spend(trigger)
    return {"view": views.wire(slack, view)}


def update(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Replace an open view."""
    document = _document(arguments, "modal", "home")
    view = views.find_view(slack, required(arguments, "view_id"))
    if view.document["type"] != document["type"]:
        raise ApiError(INVALID_VIEW)
    changed = views.update_view(slack, view, document, optional(arguments, "hash"))
    return {"view": views.wire(slack, changed)}


def publish(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Replace a person's Home view."""
    document = _document(arguments, "home")
    user = slack.workspace.users.get(required(arguments, "user_id"))
    if user is None or user.deleted or user.is_bot:
        raise ApiError("invalid_arguments")
    if not slack.workspace.home_enabled:
        raise ApiError("not_enabled")
    expected = optional(arguments, "hash")
    view = views.publish_home(slack, user.id, document, expected)
    return {"view": views.wire(slack, view)}


def validate_blocks(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Validate exactly one of `blocks`, `message` and `view` without using it.

    Source: https://docs.slack.dev/reference/methods/blocks.validate
    """
    del slack
    given = [name for name in ("blocks", "message", "view") if arguments.get(name)]
    if len(given) != 1:
        raise ApiError("invalid_arguments")
    name = given[0]
    value = read_json(arguments[name], f"invalid_{name}")
    document = as_object(value)
    if name == "blocks":
        problems = validate_message(cast("ReadOnlyJSON", value), "text")
    elif name == "message":
        problems = validate_message(document.get("blocks"), document.get("text"))
    elif document.get("type") == "home":
        problems = validate_home(document)
    else:
        problems = validate_modal(document)
    if problems:
        errors = [
            {"pointer": p.pointer, "code": p.code, "message": p.message}
            for p in problems
        ]
        raise ApiError(f"invalid_{name}", errors=errors)
    return {}


def _document(arguments: JsonObject, *kinds: str) -> JsonObject:
    return check_view(read_json(arguments.get("view"), INVALID_VIEW), kinds=kinds)


METHODS: dict[str, Callable[[FakeSlack, JsonObject], JsonObject]] = {
    "blocks.validate": validate_blocks,
    "views.open": open_view,
    "views.publish": publish,
    "views.push": push,
    "views.update": update,
}
