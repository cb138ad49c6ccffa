"""A script of the demo: an agent with LangChain's own middleware asks on cards."""

from __future__ import annotations

from keyturn.bot.ids import Action, Input
from keyturn.cli.demo_context import DemoContext, expect
from keyturn.cli.demo_stack import STOCK_REQUEST
from keyturn.gateway.protocol.records import ItemState

EDITED, REASON = "Ordered twice", "That is what the customer wrote."
NO = "It is on its way already."


async def stock(context: DemoContext) -> None:
    """A stock agent's call is edited and handed over once; the next one is rejected."""
    ts, approval = await context.ask(STOCK_REQUEST)
    values = {"cause": EDITED, Input.REASON: REASON}
    handed = ItemState.HANDED_OVER
    _, words = await context.decide(ts, approval, Action.EDIT, handed, values)
    await context.shows(ts, "which runs it by itself")
    context.say("card.handed_over", approval=approval.id)
    # LangChain tells the model about the change by itself.
    expect(EDITED in words, "The agent does not know the change.")

    ts, approval = await context.ask(STOCK_REQUEST)
    values = {Input.REASON: NO}
    rejected = ItemState.REJECTED
    _, words = await context.decide(ts, approval, Action.REJECT, rejected, values)
    expect(NO in words, "The agent does not know the reason.")

    ran = [effect["args"] for effect in context.effects()]
    wanted = [{"order_id": "78304", "cause": EDITED}]
    expect(ran == wanted, f"{wanted} was expected; {ran} ran.")
