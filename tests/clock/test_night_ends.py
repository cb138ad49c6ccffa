"""When a night or a turn on call ends, people are asked about what still waits."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keyturn.bot.delivery import publisher
from keyturn.bot.ids import Action
from keyturn.gateway.policy.hours import utc
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import POLICY, Stack, has_button, says
from tests.clock.conftest import Clock

ROLE = "  support: {usergroups: [S0SUPPORT], users: [U0DAN]}\n"
NIGHT = """\
  support:
    users: [U0ANA, U0BEN]
    notify: dm
    on_call: turns
    quiet: {hours: "22:00-07:00", zone: ZONE}
"""
TURNS = """\
on_call:
  turns: {people: [U0ANA, U0BEN], start: DAY 12:00, length: 24h, zone: ZONE}
"""
PATIENCE_S = 120.0


def zone_of(hour: int, now_hour: int) -> str:
    """Return a time zone in which this is the hour."""
    ahead = (hour - now_hour + 12) % 24 - 12
    return f"Etc/GMT{-ahead:+d}"


def opened(stack: Stack) -> list[str]:
    """Return to whom the bot has opened a direct message."""
    calls = [one for one in stack.sandbox.calls if one.method == "conversations.open"]
    return [str(call.arguments["users"]) for call in calls]


@pytest.mark.slow
async def test_people_are_asked_when_the_night_ends_and_when_their_turn_begins(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_REDRAW_AT_LEAST_S", 1)
    now = utc(await store.conn.now_ms(""))
    zone = zone_of(23, now.hour)
    day = (now - timedelta(days=1)).date().isoformat()
    policy = POLICY.replace(ROLE, NIGHT) + TURNS
    for name, value in {"ZONE": zone, "DAY": day, "in: 1h": "in: 2d"}.items():
        assert name in policy
        policy = policy.replace(name, value)
    async with Sandbox() as sandbox:
        stack = Stack(sandbox, store, policy=load_policy(policy, "policy.yml"))
        async with stack.running():
            verdict = await stack.refund()
            card = await stack.card(verdict, says("Quiet hours until"))
            assert "Reviewers:" not in str(card["blocks"])
            assert opened(stack) == []

            clock.move(hours=9)
            await stack.card(verdict, says("Sent directly to"), timeout_s=PATIENCE_S)
            # On a busy machine the bot may open it again.
            (first,) = {*opened(stack)}
            clock.move(hours=24)
            both = says("<@U0ANA> and <@U0BEN>")
            await stack.card(verdict, both, timeout_s=PATIENCE_S)
            assert {first, *opened(stack)} == {"U0ANA", "U0BEN"}

            for user in ("U0ANA", "U0BEN"):
                copy = await stack.actor(user).message_with(
                    f"D{user[1:]}", lambda m: has_button(m, Action.APPROVE)
                )
            await stack.actor("U0BEN").click("D0BEN", str(copy["ts"]), Action.APPROVE)
            assert (await stack.item(verdict)).state is ItemState.AUTHORIZED
