"""A demo script: an agent with LangChain's middleware, reviewed on cards."""

from __future__ import annotations

from keyturn.bot.ids import Action, Input
from keyturn.cli.demo_context import DemoContext, expect
from keyturn.cli.demo_stack import STOCK_REQUEST
from keyturn.gateway.protocol.records import ItemState

EDITED, REASON = "Ordered twice", "That is what the customer wrote."
NO = "It is on its way already."


async def stock(context: DemoContext) -> None:
    """A reviewer edits one call of a stock agent, and rejects the next one."""
    ts, approval = await context.ask(STOCK_REQUEST)
    values = {"cause": EDITED, Input.REASON: REASON}
    handed = ItemState.HANDED_OVER
    _, words = await context.decide(ts, approval, Action.EDIT, handed, values)
    await context.shows(ts, "which runs it by itself")
    context.say("card.handed_over", approval=approval.id)
    # LangChain tells the model about the change by itself.
    expect(EDITED in words, "The agent's answer lacks the edited cause.")

    ts, approval = await context.ask(STOCK_REQUEST)
    values = {Input.REASON: NO}
    rejected = ItemState.REJECTED
    _, words = await context.decide(ts, approval, Action.REJECT, rejected, values)
    expect(NO in words, "The agent's answer lacks the reviewer's reason.")

    ran = [effect["args"] for effect in context.effects()]
    wanted = [{"order_id": "78304", "cause": EDITED}]
    expect(ran == wanted, f"{wanted} was expected; {ran} ran.")
