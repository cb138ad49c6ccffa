"""A bot whose machine was suspended does not take cached facts for new."""

from __future__ import annotations

import time

import pytest

from keyturn.bot.app import SlackBot
from keyturn.bot.ids import Action
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from tests.bot.bot_stack import CHANNEL, Stack

ASLEEP_S = 600.0


@pytest.mark.skipif(
    not hasattr(time, "CLOCK_BOOTTIME"), reason="its clocks count suspension"
)
async def test_who_left_the_group_meanwhile_approves_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Linux most clocks stop while the machine is suspended."""
    asleep_s, real = 0.0, time.clock_gettime

    def clock_gettime(clock: int) -> float:
        moved = asleep_s if clock == time.CLOCK_BOOTTIME else 0.0
        return real(clock) + moved

    async def state_of(verdict: Verdict) -> ItemState:
        return (await stack.item(verdict)).state

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    async with SlackBot(stack.config, stack.reviews) as bot:
        stack.bot = bot
        stack.sandbox.deliver_http(bot.url)
        ana = stack.actor("U0ANA")
        verdicts = [await stack.refund(thread=name) for name in ("t1", "t2")]
        first, second = [str((await stack.card(one))["ts"]) for one in verdicts]
        await ana.click(CHANNEL, first, Action.APPROVE)
        assert await state_of(verdicts[0]) is ItemState.AUTHORIZED

        stack.sandbox.control.set_group("S0SUPPORT", ["U0BEN"])
        asleep_s = ASLEEP_S
        stack.sandbox.clock.advance(ASLEEP_S)  # Slack was awake
        await ana.click(CHANNEL, second, Action.APPROVE)

        assert await state_of(verdicts[1]) is ItemState.PENDING
