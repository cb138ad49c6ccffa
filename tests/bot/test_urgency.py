"""A card that people wait for comes before everything that can wait."""

from __future__ import annotations

from tests.bot.bot_house import CHANNEL, House, says
from tests.bot.test_publisher import calls, nothing_is_left, put
from twokey.gateway.approvals.events import EventName

POST = "chat.postMessage"


async def test_a_card_does_not_wait_behind_words_of_the_same_channel(
    house: House,
) -> None:
    async with house.running():
        for number in range(40):
            await put(
                house, EventName.RUN_FINISHED, text=f"Answer {number}", channel=CHANNEL
            )
        await house.actor("U0ANA").message_with(CHANNEL, says("Answer 1"))
        before = len(calls(house, POST))

        verdict = await house.refund()
        await house.card(verdict)

        words = len(calls(house, POST)) - before - 1
        assert words <= 2, f"{words} answers were posted while a card waited"


async def test_every_answer_of_many_agents_is_posted_in_the_end(house: House) -> None:
    async with house.running():
        for number in range(8):
            await put(
                house,
                EventName.RUN_FINISHED,
                text=f"Answer {number}",
                channel="C0GENERAL",
            )
        await nothing_is_left(house)

    assert len(calls(house, POST)) == 8
