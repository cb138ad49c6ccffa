"""A channel counts as notified only after Slack accepted the message."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.timing import TimerKind
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, Stack, says
from tests.bot.listeners.test_time import PATIENT, has_note, ring
from tests.bot.test_publisher import nothing_is_left
from tests.conftest import eventually

BOT, GENERAL = "U0KEYTURN", "C0GENERAL"


async def line_of(stack: Stack, card: JsonObject) -> JsonObject:
    await eventually(lambda: has_note(stack, card, "others are asked too"))
    (note,) = [n for n in await stack.notes(card) if says("others are asked")(n)]
    return note


async def test_a_channel_that_was_told_is_named_as_told(stack: Stack) -> None:
    stack.policy = PATIENT
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {}))
        card = await stack.card(verdict)

        await ring(stack, (await stack.approval(verdict)).id, TimerKind.ESCALATE)

        await stack.actor("U0ANA").message_with(GENERAL, says("still waits"))
        note = await line_of(stack, card)
        assert says("Notified in")(note)
        assert not says("Could not notify")(note)


async def test_reviewers_are_called_in_the_thread_instead(stack: Stack) -> None:
    stack.policy = PATIENT
    stack.sandbox.control.leave(GENERAL, BOT)
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {}))
        card = await stack.card(verdict)

        await ring(stack, (await stack.approval(verdict)).id, TimerKind.ESCALATE)

        note = await line_of(stack, card)
        assert says("Could not notify")(note)
        assert says("not_in_channel")(note)
        assert says("<!subteam^S0SUPPORT>")(note)
        assert not says("Notified in")(note)
        await nothing_is_left(stack)


@pytest.mark.slow
async def test_without_a_card_others_are_called_to_the_home_tab(stack: Stack) -> None:
    stack.policy = PATIENT
    stack.sandbox.control.leave(CHANNEL, BOT)
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {}))
        await stack.actor("U0DAN").message_with("D0DAN", says("cannot be posted"))

        await ring(stack, (await stack.approval(verdict)).id, TimerKind.ESCALATE)

        told = says("on the Home tab")
        await stack.actor("U0ANA").message_with(GENERAL, told)
        await nothing_is_left(stack)
