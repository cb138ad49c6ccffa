"""Manage each person's stack of modals and their App Home under Slack's rules."""

import secrets
from dataclasses import replace

from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.elements import initial_values, with_ids
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.records import View

STACK = 3
"""A root view and two pushed ones: https://docs.slack.dev/surfaces/modals"""


def open_modal(slack: FakeSlack, user_id: str, document: JsonObject) -> View:
    """Open a new root modal for a person, above the open ones.

    It counts towards `STACK` like pushed ones: Slack's documentation is ambiguous, and
    an app that works under the stricter reading works under both.
    """
    return _add(slack, user_id, document, below=None)


def push_modal(slack: FakeSlack, user_id: str, document: JsonObject) -> View:
    """Put a modal on top of the person's stack."""
    stack = slack.workspace.modals[user_id]
    return _add(slack, user_id, document, below=stack[-1] if stack else None)


def _add(
    slack: FakeSlack, user_id: str, document: JsonObject, below: View | None
) -> View:
    workspace = slack.workspace
    stack = workspace.modals[user_id]
    if len(stack) >= STACK:
        raise ApiError("push_limit_reached")
    view_id = f"V{secrets.token_hex(5).upper()}"
    kept = _document(document)
    view = View(
        id=view_id,
        user=user_id,
        document=kept,
        values=initial_values(kept["blocks"]),
        hash=_new_hash(slack),
        root_view_id=below.root_view_id if below else view_id,
        previous_view_id=below.id if below else None,
    )
    stack.append(view)
    workspace.changed({user_id})
    return view


def publish_home(
    slack: FakeSlack, user_id: str, document: JsonObject, expected_hash: str | None
) -> View:
    """Replace a person's Home view.

    Raises:
        ApiError: `hash_conflict` when `expected_hash` is not the stored one.
    """
    workspace = slack.workspace
    before = workspace.homes.get(user_id)
    if expected_hash and (before is None or before.hash != expected_hash):
        raise ApiError("hash_conflict")
    view_id = before.id if before else f"V{secrets.token_hex(5).upper()}"
    kept = _document(document)
    view = View(
        id=view_id,
        user=user_id,
        document=kept,
        values=initial_values(kept["blocks"], before.values if before else None),
        hash=_new_hash(slack),
        root_view_id=view_id,
    )
    workspace.put_home(view)
    return view


def update_view(
    slack: FakeSlack, view: View, document: JsonObject, expected_hash: str | None = None
) -> View:
    """Replace an open view; input in unchanged elements stays.

    Raises:
        ApiError: `hash_conflict` when `expected_hash` is not the stored one.
    """
    if expected_hash and expected_hash != view.hash:
        raise ApiError("hash_conflict")
    kept = _document(document)
    changed = replace(
        view,
        document=kept,
        values=initial_values(kept["blocks"], view.values),
        hash=_new_hash(slack),
        errors={},
    )
    store(slack, changed)
    return changed


def store(slack: FakeSlack, view: View) -> None:
    """Replace the view with the same id."""
    workspace = slack.workspace
    stack = workspace.modals[view.user]
    for place, before in enumerate(stack):
        if before.id == view.id:
            stack[place] = view
    home = workspace.homes.get(view.user)
    if home is not None and home.id == view.id:
        workspace.homes[view.user] = view
    workspace.changed({view.user})


def open_views(slack: FakeSlack) -> list[View]:
    """Return every open modal and Home view."""
    workspace = slack.workspace
    modals = [view for stack in workspace.modals.values() for view in stack]
    return [*modals, *workspace.homes.values()]


def find_view(slack: FakeSlack, view_id: str) -> View:
    """Return an open view by its id; raise `not_found`."""
    for view in open_views(slack):
        if view_id == view.id:
            return view
    raise ApiError("not_found")


def close(slack: FakeSlack, view: View) -> None:
    """Close one modal; the one below shows again."""
    stack = slack.workspace.modals[view.user]
    stack[:] = [kept for kept in stack if kept.id != view.id]
    slack.workspace.changed({view.user})


def close_all(slack: FakeSlack, user_id: str) -> list[View]:
    """Close all of a person's modals, and return them."""
    closed = list(slack.workspace.modals[user_id])
    slack.workspace.modals[user_id].clear()
    slack.workspace.changed({user_id})
    return closed


def wire(slack: FakeSlack, view: View) -> JsonObject:
    """Return a view in the format of Slack's API and payloads."""
    app, team_id = slack.workspace.app, slack.workspace.team_id
    return {
        **view.document,
        "id": view.id,
        "team_id": team_id,
        "app_id": app.id,
        "bot_id": app.bot_id,
        "app_installed_team_id": team_id,
        "state": {"values": view.values},
        "hash": view.hash,
        "root_view_id": view.root_view_id,
        "previous_view_id": view.previous_view_id,
    }


def _document(document: JsonObject) -> JsonObject:
    defaults: JsonObject = {
        "callback_id": "",
        "private_metadata": "",
        "external_id": "",
        "title": None,
        "submit": None,
        "close": None,
        "notify_on_close": False,
        "clear_on_close": False,
    }
    return {**defaults, **document, "blocks": with_ids(document["blocks"])}


def _new_hash(slack: FakeSlack) -> str:
    return f"{int(slack.clock.now())}.{secrets.token_hex(4)}"
