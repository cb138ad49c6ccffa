"""A click counts for the version that the person saw, despite a redrawn card."""

from __future__ import annotations

from keyturn.bot.ids import Action
from keyturn.gateway.protocol.records import ItemState
from keyturn.sandbox.elements import find
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import CHANNEL, Stack, has_button, says
from tests.bot.listeners.test_refusals import edit_by_somebody_else


def block_of(card: JsonObject, action: Action) -> str:
    """Return the id of a button's block."""
    placed = find(as_objects(card["blocks"]), action)
    assert placed is not None
    return placed.block_id


async def test_a_vote_before_the_confirmation_voids_nothing(stack: Stack) -> None:
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {"amount": 1}))
        card = await stack.card(verdict, lambda m: has_button(m, Action.APPROVE))
        ts, seen = str(card["ts"]), block_of(card, Action.APPROVE)

        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
        redrawn = await stack.card(verdict, says("1 of 2 approvals"))
        assert block_of(redrawn, Action.APPROVE) != seen
        await stack.actor("U0CHLOE").click(CHANNEL, ts, Action.APPROVE, seen)

        await stack.card(verdict, says("Waiting to run"))
        item = (await stack.approval(verdict)).items[0]
        assert [vote.by.user for vote in item.votes] == ["U0ANA", "U0CHLOE"]


async def test_an_edit_before_the_confirmation_voids_it(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict, lambda m: has_button(m, Action.APPROVE))
        await edit_by_somebody_else(stack, verdict)
        await stack.card(verdict, says("449.5"))

        await stack.actor("U0ANA").click(
            CHANNEL, str(card["ts"]), Action.APPROVE, block_of(card, Action.APPROVE)
        )

        await stack.told("U0ANA", "edited and approved by")
        item = (await stack.approval(verdict)).items[0]
        assert item.state is ItemState.AUTHORIZED
        assert item.args["amount"] == 449.5
