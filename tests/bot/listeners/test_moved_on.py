"""A card of an agent inside another one's tool says that the conversation moved on."""

from __future__ import annotations

from tests.bot.bot_house import CHANNEL, DAN, REFUND, House, has_button, says
from tests.bot.tampering import button_value, click_with
from twokey.bot.ids import Action
from twokey.gateway.protocol.records import Home
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from twokey.gateway.store.threads import ThreadFacts

OUTSIDE = Home(agent="support", thread="t1")
INSIDE = TurnRef(
    agent="cashier", thread="t1", ns="tools:1", message_id="m", outer=OUTSIDE
)


async def asked_inside(house: House) -> Verdict:
    """Let an agent inside the support agent's tool ask for a refund."""
    facts = ThreadFacts(requester=DAN)
    await house.store.threads.remember(house.keys, "default", "support", "t1", facts)
    call = ProposedCall(tool="process_refund", args=REFUND, tool_call_id="c1")
    (verdict,) = await house.agents.submit(Turn(ref=INSIDE, calls=(call,)))
    return verdict


async def test_the_card_is_closed_and_a_late_click_reads_why(house: House) -> None:
    async with house.running():
        verdict = await asked_inside(house)
        card = await house.card(verdict, lambda m: has_button(m, Action.APPROVE))
        value = button_value(house, await house.approval(verdict), Action.APPROVE)

        await house.submit(("look_up_order", {}))
        closed = await house.card(verdict, says("Superseded, nothing ran"))
        await click_with(house, card, Action.APPROVE, value)

        await house.told("U0ANA", "The conversation moved on and nothing ran")
        assert closed["ts"] == card["ts"]
        assert not has_button(closed, Action.APPROVE)
        item = (await house.approval(verdict)).items[0]
        assert item.state is ItemState.SUPERSEDED
    assert house.sandbox.problems == []


async def test_whoever_asked_the_agent_outside_reads_that_they_may_not(
    house: House,
) -> None:
    async with house.running():
        verdict = await asked_inside(house)
        card = await house.card(verdict)

        await house.actor("U0DAN").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        await house.told("U0DAN", "You asked for this one yourself")
        assert (await house.approval(verdict)).items[0].is_pending
