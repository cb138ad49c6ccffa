"""Script of the demo for a standing approval: one form, three more refunds, Revoke."""

from __future__ import annotations

from twokey.bot.ids import Action, View
from twokey.cli.demo_context import STEP_TIMEOUT_S, DemoContext, expect
from twokey.cli.demo_stack import CHANNEL, REQUESTER, REVIEWER
from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.standing import left_of, used_micro
from twokey.gateway.protocol.states import ItemState
from twokey.sandbox.json_types import JsonObject

FIRST, SIMILAR, LAST = 79001, (79002, 79003, 79004), 79005
USES = 5


async def similar(context: DemoContext) -> None:
    """A reviewer allows five refunds like one; three run, then she revokes it."""
    ts, approval = await context.ask(f"@twokey refund order {FIRST}")
    await context.click(ts, Action.ALLOW_SIMILAR, approval, 0)
    await context.ana.wait_for_view(
        lambda view: view["callback_id"] == View.ALLOW_SIMILAR, STEP_TIMEOUT_S
    )
    # First what must be refused: the form stays open for a second try.
    refused = await context.submit({"uses": "21"}, approval, 0)
    expect(refused, "More calls than the policy allows were accepted.")
    bounds = {"uses": f"{USES}", "each": "30"}
    expect(not await context.submit(bounds, approval, 0), "The bounds were refused.")
    await context.reached(approval, {0: ItemState.EXECUTED})
    live = await _live_card(context, f"*{USES} of {USES} left.*")
    standing = await _standing(context)
    context.say("standing.given", approval=standing.id, by=REVIEWER, uses=USES)

    # Without waiting for the one before: uses that are counted at the same time must
    # not be lost.
    for order in SIMILAR:
        await context.dan.say(CHANNEL, f"@twokey refund order {order}")
        context.say("agent.asked", by=REQUESTER, order=order)

    async def have_run() -> bool:
        return len(context.effects()) == 1 + len(SIMILAR)

    await context.until(have_run, "every similar refund")
    left = USES - len(SIMILAR)
    await _live_card(context, f"*{left} of {USES} left.*")
    standing = await _standing(context)
    expect(left_of(standing)[0] == left, "The uses were counted wrong.")

    await context.ana.click(CHANNEL, str(live["ts"]), Action.REVOKE)
    await _live_card(context, "*Revoked* by")
    context.say("standing.revoked", approval=standing.id, by=REVIEWER)
    ts, last = await context.ask(f"@twokey refund order {LAST}")
    expect(last.items[0].is_pending, "A refund ran after the revocation.")
    await context.click(ts, Action.APPROVE, last, 0)
    await context.reached(last, {0: ItemState.EXECUTED})
    context.say(
        "similar.counted",
        by=REVIEWER,
        covered=len(standing.uses),
        total=used_micro(standing) / 1_000_000,
        left=left,
        cards=_cards(context),
        refunds=len(context.effects()),
    )


def _cards(context: DemoContext) -> int:
    """Count the cards that were posted: with metadata, and in no thread."""
    return sum(
        call.method == "chat.postMessage" and bool(call.arguments.get("metadata"))
        for call in context.demo.sandbox.calls
    )


async def _live_card(context: DemoContext, words: str) -> JsonObject:
    return await context.ana.message_with(
        CHANNEL, lambda message: words in str(message["blocks"]), STEP_TIMEOUT_S
    )


async def _standing(context: DemoContext) -> Approval:
    found = [one async for one in context.demo.stack.twokey.reviews.standing.in_force()]
    expect(len(found) == 1, f"{len(found)} standing approvals are in force.")
    return found[0].approval
