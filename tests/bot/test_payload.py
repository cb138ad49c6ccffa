"""Verified payloads become typed records, or an error about the missing part."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.bot import payload
from keyturn.bot.payload import BadPayload, Clicked, Command, Submitted
from keyturn.gateway.approvals.decisions import Gesture

CLICK: Any = {
    "type": "block_actions",
    "team": {"id": "T1", "domain": "acme"},
    "enterprise": None,
    "user": {"id": "U1", "team_id": "T1"},
    "container": {"type": "message", "message_ts": "1.2", "channel_id": "C1"},
    "channel": {"id": "C1", "name": "approvals"},
    "trigger_id": "tr",
    "response_url": "https://hooks.slack.test/1",
    "actions": [
        {
            "type": "button",
            "action_id": "approve",
            "block_id": "b",
            "value": "ap:1:0:mac",
            "action_ts": "3.4",
        }
    ],
}
SUBMIT: Any = {
    "type": "view_submission",
    "team": {"id": "T1"},
    "user": {"id": "U1", "team_id": "T1"},
    "trigger_id": "tr",
    "view": {
        "id": "V1",
        "root_view_id": "V0",
        "callback_id": "edit_modal",
        "hash": "h",
        "private_metadata": "ap:1:0:mac",
        "state": {"values": {"field:0": {"value": {"type": "x", "value": "1"}}}},
    },
}
FORM: Any = {
    "team_id": "T1",
    "user_id": "U1",
    "channel_id": "C1",
    "command": "/approvals",
    "text": "list",
    "trigger_id": "tr",
    "response_url": "https://hooks.slack.test/1",
}
MENTION: Any = {
    "type": "event_callback",
    "team_id": "T1",
    "event_id": "Ev1",
    "event": {
        "type": "app_mention",
        "user": "U1",
        "text": "<@UBOT> refund",
        "ts": "5.6",
        "channel": "C1",
        "team": "T1",
    },
}


def _changed(body: Any, path: str, value: Any) -> Any:
    """Return a copy with another value at a dotted path; None deletes."""
    copied: Any = copy.deepcopy(body)
    steps: list[Any] = [int(s) if s.isdigit() else s for s in path.split(".")]
    node = copied
    for key in steps[:-1]:
        node = node[key]
    if value is None:
        del node[steps[-1]]
    else:
        node[steps[-1]] = value
    return copied


def _keys(node: Any) -> list[Any]:
    return list(node) if hasattr(node, "keys") else list(range(len(node)))


def _is_filled(node: Any) -> bool:
    return bool(node) and (hasattr(node, "keys") or hasattr(node, "append"))


def test_a_click_on_a_card_names_person_card_and_button() -> None:
    click = Clicked.read(CLICK)

    assert (click.team, click.user, click.user_team) == ("T1", "U1", "T1")
    assert (click.channel, click.message_ts) == ("C1", "1.2")
    assert (click.action_id, click.value) == ("approve", "ap:1:0:mac")
    assert (click.view_id, click.gesture) == ("", Gesture.BUTTON)


def test_the_home_team_of_a_slack_connect_user_is_kept_apart() -> None:
    click = Clicked.read(_changed(CLICK, "user.team_id", "T9"))

    assert (click.team, click.user_team) == ("T1", "T9")


def test_a_submitted_modal_brings_its_values() -> None:
    view = Submitted.read(SUBMIT)

    assert (view.callback_id, view.view_id) == ("edit_modal", "V1")
    assert view.gesture is Gesture.MODAL
    assert view.private_metadata == "ap:1:0:mac"
    assert view.values["field:0"]["value"]["value"] == "1"


def test_a_mention_is_answered_in_its_thread_or_starts_one() -> None:
    first = payload.mention(MENTION)
    inside = payload.mention(_changed(MENTION, "event.thread_ts", "4.4"))

    assert first is not None
    assert inside is not None
    assert (first.thread_ts, inside.thread_ts) == ("5.6", "4.4")


@pytest.mark.parametrize("subtype", ["file_share", "me_message", "thread_broadcast"])
def test_what_a_person_says_in_another_way_is_a_mention_too(subtype: str) -> None:
    event = {**MENTION["event"], "subtype": subtype}

    found = payload.mention({**MENTION, "event": event})

    assert found is not None
    assert found.text == "<@UBOT> refund"


@pytest.mark.parametrize(
    "extra",
    [
        {"bot_id": "B1"},
        {"subtype": "channel_join"},
        {"type": "message", "channel_type": "channel"},
    ],
)
def test_what_no_person_said_to_the_bot_is_nothing(extra: Any) -> None:
    body = {**MENTION, "event": {**MENTION["event"], **extra}}

    assert payload.mention(body) is None


DIRECT: Any = {
    **MENTION,
    "event": {
        "type": "message",
        "subtype": "message_changed",
        "channel": "D1",
        "channel_type": "im",
        "ts": "9.9",
        "message": {
            "type": "message",
            "user": "U1",
            "text": "refund",
            "ts": "5.6",
            "edited": {"user": "U1", "ts": "9.8"},
        },
        "previous_message": {"type": "message", "user": "U1", "ts": "5.6"},
    },
}


def test_an_edit_is_the_same_message_with_other_words() -> None:
    edited = {"user": "U1", "ts": "7.8"}
    first = payload.mention(MENTION)
    again = payload.mention(_changed(MENTION, "event.edited", edited))
    direct = payload.mention(DIRECT)

    assert first is not None
    assert again is not None
    assert direct is not None
    assert (first.message_key, first.edited_ts) == (again.message_key, "")
    assert again.edited_ts == "7.8"
    assert (direct.text, direct.ts, direct.edited_ts) == ("refund", "5.6", "9.8")
    assert direct.message_key != first.message_key


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("event.message.edited", None),
        # A reply or a preview, of a message that was edited earlier.
        ("event.previous_message.edited", {"user": "U1", "ts": "9.8"}),
        ("event.message.bot_id", "B1"),
        ("event.message.subtype", "bot_message"),
        ("event.channel_type", "channel"),
    ],
)
def test_a_change_by_no_person_is_nothing(path: str, value: object) -> None:
    assert payload.mention(_changed(DIRECT, path, value)) is None


@pytest.mark.parametrize(
    ("read", "body", "path", "value", "place"),
    [
        (Clicked.read, CLICK, "type", "view_submission", "type"),
        (Clicked.read, CLICK, "user", None, "user.id"),
        (Clicked.read, CLICK, "team", None, "team.id"),
        (Clicked.read, CLICK, "user.id", 7, "user.id"),
        (Clicked.read, CLICK, "actions", [], "actions"),
        (Clicked.read, CLICK, "actions", CLICK["actions"] * 2, "actions"),
        (Clicked.read, CLICK, "actions.0.value", 3, "actions.0.value"),
        (Clicked.read, CLICK, "trigger_id", None, "trigger_id"),
        (Submitted.read, SUBMIT, "view.state", None, "view.state.values"),
        (
            Submitted.read,
            SUBMIT,
            "view.state.values",
            {"b": {"a": 1}},
            "view.state.values.b.a",
        ),
        (Command.read, FORM, "channel_id", None, "channel_id"),
        (payload.mention, MENTION, "event.type", "reaction_added", "event.type"),
        (payload.mention, MENTION, "event_id", None, "event_id"),
    ],
)
def test_a_malformed_payload_is_refused_by_the_name_of_what_is_wrong(
    read: Callable[[Any], object], body: Any, path: str, value: Any, place: str
) -> None:
    with pytest.raises(BadPayload) as caught:
        read(_changed(body, path, value))

    assert caught.value.place == place


_json: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (Clicked.read, CLICK),
        (Submitted.read, SUBMIT),
        (Command.read, FORM),
        (payload.mention, MENTION),
        (payload.mention, DIRECT),
    ],
)
@given(data=st.data())
def test_no_payload_raises_anything_but_bad_payload(
    read: Callable[[Any], object], body: Any, data: st.DataObject
) -> None:
    broken: Any = copy.deepcopy(body)
    node = broken
    key = data.draw(st.sampled_from(_keys(node)))
    while _is_filled(node[key]) and data.draw(st.booleans()):
        node = node[key]
        key = data.draw(st.sampled_from(_keys(node)))
    node[key] = data.draw(_json)

    with contextlib.suppress(BadPayload):  # anything else would fail here
        read(broken)
