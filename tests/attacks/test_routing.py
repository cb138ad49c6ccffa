"""Whatever a payload names, only the bot of one named workspace gets it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from slack_bolt.response import BoltResponse

from keyturn.bot.ingress import Delivery
from keyturn.bot.payload import BadPayload, Clicked, Command, Mention, Submitted
from keyturn.bot.workspaces import Workspaces
from tests.levels import examples

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
