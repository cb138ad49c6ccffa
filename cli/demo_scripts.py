"""Scripts of the demo: act as people over the sandbox's HTTP API, and verify."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from twokey.bot.ids import Action, Input
from twokey.cli.demo_context import DemoContext, expect
from twokey.cli.demo_stack import CHANNEL, SENIOR
from twokey.gateway.approvals.events import EventName
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.tiers import Tier
from twokey.sandbox.json_types import as_object

REASON = "Only half of it was damaged."
ANSWER = "Please ask for a photo of the damage first."
QUESTION = "Did the customer send a photo of the damage?"
REPLY = "Yes: the screen is cracked in two places."


async def approve(context: DemoContext) -> None:
    """Ana approves the refund as it is."""
    ts, approval = await context.ask()
    await context.click(ts, Action.APPROVE, approval, 0)
    await context.reached(approval, {0: ItemState.EXECUTED})
    words = await context.final_message()
    expect(_amounts(context) == [899], "The refund did not run once with 899.")
    expect("899" in words, "The agent does not say what it refunded.")


async def edit(context: DemoContext) -> None:
    """Ana halves the refund; the agent says so and why."""
    ts, approval = await context.ask()
    await context.click(ts, Action.EDIT, approval, 0)
    # First what must be refused: the form has to stay open for a second try.
    errors = await context.submit({"amount": "0"}, approval, 0)
    expect(errors, "An amount of 0 was accepted.")
    values = {"amount": "449.50", Input.REASON: REASON}
    expect(not await context.submit(values, approval, 0), "449.50 was refused.")
    after = await context.reached(approval, {0: ItemState.EXECUTED})
    words = await context.final_message()
    expect(after.items[0].edit, "There is no edit record.")
    expect(_amounts(context) == [449.5], "The refund did not run once with 449.50.")
    expect("449.50" in words and REASON in words, "The agent does not know the edit.")


async def reject(context: DemoContext) -> None:
    """Ana rejects the refund with a reason."""
    ts, approval = await context.ask()
    await context.click(ts, Action.REJECT, approval, 0)
    await context.submit({Input.REASON: REASON}, approval, 0)
    await context.reached(approval, {0: ItemState.REJECTED})
    words = await context.final_message()
    expect(not context.effects(), "A rejected call ran.")
    expect("said no" in words and REASON in words, "The agent does not say why.")


async def respond(context: DemoContext) -> None:
    """Ana answers instead of letting the tool run."""
    ts, approval = await context.ask()
    await context.click(ts, Action.RESPOND, approval, 0)
    await context.submit({Input.MESSAGE: ANSWER}, approval, 0)
    await context.reached(approval, {0: ItemState.ANSWERED})
    words = await context.final_message()
    expect(not context.effects(), "An answered call ran.")
    expect(ANSWER in words, "The agent does not pass the answer on.")


async def inquiry(context: DemoContext) -> None:
    """Ana asks Dan before she decides; the card stays open and shows his reply."""
    ts, approval = await context.ask()
    await context.click(ts, Action.ASK_REQUESTER, approval, 0)
    await context.submit({Input.QUESTION: QUESTION}, approval, 0)
    await context.card_shows(ts, EventName.APPROVAL_ASKED, approval, QUESTION)
    await context.dan.say(CHANNEL, f"@twokey {REPLY}", ts)
    await context.card_shows(ts, EventName.APPROVAL_REPLIED, approval, REPLY)
    now = await context.approval(approval.id)
    expect(now.items == approval.items, "A question changed the call.")
    expect(now.expires_at_ms == approval.expires_at_ms, "A question changed its end.")
    await context.click(ts, Action.APPROVE, approval, 0)
    await context.reached(approval, {0: ItemState.EXECUTED})
    words = await context.final_message()
    expect(_amounts(context) == [899], "The refund did not run once with 899.")
    # What people say to each other is theirs; only a decision goes to the model.
    expect(REPLY not in words, "The agent was told what people said.")


async def expire(context: DemoContext) -> None:
    """Nobody decides in time."""
    _, approval = await context.ask()
    await context.reached(approval, {0: ItemState.EXPIRED})
    words = await context.final_message()
    expect(not context.effects(), "An expired call ran.")
    expect("in time" in words, "The agent does not say that nobody decided.")


async def multi(context: DemoContext) -> None:
    """Three calls in one turn: one is approved, one edited, one rejected."""
    ts, approval = await context.ask(
        "@twokey refund order 78291 and do everything else"
    )
    expect(len(approval.items) == 3, "The card does not hold three calls.")  # noqa: PLR2004 - refund, address, e-mail
    # By name, so that the script does not depend on the order in which a model calls.
    place = {item.tool: item.index for item in approval.items}
    refund, address = place["process_refund"], place["change_address"]
    mail = place["send_email"]
    await context.click(ts, Action.REJECT, approval, address)
    await context.submit({Input.REASON: "It has left already."}, approval, address)
    approval = await context.reached(approval, {address: ItemState.REJECTED})
    await context.click(ts, Action.EDIT, approval, refund)
    values = {"amount": "449.50", Input.REASON: REASON}
    await context.submit(values, approval, refund)
    approval = await context.reached(approval, {refund: ItemState.EXECUTED})
    await context.click(ts, Action.APPROVE, approval, mail)
    await context.reached(approval, {mail: ItemState.EXECUTED})
    words = await context.final_message()
    tools = sorted(str(effect["tool"]) for effect in context.effects())
    expect(tools == ["process_refund", "send_email"], f"These ran: {tools}.")
    expect("449.50" in words and "said no" in words, "The agent missed something.")


async def escalate(context: DemoContext) -> None:
    """A refund over 1,000 takes two people; the second one is called, a senior."""
    ts, approval = await context.ask("@twokey refund order 78420")
    expect(approval.items[0].tier is Tier.ESCALATE, "1,299 does not take two people.")
    await context.called(ts, approval, EventName.APPROVAL_REMINDED)
    await context.click(ts, Action.APPROVE, approval, 0)
    await context.voted(ts, approval, 0, have=1, need=2)
    expect(not context.effects(), "One person was enough.")
    await context.called(ts, approval, EventName.APPROVAL_ESCALATED)
    await context.click(ts, Action.APPROVE, approval, 0, by=SENIOR)
    await context.reached(approval, {0: ItemState.EXECUTED})
    words = await context.final_message()
    expect(_amounts(context) == [1299], "The refund did not run once with 1,299.")
    expect("1299" in words, "The agent does not say what it refunded.")


async def outage(context: DemoContext) -> None:
    """The model is away after the approval; the run waits, and ends when it is back."""
    ts, approval = await context.ask()
    # Not before the card is there: without its model the agent proposes nothing.
    context.outage.touch()
    context.say("model.away")
    await context.click(ts, Action.APPROVE, approval, 0)
    await context.reached(approval, {0: ItemState.EXECUTED})
    waiting = await context.run_shown(EventName.RUN_WAITING)
    context.outage.unlink()
    context.say("model.back")
    ended = await context.run_shown(EventName.RUN_RESUMED)
    words = await context.final_message()
    expect(waiting == ended, "The outage was reported in more than one message.")
    expect(_amounts(context) == [899], "The refund did not run once with 899.")
    expect("899" in words, "The agent does not say what it refunded.")


SINGLE_CARDS: dict[str, Callable[[DemoContext], Awaitable[None]]] = {
    script.__name__: script
    for script in (
        approve,
        edit,
        reject,
        respond,
        inquiry,
        expire,
        multi,
        escalate,
        outage,
    )
}


def _amounts(context: DemoContext) -> list[object]:
    return [
        as_object(effect["args"])["amount"]
        for effect in context.effects()
        if effect["tool"] == "process_refund"
    ]
