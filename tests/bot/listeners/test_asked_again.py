"""A person who approves an escalated call within seconds has to read it first."""

from __future__ import annotations

from keyturn.bot.ids import Action
from keyturn.gateway.policy.load import load_policy
from tests.bot.bot_stack import CHANNEL, POLICY, Stack

SLOWER = POLICY.replace("approvals: 2,", "approvals: 2, ask_again_within: 10m,")


async def test_a_quick_approval_is_asked_for_once_more_in_private(
    stack: Stack,
) -> None:
    stack.policy = load_policy(SLOWER, "policy.yml")
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {"to": "x"}))
        card = await stack.card(verdict)

        await stack.actor("U0CHLOE").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        told = await stack.told("U0CHLOE", "Not counted yet")
        assert "Read it, then approve again" in told
        assert (await stack.approval(verdict)).items[0].votes == ()
