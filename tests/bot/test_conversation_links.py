"""A card links the Slack message that started its agent."""

from __future__ import annotations

import json

from keyturn.gateway.approvals.record import Origin
from tests.bot.bot_stack import CHANNEL, REFUND, Stack

LINK = "|conversation>"


async def test_a_card_links_to_the_message_that_asked(stack: Stack) -> None:
    ts = await stack.actor("U0DAN").say("#agent-approvals", "please refund it")
    assert f"/p{ts.replace('.', '')}{LINK}" in await shown(stack, CHANNEL, ts)


async def test_a_direct_message_is_linked_for_nobody(stack: Stack) -> None:
    assert LINK not in await shown(stack, "D0DAN", "1.000001")


async def shown(stack: Stack, channel: str, ts: str) -> str:
    """Return the card of a refund that was asked for there."""
    origin = Origin(channel=channel, thread_ts=ts)
    async with stack.running():
        (verdict,) = await stack.submit(("process_refund", REFUND), origin=origin)
        return json.dumps((await stack.card(verdict))["blocks"])
