"""A card leads to the Slack message with which its agent was asked."""

from __future__ import annotations

import json

import pytest

from tests.bot.bot_stack import CHANNEL, Stack
from twokey.bot.delivery.conversation_links import PERMALINK, ConversationLinks
from twokey.bot.web import Slack, SlackBody, SlackError, SlackNoResponse, SlackRefused
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


class Silent(Slack):
    """Slack that refuses, or whose answer never comes."""

    def __init__(self, error: SlackError | None) -> None:
        self.asked = 0
        self._error = error

    async def ask(self, method: str, **arguments: str) -> SlackBody:
        del method, arguments
        self.asked += 1
        if self._error is not None:
            raise self._error
        return {"permalink": "https://acme.slack.com/archives/C1/p1000001"}


async def test_slack_is_left_alone_for_a_while_after_it_failed() -> None:
    now = [1000.0]
    links = ConversationLinks(clock=lambda: now[0])
    down = Silent(SlackNoResponse(PERMALINK, "no answer"))
    origins = [Origin(channel="C1", thread_ts=f"{n}.000001") for n in range(9)]

    found = [await links.find(down, origin) for origin in origins]
    asked = down.asked
    now[0] += 60.0
    later = await links.find(Silent(None), origins[0])

    assert (found, asked) == ([""] * 9, 1)
    assert later.startswith("https://")


@pytest.mark.parametrize("why", ["not_authed", "missing_scope", "team_added_to_org"])
async def test_what_is_refused_to_the_whole_bot_says_nothing_of_a_message(
    why: str,
) -> None:
    now = [1000.0]
    links = ConversationLinks(clock=lambda: now[0])
    origin = Origin(channel="C1", thread_ts="1.000001")

    assert await links.find(Silent(SlackRefused(PERMALINK, why)), origin) == ""
    now[0] += 60.0

    assert await links.find(Silent(None), origin)
