"""A channel is reported as told only after Slack took the message."""

from __future__ import annotations

from tests.bot.bot_house import CHANNEL, House, says
from tests.bot.listeners.test_time import PATIENT, has_note, ring
from tests.bot.test_publisher import nothing_is_left
from tests.conftest import eventually
from twokey.gateway.approvals.timing import TimerKind
from twokey.sandbox.json_types import JsonObject

BOT, GENERAL = "U0TWOKEY", "C0GENERAL"


async def line_of(house: House, card: JsonObject) -> JsonObject:
    await eventually(lambda: has_note(house, card, "others are asked too"))
    (note,) = [n for n in await house.notes(card) if says("others are asked")(n)]
    return note


async def test_a_channel_that_was_told_is_named_as_told(house: House) -> None:
    house.policy = PATIENT
    async with house.running():
        (verdict,) = await house.submit(("wire_money", {}))
        card = await house.card(verdict)

        await ring(house, (await house.approval(verdict)).id, TimerKind.ESCALATE)

        await house.actor("U0ANA").message_with(GENERAL, says("is not decided yet"))
        note = await line_of(house, card)
        assert says("Told in")(note)
        assert not says("Could not be told")(note)


async def test_for_a_channel_that_refuses_who_may_decide_is_called_in_the_thread(
    house: House,
) -> None:
    house.policy = PATIENT
    house.sandbox.control.leave(GENERAL, BOT)
    async with house.running():
        (verdict,) = await house.submit(("wire_money", {}))
        card = await house.card(verdict)

        await ring(house, (await house.approval(verdict)).id, TimerKind.ESCALATE)

        note = await line_of(house, card)
        assert says("Could not be told")(note)
        assert says("not_in_channel")(note)
        assert says("<!subteam^S0SUPPORT>")(note)
        assert not says("Told in")(note)
        await nothing_is_left(house)


async def test_without_a_card_others_are_called_to_the_home_tab(house: House) -> None:
    house.policy = PATIENT
    house.sandbox.control.leave(CHANNEL, BOT)
    async with house.running():
        (verdict,) = await house.submit(("wire_money", {}))
        await house.actor("U0DAN").message_with("D0DAN", says("cannot be posted"))

        await ring(house, (await house.approval(verdict)).id, TimerKind.ESCALATE)

        told = says("It has no card yet")
        await house.actor("U0ANA").message_with(GENERAL, told)
        await nothing_is_left(house)
