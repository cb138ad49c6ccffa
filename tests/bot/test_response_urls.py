"""A deleted card comes anew."""

from __future__ import annotations

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.messages import remove
from tests.approvals.builders import click_on
from tests.bot.bot_stack import CHANNEL, TEAM, Stack, has_button, says
from tests.conftest import eventually
from tests.service.harness import BEN


def is_settled(card: JsonObject) -> bool:
    return not has_button(card, Action.APPROVE)


async def test_a_deleted_card_with_replies_is_posted_anew(stack: Stack) -> None:
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {}))
        card = await stack.card(verdict)
        ts = str(card["ts"])
        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
        await stack.card(verdict, says("1 of 2"))
        await stack.drawn(verdict)
        await eventually(lambda: has_notes(stack, card))
        slack = stack.sandbox.control.slack
        assert remove(slack, slack.workspace.messages[CHANNEL][ts]), "has replies"
        await edited_by_ben(stack, verdict)

        anew = await stack.card(verdict, lambda m: m["ts"] != ts)

        await stack.actor("U0CHLOE").click(CHANNEL, str(anew["ts"]), Action.APPROVE)
        await stack.card(verdict, is_settled)


async def has_notes(stack: Stack, card: JsonObject) -> bool:
    return bool(await stack.notes(card))


async def edited_by_ben(stack: Stack, verdict: Verdict) -> None:
    """Change the arguments as Ben without a click on the card."""
    approval = await stack.approval(verdict)
    click = click_on(approval)
    ben = BEN.with_(team=TEAM, usergroups=frozenset({"S0SUPPORT"}))
    outcome = await stack.reviews.decide(click, Edit(args={"amount": 1}), ben)
    assert outcome.kind == "voted"
