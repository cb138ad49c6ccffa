"""A card that people wait for comes before everything that can wait."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.events import EventName
from tests.bot.bot_stack import CHANNEL, Stack, says
from tests.bot.test_publisher import calls, nothing_is_left, put

POST = "chat.postMessage"


async def test_a_card_does_not_wait_behind_words_of_the_same_channel(
    stack: Stack,
) -> None:
    async with stack.running():
        for number in range(40):
            await put(
                stack, EventName.RUN_FINISHED, text=f"Answer {number}", channel=CHANNEL
            )
        await stack.actor("U0ANA").message_with(CHANNEL, says("Answer 1"))
        before = len(calls(stack, POST))

        verdict = await stack.refund()
        await stack.card(verdict)

        words = len(calls(stack, POST)) - before - 1
        assert words <= 2, f"{words} answers were posted while a card waited"


@pytest.mark.slow
async def test_every_answer_of_many_agents_is_posted_in_the_end(stack: Stack) -> None:
    async with stack.running():
        for number in range(8):
            await put(
                stack,
                EventName.RUN_FINISHED,
                text=f"Answer {number}",
                channel="C0GENERAL",
            )
        await nothing_is_left(stack)

    assert len(calls(stack, POST)) == 8
