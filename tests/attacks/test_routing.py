"""Whatever a payload names, only the bot of one named workspace gets it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from slack_bolt.response import BoltResponse

from keyturn.bot.ingress import Delivery
from keyturn.bot.payload import BadPayload, Clicked, Command, Mention, Submitted
from keyturn.bot.workspaces import Workspaces

TEAMS = ["T0A", "T0B"]

ids = st.sampled_from([*TEAMS, "T0ELSE", "", None])
junk = st.one_of(ids, st.integers(), st.lists(ids), st.dictionaries(ids, ids))
views: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries(
    {"id": st.just("V1"), "callback_id": st.just("c"), "type": st.just("home")},
    optional={"team_id": ids, "state": st.just({"values": {}})},
)
payloads = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["block_actions", "view_submission", "event_callback", None]
        ),
        "user": st.fixed_dictionaries({"id": st.just("U1"), "team_id": ids}) | junk,
    },
    optional={
        "team": st.fixed_dictionaries({"id": ids}) | junk,
        "team_id": ids,
        "view": views | junk,
        "authorizations": st.lists(
            st.fixed_dictionaries({"team_id": ids, "enterprise_id": ids}) | junk,
            max_size=2,
        ),
        "event": st.just(
            {"type": "app_mention", "channel": "C1", "ts": "1", "user": "U1"}
        )
        | junk,
        "event_id": st.just("Ev1"),
        "user_id": st.just("U1"),
        "channel_id": st.just("C1"),
        "command": st.just("/approvals"),
        "trigger_id": st.just("1.2.a"),
        "actions": st.just([{"action_id": "a", "block_id": "b", "value": "v"}]),
    },
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


@given(payloads)
def test_a_payload_goes_to_one_workspace_that_it_names(payload: object) -> None:
    bots = {team: Bot() for team in TEAMS}
    workspaces = cast("Any", Workspaces)(dict.fromkeys(TEAMS), Known())
    workspaces._running = {
        team: type("Running", (), {"bot": bot}) for team, bot in bots.items()
    }

    text = json.dumps(payload)
    delivery = Delivery(text, {"Content-Type": "application/json"}, "", until_s=0)
    response = asyncio.run(workspaces.receive(delivery))

    assert isinstance(response, BoltResponse)
    received = {team: bot.got for team, bot in bots.items() if bot.got}
    assert len(received) <= 1
    for team, [body] in received.items():
        assert team in text
        # A bot refuses what another workspace signed, and what names none.
        for kind in (Clicked, Submitted, Command, Mention):
            try:
                read = kind.read(body)
            except BadPayload:
                continue
            assert read.team == team
