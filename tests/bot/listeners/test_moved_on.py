"""A card of a nested agent shows that the conversation moved on."""

from __future__ import annotations

from keyturn.bot.ids import Action
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from keyturn.gateway.store.runs.threads import ThreadFacts
from tests.bot.bot_stack import DAN, REFUND, Stack, has_button, says
from tests.bot.tampering import button_value, click_with

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


async def test_the_card_is_closed_and_a_late_click_reads_why(stack: Stack) -> None:
    async with stack.running():
        verdict = await asked_inside(stack)
        card = await stack.card(verdict, lambda m: has_button(m, Action.APPROVE))
        value = button_value(stack, await stack.approval(verdict), Action.APPROVE)

        await stack.submit(("look_up_order", {}))
        closed = await stack.card(verdict, says("*Cancelled*"))
        await click_with(stack, card, Action.APPROVE, value)

        await stack.told("U0ANA", "Already cancelled")
        assert closed["ts"] == card["ts"]
        assert not has_button(closed, Action.APPROVE)
        item = (await stack.approval(verdict)).items[0]
        assert item.state is ItemState.SUPERSEDED
    assert stack.sandbox.problems == []
