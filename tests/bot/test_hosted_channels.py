"""In a channel of another workspace, the bot answers as in its own."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action
from keyturn.sandbox.samples import OTHER_TEAM
from tests.bot.bot_stack import CHANNEL, Stack, has_button
from tests.conftest import eventually


@pytest.fixture
def hosted(stack: Stack) -> Stack:
    stack.sandbox.control.host(CHANNEL, OTHER_TEAM)
    return stack


async def test_a_member_can_ask_an_agent_there(hosted: Stack) -> None:
    async with hosted.running():
        await hosted.actor("U0DAN").say(CHANNEL, "@keyturn refund order 78291")

        async def is_asked() -> bool:
            return await hosted.store.queue(hosted.keys).depth() == 1

        await eventually(is_asked)


async def test_words_under_a_card_there_are_offered(hosted: Stack) -> None:
    async with hosted.running():
        card = await hosted.card(await hosted.refund())
        ana = hosted.actor("U0ANA")

        await ana.say(CHANNEL, "@keyturn too much", str(card["ts"]))

        await ana.message_with(CHANNEL, lambda m: has_button(m, Action.REJECT_WORDS))
