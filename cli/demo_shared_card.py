"""Script of the demo for a shared card: 20 threads, approved by one click."""

from __future__ import annotations

import json
from collections.abc import Callable

from twokey.bot.ids import Action
from twokey.cli.demo_context import DemoContext, expect
from twokey.cli.demo_stack import CHANNEL, QUEUED, REQUESTER, REVIEWER
from twokey.sandbox.elements import find
from twokey.sandbox.json_types import JsonObject, as_objects

COUNT = len(QUEUED)
WAIT_S = 120.0
"""How long twenty runs of the agent may take on a busy machine."""

_MOST_UPDATES = 3


async def shared(context: DemoContext) -> None:
    """20 customers want a refund, each in a thread of its own: one card, one click."""
    for request in QUEUED:
        await context.dan.say(CHANNEL, request)
    context.say("agent.asked", by=REQUESTER, threads=COUNT)
    card = await _card(context, f"Approve all {COUNT} waiting")
    context.say("card.posted", calls=COUNT)

    await context.ana.click(CHANNEL, str(card["ts"]), Action.APPROVE_ALL)
    await context.ana.wait_for(_shows(f"{COUNT} approved"), WAIT_S)
    context.say("reviewer.decided", by=REVIEWER, approved=COUNT)

    async def is_done() -> bool:
        return len(context.effects()) == COUNT

    await context.until(is_done, "every refund", WAIT_S)
    orders = {str(effect["args"]) for effect in context.effects()}
    expect(len(orders) == COUNT, "A refund ran twice.")
    await context.ana.wait_for(_shows(f"{COUNT} done"), WAIT_S)
    updates = sum(
        one.method == "chat.update" and one.arguments["ts"] == card["ts"]
        for one in context.demo.sandbox.calls
    )
    expect(updates <= _MOST_UPDATES, f"The card was updated {updates} times.")
    context.say(
        "card.counted",
        by=REVIEWER,
        interactions=1,
        clicks=2,
        approved=COUNT,
        cards=1,
        card_updates=updates,
    )


def _shows(words: str) -> Callable[[JsonObject], bool]:
    return lambda state: words in json.dumps(state["channels"])


async def _card(context: DemoContext, words: str) -> JsonObject:
    def is_it(message: JsonObject) -> bool:
        blocks = as_objects(message["blocks"])
        return bool(find(blocks, Action.APPROVE_ALL)) and words in json.dumps(blocks)

    return await context.ana.message_with(CHANNEL, is_it, WAIT_S)
