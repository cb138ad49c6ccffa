"""Scripts of the demo: act as people over the sandbox's HTTP API, and verify."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from twokey.bot.ids import Action, Input
from twokey.cli.demo_stack import CHANNEL, SENIOR
from twokey.cli.demo_stage import Stage, expect
from twokey.gateway.approvals.events import EventName
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.tiers import Tier
from twokey.sandbox.json_types import as_object

REASON = "Only half of it was damaged."
ANSWER = "Please ask for a photo of the damage first."
QUESTION = "Did the customer send a photo of the damage?"
REPLY = "Yes: the screen is cracked in two places."


async def approve(stage: Stage) -> None:
    """Ana approves the refund as it is."""
    ts, approval = await stage.ask()
    await stage.click(ts, Action.APPROVE, approval, 0)
    await stage.reached(approval, {0: ItemState.EXECUTED})
    words = await stage.last_words()
    expect(_amounts(stage) == [899], "The refund did not run once with 899.")
    expect("899" in words, "The agent does not say what it refunded.")


async def edit(stage: Stage) -> None:
    """Ana halves the refund; the agent says so and why."""
    ts, approval = await stage.ask()
    await stage.click(ts, Action.EDIT, approval, 0)
    # First what must be refused: the form has to stay open for a second try.
    errors = await stage.submit({"amount": "0"}, approval, 0)
    expect(errors, "An amount of 0 was accepted.")
    values = {"amount": "449.50", Input.REASON: REASON}
    expect(not await stage.submit(values, approval, 0), "449.50 was refused.")
    after = await stage.reached(approval, {0: ItemState.EXECUTED})
    words = await stage.last_words()
    expect(after.items[0].edit, "There is no edit record.")
    expect(_amounts(stage) == [449.5], "The refund did not run once with 449.50.")
    expect("449.50" in words and REASON in words, "The agent does not know the edit.")


async def reject(stage: Stage) -> None:
    """Ana rejects the refund with a reason."""
    ts, approval = await stage.ask()
    await stage.click(ts, Action.REJECT, approval, 0)
    await stage.submit({Input.REASON: REASON}, approval, 0)
    await stage.reached(approval, {0: ItemState.REJECTED})
    words = await stage.last_words()
    expect(not stage.effects(), "A rejected call ran.")
    expect("said no" in words and REASON in words, "The agent does not say why.")


async def respond(stage: Stage) -> None:
    """Ana answers instead of letting the tool run."""
    ts, approval = await stage.ask()
    await stage.click(ts, Action.RESPOND, approval, 0)
    await stage.submit({Input.MESSAGE: ANSWER}, approval, 0)
    await stage.reached(approval, {0: ItemState.ANSWERED})
    words = await stage.last_words()
    expect(not stage.effects(), "An answered call ran.")
    expect(ANSWER in words, "The agent does not pass the answer on.")


async def inquiry(stage: Stage) -> None:
    """Ana asks Dan before she decides; the card stays open and shows his reply."""
    ts, approval = await stage.ask()
    await stage.click(ts, Action.ASK_REQUESTER, approval, 0)
    await stage.submit({Input.QUESTION: QUESTION}, approval, 0)
    await stage.told(ts, EventName.APPROVAL_ASKED, approval, QUESTION)
    await stage.dan.say(CHANNEL, f"@twokey {REPLY}", ts)
    await stage.told(ts, EventName.APPROVAL_REPLIED, approval, REPLY)
    now = await stage.approval(approval.id)
    expect(now.items == approval.items, "A question changed the call.")
    expect(now.expires_at_ms == approval.expires_at_ms, "A question changed its end.")
    await stage.click(ts, Action.APPROVE, approval, 0)
    await stage.reached(approval, {0: ItemState.EXECUTED})
    words = await stage.last_words()
    expect(_amounts(stage) == [899], "The refund did not run once with 899.")
    expect(REPLY not in words, "The agent was told what people said.")


async def expire(stage: Stage) -> None:
    """Nobody decides in time."""
    _, approval = await stage.ask()
    await stage.reached(approval, {0: ItemState.EXPIRED})
    words = await stage.last_words()
    expect(not stage.effects(), "An expired call ran.")
    expect("in time" in words, "The agent does not say that nobody decided.")


async def multi(stage: Stage) -> None:
    """Three calls in one turn: one is approved, one edited, one rejected."""
    ts, approval = await stage.ask("@twokey refund order 78291 and do everything else")
    expect(len(approval.items) == 3, "The card does not hold three calls.")  # noqa: PLR2004 - refund, address, e-mail
    place = {item.tool: item.index for item in approval.items}
    refund, address = place["process_refund"], place["change_address"]
    mail = place["send_email"]
    await stage.click(ts, Action.REJECT, approval, address)
    await stage.submit({Input.REASON: "It has left already."}, approval, address)
    approval = await stage.reached(approval, {address: ItemState.REJECTED})
    await stage.click(ts, Action.EDIT, approval, refund)
    values = {"amount": "449.50", Input.REASON: REASON}
    await stage.submit(values, approval, refund)
    approval = await stage.reached(approval, {refund: ItemState.EXECUTED})
    await stage.click(ts, Action.APPROVE, approval, mail)
    await stage.reached(approval, {mail: ItemState.EXECUTED})
    words = await stage.last_words()
    tools = sorted(str(effect["tool"]) for effect in stage.effects())
    expect(tools == ["process_refund", "send_email"], f"These ran: {tools}.")
    expect("449.50" in words and "said no" in words, "The agent missed something.")


async def escalate(stage: Stage) -> None:
    """A refund over 1,000 takes two people; the second one is called, a senior."""
    ts, approval = await stage.ask("@twokey refund order 78420")
    expect(approval.items[0].tier is Tier.ESCALATE, "1,299 does not take two people.")
    await stage.called(ts, approval, EventName.APPROVAL_REMINDED)
    await stage.click(ts, Action.APPROVE, approval, 0)
    await stage.voted(ts, approval, 0, have=1, need=2)
    expect(not stage.effects(), "One person was enough.")
    await stage.called(ts, approval, EventName.APPROVAL_ESCALATED)
    await stage.click(ts, Action.APPROVE, approval, 0, by=SENIOR)
    await stage.reached(approval, {0: ItemState.EXECUTED})
    words = await stage.last_words()
    expect(_amounts(stage) == [1299], "The refund did not run once with 1,299.")
    expect("1299" in words, "The agent does not say what it refunded.")


async def outage(stage: Stage) -> None:
    """The model is away after the approval; the run waits, and ends when it is back."""
    ts, approval = await stage.ask()
    # Not before the card is there: without its model the agent proposes nothing.
    stage.outage.touch()
    stage.say("model.away")
    await stage.click(ts, Action.APPROVE, approval, 0)
    await stage.reached(approval, {0: ItemState.EXECUTED})
    waiting = await stage.run_shown(EventName.RUN_WAITING)
    stage.outage.unlink()
    stage.say("model.back")
    ended = await stage.run_shown(EventName.RUN_RESUMED)
    words = await stage.last_words()
    expect(waiting == ended, "The outage was reported in more than one message.")
    expect(_amounts(stage) == [899], "The refund did not run once with 899.")
    expect("899" in words, "The agent does not say what it refunded.")


SINGLE_CARDS: dict[str, Callable[[Stage], Awaitable[None]]] = {
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


def _amounts(stage: Stage) -> list[object]:
    return [
        as_object(effect["args"])["amount"]
        for effect in stage.effects()
        if effect["tool"] == "process_refund"
    ]
