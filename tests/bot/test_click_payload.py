"""What is read of a click on a message is what is read of its whole payload."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bot.test_payload import CLICK
from twokey.bot.click_payload import click_on_message
from twokey.bot.form import BadForm, interaction_in
from twokey.bot.payload import BadPayload, BlockAction, block_action

PATHS = [
    *("type", "user", "user.id", "user.team_id", "team", "team.id", "channel"),
    *("channel.id", "container", "container.message_ts", "container.channel_id"),
    *("actions", "actions.0", "actions.0.action_id", "actions.0.block_id"),
    *("actions.0.value", "actions.0.selected_option", "trigger_id", "response_url"),
    *("view", "view.id", "message", "view.type", "enterprise", "state.values"),
]
ODD: list[Any] = [
    *(None, "", "x", " ", 0, 1.5, True, [], {}, ["x"], {"id": "Z"}, [{}, {}]),
    *(
        [CLICK["actions"][0]] * 2,
        {"id": ""},
        {"value": "v"},
        {"type": "home", "id": "V1", "hash": "h"},
        "é\x00",
    ),
]


def whole(document: bytes) -> BlockAction | None:
    """Return what is read of a whole payload."""
    try:
        found: Any = interaction_in(document)
        return block_action(found)
    except (BadForm, BadPayload):
        return None


def changed(body: Any, path: str, value: Any) -> None:
    """Put a value at a path of a payload, if there is such a place."""
    *outer, last = [int(one) if one.isdigit() else one for one in path.split(".")]
    with suppress(LookupError, TypeError):
        for name in outer:
            body = body[name]
        body[last] = value


def test_a_click_on_a_message_is_read_without_the_rest() -> None:
    body = {
        **CLICK,
        "message": {"blocks": [{"text": "\ud83d\ude00"}] * 9},
        "view": None,
    }
    document = json.dumps(body).encode()

    click = click_on_message(document)

    assert click
    assert click == whole(document)
    assert click.value == "ap:1:0:mac"


@given(
    st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(ODD)), max_size=3),
    st.lists(st.sampled_from(["user", "team", "view", "enterprise"]), max_size=2),
)
def test_whatever_is_read_of_a_click_is_what_it_says(
    changes: list[tuple[str, Any]], left_out: list[str]
) -> None:
    body = copy.deepcopy(CLICK)
    for path, value in changes:
        changed(body, path, copy.deepcopy(value))
    for name in left_out:
        body.pop(name, None)
    document = json.dumps(body).encode()

    click = click_on_message(document)

    assert click is None or click == whole(document)


@given(st.integers(0, 600), st.binary(max_size=3), st.integers(0, 3))
def test_bytes_that_are_no_json_are_left_to_the_whole_reading(
    at: int, put: bytes, over: int
) -> None:
    document = json.dumps(CLICK).encode()
    document = document[:at] + put + document[at + over :]

    click = click_on_message(document)

    assert click is None or click == whole(document)


@pytest.mark.parametrize("name", ["user", "team", "channel", "actions", "view", "type"])
@pytest.mark.parametrize("is_last", [False, True])
def test_of_two_members_of_one_name_both_read_the_same(
    name: str, *, is_last: bool
) -> None:
    other = {
        "user": {"id": "U9", "team_id": "T9"},
        "team": {"id": "T9"},
        "channel": {"id": "C9"},
        "actions": [{**CLICK["actions"][0], "value": "other"}],
        "view": {"id": "V1"},
        "type": "view_submission",
    }[name]
    plain, more = json.dumps(CLICK)[1:-1], f"{json.dumps(name)}: {json.dumps(other)}"
    document = f"{{{plain}, {more}}}" if is_last else f"{{{more}, {plain}}}"

    click = click_on_message(document.encode())

    assert click is None or click == whole(document.encode())
    assert is_last or click or name == "view"
