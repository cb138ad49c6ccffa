"""A person who may not decide gets a private reply, and nothing changes."""

from __future__ import annotations

import asyncio

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.decisions import AccountKind, Click, Edit, Reviewer
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.sandbox.client import UserActionFailed
from keyturn.sandbox.elements import find
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import CHANNEL, DAN, REFUND, TEAM, Stack, has_button, says
from tests.bot.tampering import button_value, click_with, copied, expire


async def is_untouched(stack: Stack, verdict: Verdict) -> bool:
    approval = await stack.approval(verdict)
    return approval.rev == 1 and approval.items[0].state is ItemState.PENDING


async def test_who_comes_second_reads_who_was_first(live: Stack) -> None:
    verdict = await live.refund()
    ts = str((await live.card(verdict))["ts"])

    answers = await asyncio.gather(
        *(
            live.actor(user).click(CHANNEL, ts, Action.APPROVE)
            for user in ("U0ANA", "U0BEN")
        ),
        return_exceptions=True,
    )

    item = await live.item(verdict)
    assert item.decision is not None
    winner = item.decision.by.user
    loser = "U0BEN" if winner == "U0ANA" else "U0ANA"
    refusals = [each for each in answers if isinstance(each, UserActionFailed)]
    if not refusals:
        told = await live.told(loser, "Already approved")
        assert f"<@{winner}>" in told
    assert len(item.votes) == 1


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
    approval = await stack.approval(verdict)
    click = Click(
        approval=approval.id,
        index=0,
        version=1,
        action_hash=approval.items[0].action_hash,
    )
    ben = Reviewer(
        team=TEAM,
        user="U0BEN",
        usergroups=frozenset({"S0SUPPORT"}),
        account=AccountKind.MEMBER,
    )
    decision = Edit(args={"amount": 449.5, "order_id": "78291"})
    outcome = await stack.reviews.decide(click, decision, ben)
    assert outcome.kind == "decided", outcome


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


OUTSIDE = RunRef(agent="support", thread="t1")
INSIDE = TurnRef(
    agent="cashier", thread="t1", ns="tools:1", message_id="m", nested_in=OUTSIDE
)


async def asked_inside(stack: Stack) -> Verdict:
    """Request a refund by an agent inside the support agent's tool."""
    facts = ThreadFacts(requester=DAN)
    await stack.store.threads.change(
        stack.keys, "support", "t1", lambda _: facts, why="aside"
    )
    call = ProposedCall(tool="process_refund", args=REFUND, tool_call_id="c1")
    (verdict,) = await stack.agents.submit(Turn(ref=INSIDE, calls=(call,)))
    return verdict


async def test_the_card_is_closed_and_a_late_click_reads_why(live: Stack) -> None:
    verdict = await asked_inside(live)
    card = await live.card(verdict, lambda m: has_button(m, Action.APPROVE))
    value = button_value(live, await live.approval(verdict), Action.APPROVE)

    await live.submit(("look_up_order", {}))
    closed = await live.card(verdict, says("*Cancelled*"))
    await click_with(live, card, Action.APPROVE, value)

    await live.told("U0ANA", "Already cancelled")
    assert closed["ts"] == card["ts"]
    assert not has_button(closed, Action.APPROVE)
    assert (await live.item(verdict)).state is ItemState.SUPERSEDED
