"""Odd values in a signed payload cause no server error, and no change of state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyturn.bot.ids import Action, Input
from tests.attacks.attacker import (
    Payload,
    changed,
    click_payload,
    deliver,
    deliver_bytes,
    rejection_form,
    trace,
    value_of,
)
from tests.bot.bot_stack import CHANNEL, TEAM, Stack

JSON = "application/json"
SERVER_ERROR = 500
UNAVAILABLE = 503
ODD: list[Any] = [
    *(None, True, 0, -1, 1e308, "", " ", "x" * 100_000, "\ud800", "\x00", "\u202e"),
    *([], {}, [1], {"a": 1}, [[[]]], "T0OTHER", "U0EVE", "C0GENERAL"),
]
MISSING = ...

DECISIVE = [
    *("type", "user", "user.id", "container.message_ts", "channel.id"),
    *("actions", "actions.0", "actions.0.action_id", "actions.0.value"),
]
"""Places of a click that decide what it is about: anything else there is refused."""


NOT_OBJECTS: list[Any] = [True, 0, -1, 1e308]
FALLS_BACK: dict[str, list[Any]] = {
    # Slack omits these for some installations; the user's own team replaces them.
    "channel.id": [None, ""],
    "user": NOT_OBJECTS,
}


async def good_click(stack: Stack) -> tuple[Any, Payload]:
    """Return a waiting call and a click that would approve it."""
    verdict = await stack.refund()
    card = await stack.card(verdict)
    approval = await stack.approval(verdict)
    value = value_of(stack, approval, Action.APPROVE)
    return verdict, click_payload(card["ts"], Action.APPROVE, value)


@pytest.mark.slow
@pytest.mark.parametrize("place", DECISIVE)
async def test_an_odd_click_changes_nothing(stack: Stack, place: str) -> None:
    async with stack.running():
        verdict, good = await good_click(stack)
        before = await trace(stack, verdict)

        for odd in ODD:
            if odd in FALLS_BACK.get(place, []):
                continue
            status, _ = await deliver(stack, changed(good, place, odd))
            assert status < SERVER_ERROR, ascii((place, odd))
            assert await trace(stack, verdict) == before, ascii((place, odd))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", None),
        (b"\xff\xfe", None),
        (b"payload=%ff%fe", None),
        (b"\x00" * 10, None),
        (b"a=1&" * 100_000, None),
        (b"payload={}", "multipart/form-data; boundary=x"),
        (b"payload={}", ""),
        (b"command=/approvals", None),
        (b"command=/approvals&command=/x&team_id=T&text=%00%ff", None),
        (b'{"type":"event_callback","event":{"type":{"a":1}}}', JSON),
        (b'{"type":"event_callback","event":null}', JSON),
        (b'{"type":"event_callback","event":[1]}', JSON),
        (b'{"type":"event_callback","event":{"type":"app_mention"}}', JSON),
        (b'{"type":"url_verification","challenge":{"a":1}}', JSON),
        (b'{"type":"url_verification"}', JSON),
    ],
)
async def test_a_signed_body_that_slack_never_sends_is_no_server_error(
    stack: Stack, body: bytes, kind: str | None
) -> None:
    async with stack.running():
        given = () if kind is None else (kind,)

        status, _ = await deliver_bytes(stack, body, *given)

    assert status < SERVER_ERROR


@pytest.mark.parametrize("event", ["app_mention", "message", "app_home_opened"])
async def test_an_odd_event_starts_nobody(stack: Stack, event: str) -> None:
    good: Payload = {
        "type": "event_callback",
        "team_id": TEAM,
        "event_id": "Ev0",
        "event": {
            "type": event,
            "user": "U0DAN",
            "text": "refund order 78291",
            "channel": CHANNEL,
            "channel_type": "im",
            "ts": "1.1",
            "tab": "home",
        },
    }
    places = ["team_id", "event_id", "event.user", "event.channel", "event.ts"]
    async with stack.running():
        for place in places:
            for odd in [*ODD[:3], *ODD[8:15], MISSING]:
                body = json.dumps(changed(good, place, odd)).encode()
                status, _ = await deliver_bytes(stack, body, JSON)
                # Slack is asked again about people whom it did not identify.
                asks_again = place == "event.user" and status == UNAVAILABLE
                assert status < SERVER_ERROR or asks_again, ascii((place, odd))

        # Another text as channel or `ts` is another message; other types are refused.
        texts = {odd for odd in ODD[8:15] if isinstance(odd, str) and odd}
        assert await stack.store.queue(stack.keys).depth() <= 1 + 2 * len(texts)


@pytest.mark.parametrize("place", ["user.id", "view.id", "view.private_metadata"])
async def test_an_odd_form_changes_nothing(stack: Stack, place: str) -> None:
    async with stack.running():
        verdict, good = await good_form(stack)
        before = await trace(stack, verdict)

        for odd in [*ODD, MISSING]:
            status, _ = await deliver(stack, changed(good, place, odd))
            assert status < SERVER_ERROR, ascii((place, odd))
            assert await trace(stack, verdict) == before, ascii((place, odd))


async def test_an_input_of_another_type_is_not_taken_for_text(stack: Stack) -> None:
    place = f"view.state.values.{Input.REASON.value}"
    async with stack.running():
        verdict, good = await good_form(stack)
        before = await trace(stack, verdict)

        for odd in [None, True, 0, 1e308, [], [1], "x"]:
            status, _ = await deliver(stack, changed(good, place, odd))
            assert status < SERVER_ERROR, odd
        too_long = {Input.REASON.value: {"value": "x" * 3001}}
        status, body = await deliver(stack, changed(good, place, too_long))

        assert (status, await trace(stack, verdict)) == (200, before)
        assert "errors" in body


async def good_form(stack: Stack) -> tuple[Any, Payload]:
    """Return a waiting call and a submission that would reject it."""
    verdict = await stack.refund()
    return verdict, await rejection_form(stack, verdict)
