"""A person's choices survive a change of the batch under their form."""

from __future__ import annotations

from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.sandbox.client import Person as Actor
from tests.bot.bot_stack import CHANNEL, POLICY, Stack, says
from tests.bot.listeners.test_large_batches import (
    choose,
    decisions,
    edit_call,
    opened,
    without,
)

TWO = POLICY.replace(
    "  process_refund:\n", "  process_refund:\n    needs: two\n"
).replace("requirements:\n", "requirements:\n  two: {of: [support], approvals: 2}\n")


async def approve_alone(stack: Stack, ts: str, number: int) -> None:
    """Approve one call of the batch as Ben, from its full view."""
    ben = stack.actor("U0BEN")
    await ben.click(CHANNEL, ts, Action.VIEW_ALL, chosen=f"#{number}")
    await ben.wait_for_view()
    await ben.submit({})


async def last_page(person: Actor, words: str) -> str:
    page = await person.wait_for_view(
        lambda view: (
            view["callback_id"] == View.CHOOSE_CONFIRM and words in str(view["blocks"])
        )
    )
    return str(page["blocks"])


async def test_the_last_page_names_the_call_decided_meanwhile(live: Stack) -> None:
    first, _, ts = await opened(live)
    ana = await choose(live, "U0ANA", ts)
    await edit_call(ana, 55, "5", "half of it")
    await ana.wait_for_view(lambda view: "55, edited" in str(view["blocks"]))
    await ana.act_in_view(Action.CHOOSE_EDIT, chosen="Call 55")
    await ana.wait_for_view(says("replaces the earlier one"))
    await ana.close_view()
    assert await ana.submit({**without(56), Input.OTHERS: "reject"}) == {}
    page = await last_page(ana, "*54 to approve* · *1 to approve as edited*")
    assert "Why do you reject call 56?" in page
    assert "untick it" not in page
    await approve_alone(live, ts, 8)

    assert await ana.submit({Input.REASON: "already refunded"}) == {}

    page = await last_page(ana, "The card has changed")
    assert "because they changed: call 8." in page
    assert "*53 to approve* · *1 to approve as edited* · *1 to reject*" in page
    approval = await live.approval(first)
    assert [item.index for item in approval.items if not item.is_pending] == [7]

    assert await ana.submit({Input.REASON: "already refunded"}) == {}

    approval = await live.approval(first)
    assert not any(item.is_pending for item in approval.items)
    assert approval.items[54].args["amount"] == 5
    assert approval.items[55].state is ItemState.REJECTED
    (entry,) = await decisions(live)
    assert entry.data["approved"] == "0-6,8-53"
    await live.card(first, says("55 approved, 1 rejected"))


async def test_a_call_edited_meanwhile_is_left_out(stack: Stack) -> None:
    stack.policy = load_policy(TWO, "policy.yml")
    async with stack.running():
        first, _, ts = await opened(stack)
        ana = await choose(stack, "U0ANA", ts)
        ben = await choose(stack, "U0BEN", ts)
        await edit_call(ben, 8, "5", "half of it")
        await ben.wait_for_view(lambda view: "Call 8, edited" in str(view["blocks"]))
        assert await ben.submit(without(*(n for n in range(1, 57) if n != 8))) == {}
        await last_page(ben, "*1 to approve as edited*")
        assert await ben.submit({}) == {}

        assert await ana.submit({}) == {}

        page = await last_page(ana, "because they changed: call 8.")
        assert "*55 to approve* · *1 to leave waiting*" in page
        assert await ana.submit({}) == {}
        approval = await stack.approval(first)
        voted = [item.index for item in approval.items if item.votes]
        assert len(voted) == 56
        assert [vote.by.user for vote in approval.items[7].votes] == ["U0BEN"]
