"""The only reviewer is replaced while a card waits, and both can still end it."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action, Input
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import ItemState
from tests.bot.bot_stack import CHANNEL, POLICY, Stack, says


def reviewed_by(user: str) -> Policy:
    """Return the policy with one reviewer."""
    roles = "{usergroups: [S0SUPPORT], users: [U0DAN]}"
    return load_policy(POLICY.replace(roles, f"{{users: [{user}]}}"), "policy.yml")


@pytest.mark.parametrize("user", ["U0ANA", "U0BEN"])
async def test_the_card_says_that_nobody_can_approve_it_and_either_rejects_it(
    stack: Stack, user: str
) -> None:
    stack.policy = reviewed_by("U0ANA")
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        stack.policy = reviewed_by("U0BEN")
        # Every event makes the bot check the cards again.
        await stack.refund(thread="t2")
        card = await stack.card(verdict, says("Cannot be approved"))
        person = stack.actor(user)

        await person.click(CHANNEL, str(card["ts"]), Action.APPROVE)
        await stack.told(user, "too few people may approve")
        await stack.told(user, "You can still reject it.")
        await person.click(CHANNEL, str(card["ts"]), Action.REJECT)
        await person.wait_for_view()
        await person.submit({Input.REASON: "no"})

        await stack.card(verdict, says("Rejected"))
        assert (await stack.approval(verdict)).items[0].state is ItemState.REJECTED
