"""Only exactly the sealed collected card can be used for a decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from keyturn.bot.ids import Action, seal
from keyturn.gateway.approvals.record import Approval, collected
from tests.bot.bot_stack import CHANNEL, TEAM, Stack
from tests.bot.tampering import click_with, copied
from tests.bot.test_collected_cards import batched, posted, states, three

Members = Sequence[Approval]

MANIPULATIONS: dict[str, Callable[[Members, Approval], Members]] = {
    "inserted": lambda members, other: [*members, other],
    "dropped": lambda members, _: members[:2],
    "reordered": lambda members, _: [members[1], members[0], members[2]],
    "duplicated": lambda members, _: [*members[:2], members[0]],
    "borrowed": lambda _, other: [other],
    "swapped": lambda members, other: [*members[:2], other],
}


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.policy = batched("within: 10m, up_to: 3")
    return stack


@pytest.mark.parametrize("name", MANIPULATIONS)
async def test_a_seal_over_other_calls_decides_nothing(stack: Stack, name: str) -> None:
    async with stack.running():
        verdicts, _ = await three(stack)
        (card,) = await posted(stack)
        # Of the same tenant and real, so that only the seal can reveal it.
        other = await stack.refund("t9", amount=109)
        members = [await stack.approval(one) for one in verdicts]
        extra = await stack.approval(other)
        card_id = await stack.store.collected_cards.card_of(stack.keys, members[0].id)
        assert card_id
        manipulated = collected(card_id, MANIPULATIONS[name](members, extra))
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


async def test_a_seal_of_another_button_decides_nothing(stack: Stack) -> None:
    async with stack.running():
        verdicts, ts = await three(stack)
        (card,) = await posted(stack)
        values = {
            element["action_id"]: element["value"]
            for row in card["blocks"]
            if row["type"] == "actions"
            for element in row["elements"]
            if "value" in element
        }

        await click_with(
            stack, card, Action.APPROVE_ALL, values[Action.REJECT_ALL.value]
        )

        await stack.told("U0ANA", "nothing was recorded")
        assert await states(stack, verdicts) == ["pending"] * 3
        assert ts == card["ts"]


async def test_a_copy_of_the_card_decides_nothing(stack: Stack) -> None:
    async with stack.running():
        verdicts, _ = await three(stack)
        (card,) = await posted(stack)
        ts = copied(stack, card, CHANNEL)

        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)

        await stack.told("U0ANA", "not the newest copy")
        assert await states(stack, verdicts) == ["pending"] * 3
