"""A person who may not decide gets a private reply, and nothing changes."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.elements import find
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import CHANNEL, REFUND, Stack, has_button, says
from tests.bot.tampering import button_value, click_with, copied, expire


async def is_untouched(stack: Stack, verdict: Verdict) -> bool:
    approval = await stack.approval(verdict)
    return approval.rev == 1 and approval.items[0].state is ItemState.PENDING


async def test_a_late_click_is_told_that_nothing_ran(live: Stack) -> None:
    verdict = await live.refund()
    card = await live.card(verdict)
    approval = await live.approval(verdict)
    await expire(live, approval)

    await live.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

    await live.told("U0ANA", "nothing was recorded")
    assert (await live.item(verdict)).state is ItemState.EXPIRED
    await live.card(verdict, lambda m: not has_button(m, Action.APPROVE))


async def test_another_approvals_value_is_refused_on_this_card(live: Stack) -> None:
    mine, other = await live.refund(), await live.refund(thread="t2")
    card = await live.card(mine)
    await live.card(other)
    value = button_value(live, await live.approval(other), Action.APPROVE)

    await click_with(live, card, Action.APPROVE, value)

    await live.told("U0ANA", "not the newest copy")
    await live.bot_is_quiet()
    assert has_button(await live.card(mine), Action.APPROVE)
    assert await is_untouched(live, mine)
    assert await is_untouched(live, other)


@pytest.mark.parametrize("is_seal", [True, False])
async def test_an_unsealed_value_is_refused(live: Stack, *, is_seal: bool) -> None:
    """`tests/bot/test_ids.py` has each way in which a seal is wrong."""
    verdict = await live.refund()
    card = await live.card(verdict)
    other = button_value(live, await live.approval(verdict), Action.EDIT)

    await click_with(live, card, Action.APPROVE, other if is_seal else "ap_0:1")

    await live.told("U0ANA", "does not belong to this card")
    assert await is_untouched(live, verdict)


async def test_a_copied_card_in_another_channel_is_refused(live: Stack) -> None:
    verdict = await live.refund()
    card = await live.card(verdict)
    ts = copied(live, card, "C0GENERAL")

    await live.actor("U0ANA").click("C0GENERAL", ts, Action.APPROVE)

    await live.told("U0ANA", "not the newest copy", "C0GENERAL")
    assert await is_untouched(live, verdict)


async def edit_by_somebody_else(stack: Stack, verdict: Verdict) -> None:
    decision = Edit(args={**REFUND, "amount": 449.5})
    assert await stack.decide(verdict, decision, "U0BEN") == "decided"


def block_of(card: JsonObject, action: Action) -> str:
    """Return the id of a button's block."""
    placed = find(as_objects(card["blocks"]), action)
    assert placed is not None
    return placed.block_id


async def test_a_vote_before_the_confirmation_voids_nothing(live: Stack) -> None:
    (verdict,) = await live.submit(("wire_money", {"amount": 1}))
    card = await live.card(verdict, lambda m: has_button(m, Action.APPROVE))
    ts, seen = str(card["ts"]), block_of(card, Action.APPROVE)

    await live.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
    redrawn = await live.card(verdict, says("1 of 2 approvals"))
    assert block_of(redrawn, Action.APPROVE) != seen
    await live.actor("U0CHLOE").click(CHANNEL, ts, Action.APPROVE, seen)

    await live.card(verdict, says("Waiting to run"))
    item = await live.item(verdict)
    assert [vote.by.user for vote in item.votes] == ["U0ANA", "U0CHLOE"]


async def test_an_edit_before_the_confirmation_voids_it(live: Stack) -> None:
    verdict = await live.refund()
    card = await live.card(verdict, lambda m: has_button(m, Action.APPROVE))
    await edit_by_somebody_else(live, verdict)
    await live.card(verdict, says("449.5"))

    await live.actor("U0ANA").click(
        CHANNEL, str(card["ts"]), Action.APPROVE, block_of(card, Action.APPROVE)
    )

    await live.told("U0ANA", "edited and approved by")
    item = await live.item(verdict)
    assert item.state is ItemState.AUTHORIZED
    assert item.args["amount"] == 449.5


async def test_a_click_does_not_repeat_a_call_that_ran_meanwhile(live: Stack) -> None:
    refunds = "  process_refund:\n"
    live.put_policy((refunds, f"{refunds}    same_by: args.order_id\n"))
    mine, other = await live.refund("t1"), await live.refund("t2")
    await live.card(mine)
    await live.click(other, Action.APPROVE)
    await live.execute(other)

    await live.click(mine, Action.APPROVE, "U0BEN")

    told = await live.told("U0BEN", "Not approved: the same call ran")
    assert "To run both, approve again." in told
    await live.card(mine, says("*The same call* ran"))
    assert (await live.item(mine)).state is ItemState.PENDING
    await live.click(mine, Action.APPROVE, "U0BEN")
    assert (await live.item(mine)).state is ItemState.AUTHORIZED
