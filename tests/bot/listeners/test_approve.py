"""A click on Approve decides once, visible to all."""

from __future__ import annotations

from keyturn.bot.ids import Action
from keyturn.gateway.protocol.records import ItemState
from tests.bot.bot_stack import CHANNEL, Stack, has_button


async def test_a_click_on_approve_authorizes_the_call_and_changes_the_card(
    each_stack: Stack,
) -> None:
    stack = each_stack
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)

        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        item = (await stack.approval(verdict)).items[0]
        assert item.state is ItemState.AUTHORIZED
        assert item.decision is not None
        assert item.decision.by.user == "U0ANA"
        changed = await stack.card(verdict, lambda m: not has_button(m, Action.APPROVE))
        assert changed["ts"] == card["ts"]
    assert stack.sandbox.problems == []
