"""Script of the demo for a standing approval: one form, three more refunds, Revoke."""

from __future__ import annotations

from twokey.bot.ids import Action, View
from twokey.cli.demo_stack import CHANNEL, REQUESTER, REVIEWER
from twokey.cli.demo_stage import STEP_TIMEOUT_S, Stage, expect
from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.standing import left_of, used_micro
from twokey.gateway.protocol.states import ItemState
from twokey.sandbox.json_types import JsonObject

FIRST, SIMILAR, LAST = 79001, (79002, 79003, 79004), 79005
USES = 5


async def similar(stage: Stage) -> None:
    """A reviewer allows five refunds like one; three run, then she revokes it."""
    ts, approval = await stage.ask(f"@twokey refund order {FIRST}")
    await stage.click(ts, Action.ALLOW_SIMILAR, approval, 0)
    await stage.ana.wait_for_view(
        lambda view: view["callback_id"] == View.ALLOW_SIMILAR, STEP_TIMEOUT_S
    )
    refused = await stage.submit({"uses": "21"}, approval, 0)
    expect(refused, "More calls than the policy allows were accepted.")
    bounds = {"uses": f"{USES}", "each": "30"}
    expect(not await stage.submit(bounds, approval, 0), "The bounds were refused.")
    await stage.reached(approval, {0: ItemState.EXECUTED})
    live = await _live_card(stage, f"*{USES} of {USES} left.*")
    standing = await _standing(stage)
    stage.say("standing.given", approval=standing.id, by=REVIEWER, uses=USES)

    for order in SIMILAR:
        await stage.dan.say(CHANNEL, f"@twokey refund order {order}")
        stage.say("agent.asked", by=REQUESTER, order=order)

    async def have_run() -> bool:
        return len(stage.effects()) == 1 + len(SIMILAR)

    await stage.until(have_run, "every similar refund")
    left = USES - len(SIMILAR)
    await _live_card(stage, f"*{left} of {USES} left.*")
    standing = await _standing(stage)
    expect(left_of(standing)[0] == left, "The uses were counted wrong.")

    await stage.ana.click(CHANNEL, str(live["ts"]), Action.REVOKE)
    await _live_card(stage, "*Revoked* by")
    stage.say("standing.revoked", approval=standing.id, by=REVIEWER)
    ts, last = await stage.ask(f"@twokey refund order {LAST}")
    expect(last.items[0].is_pending, "A refund ran after the revocation.")
    await stage.click(ts, Action.APPROVE, last, 0)
    await stage.reached(last, {0: ItemState.EXECUTED})
    stage.say(
        "similar.counted",
        by=REVIEWER,
        covered=len(standing.uses),
        total=used_micro(standing) / 1_000_000,
        left=left,
        cards=_cards(stage),
        refunds=len(stage.effects()),
    )


def _cards(stage: Stage) -> int:
    """Count the cards that were posted: with metadata, and in no thread."""
    return sum(
        call.method == "chat.postMessage" and bool(call.arguments.get("metadata"))
        for call in stage.demo.sandbox.calls
    )


async def _live_card(stage: Stage, words: str) -> JsonObject:
    return await stage.ana.message_with(
        CHANNEL, lambda message: words in str(message["blocks"]), STEP_TIMEOUT_S
    )


async def _standing(stage: Stage) -> Approval:
    found = [one async for one in stage.demo.stack.twokey.reviews.standing.in_force()]
    expect(len(found) == 1, f"{len(found)} standing approvals are in force.")
    return found[0].approval
