"""A card links the Slack message that started its agent."""

from __future__ import annotations

import json

from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, Stack

LINK = "|Open the conversation>"


async def asked(stack: Stack, channel: str = CHANNEL) -> tuple[Verdict, Origin]:
    """Request a refund as Dan in a channel; the agent makes the call."""
    place = "#agent-approvals" if channel == CHANNEL else channel
    ts = await stack.actor("U0DAN").say(place, "please refund order 78291")
    origin = Origin(channel=channel, thread_ts=ts)
    (verdict,) = await stack.submit(("process_refund", {"amount": 12}), origin=origin)
    return verdict, origin


def links(card: JsonObject) -> int:
    return json.dumps(card["blocks"]).count(LINK)


async def test_a_card_links_to_the_message_that_asked(stack: Stack) -> None:
    async with stack.running():
        verdict, origin = await asked(stack)
        card = await stack.card(verdict)
        assert f"/p{origin.thread_ts.replace('.', '')}{LINK}" in json.dumps(card)


async def test_a_direct_message_is_linked_for_nobody(stack: Stack) -> None:
    direct = Origin(channel="D0DAN", thread_ts="1.000001")
    async with stack.running():
        (verdict,) = await stack.submit(
            ("process_refund", {"amount": 12}), origin=direct
        )
        card = await stack.card(verdict)

        assert links(card) == 0
