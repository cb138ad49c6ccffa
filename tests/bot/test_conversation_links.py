"""A card leads to the Slack message with which its agent was asked."""

from __future__ import annotations

import json

import pytest

from tests.bot.bot_stack import CHANNEL, Stack
from twokey.bot.delivery.conversation_links import PERMALINK
from twokey.gateway.approvals.record import Origin
from twokey.gateway.protocol.wire import Verdict
from twokey.sandbox.json_types import JsonObject

LINK = "|Open the conversation>"


async def asked(stack: Stack, channel: str = CHANNEL) -> tuple[Verdict, Origin]:
    """Let Dan ask in a channel, and an agent want a refund for it."""
    place = "#agent-approvals" if channel == CHANNEL else channel
    ts = await stack.actor("U0DAN").say(place, "please refund order 78291")
    origin = Origin(channel=channel, thread_ts=ts)
    (verdict,) = await stack.submit(("process_refund", {"amount": 12}), origin=origin)
    return verdict, origin


def links(card: JsonObject) -> int:
    return json.dumps(card["blocks"]).count(LINK)


def permalinks(stack: Stack) -> int:
    return sum(call.method == PERMALINK for call in stack.sandbox.calls)


async def test_a_card_links_to_the_message_that_asked(stack: Stack) -> None:
    async with stack.running():
        verdict, origin = await asked(stack)
        card = await stack.card(verdict)
        again = await stack.submit(
            ("process_refund", {"amount": 13}), origin=origin, thread="t2"
        )
        await stack.card(again[0])

        assert f"/p{origin.thread_ts.replace('.', '')}{LINK}" in json.dumps(card)
        assert permalinks(stack) == 1


@pytest.mark.parametrize("fault", ["http_500", "rate_limit"])
async def test_a_card_comes_without_its_link_when_slack_fails(
    stack: Stack, fault: str
) -> None:
    stack.sandbox.faults.plan(fault, PERMALINK, calls=9)
    async with stack.running():
        verdict, _ = await asked(stack)
        card = await stack.card(verdict)

        assert links(card) == 0


async def test_a_message_that_slack_does_not_know_is_asked_for_once(
    stack: Stack,
) -> None:
    gone = Origin(channel=CHANNEL, thread_ts="1.000001")
    async with stack.running():
        for thread in ("t1", "t2"):
            (verdict,) = await stack.submit(
                ("process_refund", {"amount": 12}), origin=gone, thread=thread
            )
            card = await stack.card(verdict)
            assert links(card) == 0

        assert permalinks(stack) == 1


async def test_a_direct_message_is_linked_for_nobody(stack: Stack) -> None:
    direct = Origin(channel="D0DAN", thread_ts="1.000001")
    async with stack.running():
        (verdict,) = await stack.submit(
            ("process_refund", {"amount": 12}), origin=direct
        )
        card = await stack.card(verdict)

        assert links(card) == 0
        assert permalinks(stack) == 0
