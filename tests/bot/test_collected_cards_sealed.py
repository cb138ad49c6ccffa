"""Only exactly the sealed collected card can be used for a decision."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action, seal
from keyturn.gateway.approvals.record import collected
from tests.bot.bot_stack import CHANNEL, TEAM, Stack
from tests.bot.tampering import click_with, copied
from tests.bot.test_collected_cards import batched, posted, states, three


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.policy = batched("within: 10m, up_to: 3")
    return stack


async def test_a_seal_over_other_calls_decides_nothing(stack: Stack) -> None:
    async with stack.running():
        verdicts, _ = await three(stack)
        (card,) = await posted(stack)
        # Of the same tenant and real, so that only the seal can reveal it.
        other = await stack.refund("t9", amount=109)
        members = [await stack.approval(one) for one in verdicts]
        extra = await stack.approval(other)
        card_id = await stack.store.collected_cards.card_of(stack.keys, members[0].id)
        assert card_id
        manipulated = collected(card_id, [*members[:2], extra])
        value = seal(
            manipulated,
            None,
            key=stack.config.seal_key,
            team=TEAM,
            purpose=Action.APPROVE_ALL,
        )

        await click_with(stack, card, Action.APPROVE_ALL, value)

        await stack.told("U0ANA", "nothing was recorded")
        assert await states(stack, [*verdicts, other]) == ["pending"] * 4


async def test_a_copy_of_the_card_decides_nothing(stack: Stack) -> None:
    async with stack.running():
        verdicts, _ = await three(stack)
        (card,) = await posted(stack)
        ts = copied(stack, card, CHANNEL)

        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)

        await stack.told("U0ANA", "not the newest copy")
        assert await states(stack, verdicts) == ["pending"] * 3
