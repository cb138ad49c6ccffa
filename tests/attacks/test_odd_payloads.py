"""Odd values in a signed payload cause no server error, and no change of state."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, cast

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slack_bolt.response import BoltResponse

from keyturn.bot.app import SlackBot
from keyturn.bot.ids import Action, Input
from keyturn.bot.ingress import Delivery
from keyturn.bot.payload import BadPayload, Clicked, Command, Mention, Submitted
from keyturn.bot.workspaces import Workspaces
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.connection.connection import number, text
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
from tests.bot.signed import interaction, post, signed_headers
from tests.levels import examples
from tests.lifetimes import listed

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


# A request without a valid recent signature is refused; repeats count once.


async def prepared(stack: Stack, action: Action = Action.APPROVE) -> Prepared:
    """Return a waiting call and the bytes of a click on it."""
    verdict = await stack.refund()
    card = await stack.card(verdict)
    value = value_of(stack, await stack.approval(verdict), action)
    return verdict, interaction(click_payload(card["ts"], action, value))


Prepared = tuple[Verdict, bytes]


def url_of(stack: Stack) -> str:
    assert stack.bot is not None
    return stack.bot.url


async def effects(stack: Stack, verdict: Verdict) -> tuple[int, int, int]:
    """Return the revision, the jobs and the number of authorizations of the call."""
    found = await trace(stack, verdict)
    return found.approval.rev, found.jobs, found.audit


async def test_a_replay_to_another_process_decides_nothing(stack: Stack) -> None:
    async with stack.running(), SlackBot(stack.config, stack.reviews) as other:
        verdict, body = await prepared(stack, Action.APPROVE)
        headers = signed_headers(stack.sandbox.signing_secret, body)
        await post(url_of(stack), headers, body)
        before = await effects(stack, verdict)

        elsewhere = await post(other.url, headers, body)

        assert (elsewhere[0], await effects(stack, verdict)) == (200, before)
    async with stack.running():
        assert (await post(url_of(stack), headers, body))[0] == 200
        assert await effects(stack, verdict) == before


async def test_a_requests_mark_outlives_the_request(stack: Stack) -> None:
    async with stack.running():
        _, body = await prepared(stack)
        # Slack's clock may be ahead: then the request counts for ten minutes.
        ahead = str(int(time.time()) + 299)  # noqa: TID251 - Slack's clock
        headers = signed_headers(stack.sandbox.signing_secret, body, timestamp=ahead)
        assert (await post(url_of(stack), headers, body))[0] == 200

        conn = stack.store.conn
        marks = [text(m) for m in listed(await conn.command("KEYS", "tk:*:seen:*"))]

        left = [number(await conn.command("PTTL", mark)) for mark in marks]
        assert min(left) > 600_000


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "OPTIONS", "DELETE"])
async def test_no_other_method_decides(stack: Stack, method: str) -> None:
    async with stack.running():
        verdict, body = await prepared(stack)
        before = await trace(stack, verdict)
        headers = signed_headers(stack.sandbox.signing_secret, body)

        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, url_of(stack), data=body, headers=headers
            ) as response,
        ):
            status = response.status

        assert status in {404, 405}
        assert await trace(stack, verdict) == before


# Whatever a payload names, only the bot of one named workspace gets it.


TEAMS = ["T0A", "T0B"]

Values = st.SearchStrategy[Any]


ids: Values = st.sampled_from([*TEAMS, "T0ELSE", "", None])
junk: Values = st.one_of(ids, st.integers(), st.lists(ids), st.dictionaries(ids, ids))
teams: Values = st.fixed_dictionaries({"id": ids})
person: Values = st.fixed_dictionaries({"id": st.just("U1")}, optional={"team_id": ids})
shown: Values = st.fixed_dictionaries(
    {
        "id": st.just("V1"),
        "callback_id": st.just("c"),
        "state": st.just({"values": {}}),
    },
    optional={"team_id": ids},
)


def payload(fixed: Mapping[str, object], **varied: Values) -> Values:
    """Return payloads of one kind, which name workspaces or junk in these places."""
    given = {name: st.just(value) for name, value in fixed.items()}
    return st.fixed_dictionaries(given, optional=varied)


BUTTON = {"action_id": "a", "block_id": "b", "value": "v"}
CLICK = {"type": "block_actions", "actions": [BUTTON], "trigger_id": "1.2.a"}
FORM = {"type": "view_submission"}
COMMAND = {"command": "/approvals", "user_id": "U1", "channel_id": "C1"}
MENTION = {"type": "app_mention", "channel": "C1", "ts": "1", "user": "U1"}
EVENT = {"type": "event_callback", "event_id": "Ev1", "event": MENTION}
in_view = {"team": st.one_of(teams, junk), "user": person, "view": shown}
granted: Values = st.fixed_dictionaries({"team_id": ids})
payloads = st.one_of(
    payload(CLICK, **in_view),
    payload(FORM, **in_view),
    payload(COMMAND, team_id=st.one_of(ids, junk)),
    payload(
        EVENT,
        team_id=ids,
        authorizations=st.lists(granted, max_size=2),
    ),
)


class Bot:
    """A bot of one workspace that keeps what it receives."""

    def __init__(self) -> None:
        self.got: list[dict[str, object]] = []

    async def receive(self, delivery: Delivery) -> BoltResponse:
        self.got.append(cast("dict[str, object]", delivery.body))
        return BoltResponse(status=200)


class Known:
    """Installations that nobody removes or adds."""

    changed = asyncio.Event()

    async def all(self) -> dict[str, object]:
        return {}


def authorized(sent: Mapping[str, Any]) -> str:
    """Return the workspace of the first authorization; "" without one."""
    each = cast("list[dict[str, str]]", sent.get("authorizations", []))
    return each[0]["team_id"] or "" if each else ""


@settings(max_examples=examples(2000), deadline=None)
@given(payloads)
def test_a_payload_goes_to_one_workspace_that_it_names(sent: Mapping[str, Any]) -> None:
    bots = {team: Bot() for team in TEAMS}
    workspaces = cast("Any", Workspaces)(dict.fromkeys(TEAMS), Known())
    workspaces._running = {
        team: type("Running", (), {"bot": bot}) for team, bot in bots.items()
    }

    text = json.dumps(sent)
    delivery = Delivery(text, {"Content-Type": "application/json"}, "", until_s=0)
    response = asyncio.run(workspaces.receive(delivery))

    assert isinstance(response, BoltResponse)
    received = {team: bot.got for team, bot in bots.items() if bot.got}
    assert len(received) <= 1
    for team, [body] in received.items():
        assert team in text
        # In a shared channel, only the authorization names the app's own workspace.
        assert authorized(sent) in {team, ""}
        # A bot refuses what another workspace signed, and what names none.
        for kind in (Clicked, Submitted, Command, Mention):
            try:
                read = kind.read(body)
            except BadPayload:
                continue
            assert read.team == team
