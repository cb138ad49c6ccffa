"""Script of the demo for a batch: 56 refunds of one turn are decided at once."""

from __future__ import annotations

from collections import Counter

from twokey.bot.ids import Action, Input, View
from twokey.cli.demo_context import STEP_TIMEOUT_S, DemoContext, expect
from twokey.cli.demo_scripts import REASON
from twokey.cli.demo_stack import CHANNEL, REVIEWER
from twokey.gateway.protocol.states import ItemState
from twokey.sandbox.json_types import JsonObject

COUNT, EDITED, REJECTED = 56, 54, 55
"""How many refunds there are, and the indexes of those that are not approved as is."""


async def batch(context: DemoContext) -> None:
    """56 refunds of one turn: 54 are approved, 1 is edited, 1 is rejected."""
    counted = Counter[str]()
    ts, approval = await context.ask("@twokey refund every recalled lamp")
    expect(len(approval.items) == COUNT, "The refunds are not on one card.")

    await context.ana.click(CHANNEL, ts, Action.CHOOSE)
    counted["clicks"] += 1
    await _view(context, View.CHOOSE)

    await context.ana.act_in_view(Action.CHOOSE_EDIT, chosen=f"Call {EDITED + 1}")
    await _view(context, View.CHOOSE_EDIT)
    values = {"amount": "9.95", Input.REASON: REASON}
    expect(not await context.submit(values, approval, EDITED), "9.95 was refused.")
    # The menu takes two clicks: it is opened, and a call is chosen.
    counted += Counter(clicks=3, interactions=1)

    await _view(context, View.CHOOSE)
    # Slack takes ten boxes in a group, so 56 calls are six groups.
    ticked = {
        f"calls.{start // 10}": [
            f"{index}"
            for index in range(start, min(start + 10, COUNT))
            if index != REJECTED
        ]
        for start in range(0, COUNT, 10)
    }
    chosen = {**ticked, Input.OTHERS: "reject"}
    expect(not await context.ana.submit(chosen), "The choice was refused.")
    # One box, one radio button, and the submission.
    counted += Counter(clicks=3, interactions=1)

    await _view(context, View.CHOOSE_CONFIRM)
    why: dict[str, object] = {Input.REASON: "It was refunded before."}
    expect(not await context.ana.submit(why), "The decision was refused.")
    counted += Counter(clicks=1, interactions=1)

    states = dict.fromkeys(range(COUNT), ItemState.EXECUTED)
    after = await context.reached(approval, states | {REJECTED: ItemState.REJECTED})
    words = await context.final_message()
    expect(len(context.effects()) == COUNT - 1, "Not every approved refund ran once.")
    expect("9.95" in words and "said no" in words, "The agent missed something.")
    rejected = sum(item.state is ItemState.REJECTED for item in after.items)
    updates = await _updates(context, ts)
    context.say(
        "batch.counted",
        approval=approval.id,
        by=REVIEWER,
        **counted,
        card_updates=updates,
        approved=sum(item.edit is None for item in after.items) - rejected,
        edited=sum(item.edit is not None for item in after.items),
        rejected=rejected,
    )
    # A card that is updated once for each of 56 calls would meet Slack's rate limit.
    expect(updates <= 3, f"The card was updated {updates} times.")  # noqa: PLR2004


async def _view(context: DemoContext, purpose: View) -> JsonObject:
    return await context.ana.wait_for_view(
        lambda view: view["callback_id"] == purpose, STEP_TIMEOUT_S
    )


async def _updates(context: DemoContext, ts: str) -> int:
    """Wait until the card shows that all calls ended; return how often it changed."""
    await context.ana.message_with(
        CHANNEL,
        lambda message: message["ts"] == ts and "55 done" in str(message["text"]),
        STEP_TIMEOUT_S,
    )
    return sum(
        call.method == "chat.update" and call.arguments["ts"] == ts
        for call in context.demo.sandbox.calls
    )
