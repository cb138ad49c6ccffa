"""Script of the demo for a queue: 20 calls of 20 threads are reviewed in one modal."""

from __future__ import annotations

import json
from collections import Counter

from twokey.bot.ids import Action, View
from twokey.cli.demo_context import DemoContext, expect
from twokey.cli.demo_stack import CHANNEL, QUEUED, REQUESTER, REVIEWER
from twokey.sandbox.json_types import JsonObject

COUNT = len(QUEUED)
WAIT_S = 120.0
"""How long twenty runs of the agent may take on a busy machine."""


async def queue(context: DemoContext) -> None:
    """20 customers want a refund, each in a thread of its own: one modal decides."""
    counted = Counter[str]()
    for request in QUEUED:
        await context.dan.say(CHANNEL, request)
    context.say("agent.asked", by=REQUESTER, threads=COUNT)
    await context.ana.open_home()
    await _home_shows(context, f"Review {COUNT} together")
    context.say("home.shown", by=REVIEWER, waiting=COUNT)

    await context.ana.act_in_home(Action.REVIEW)
    counted += Counter(clicks=1, interactions=1)
    await _view(context, View.REVIEW)
    expect(not await context.ana.submit(), "The choice was refused.")
    counted += Counter(clicks=1, interactions=1)
    await _view(context, View.REVIEW_CONFIRM)
    expect(not await context.ana.submit(), "The decision was refused.")
    counted += Counter(clicks=1, interactions=1)
    await _view(context, View.NOTICE, f"*{COUNT} approved*")
    context.say("reviewer.decided", by=REVIEWER, approved=COUNT)

    await _home_shows(context, "Waiting for you: 0")

    # By the effects and not by the cards, which are updated after their calls ran.
    async def is_done() -> bool:
        return len(context.effects()) == COUNT

    await context.until(is_done, "every refund", WAIT_S)
    # 20 effects could be one refund twice and another one never.
    orders = [effect["args"] for effect in context.effects()]
    expect(len({str(args) for args in orders}) == COUNT, "A refund ran twice.")
    await context.ana.wait_for(_are_cards_done, WAIT_S)
    calls = Counter(call.method for call in context.demo.sandbox.calls)
    context.say(
        "queue.counted",
        by=REVIEWER,
        **counted,
        approved=COUNT,
        cards=COUNT,
        card_updates=calls["chat.update"],
        home_updates=calls["views.publish"],
    )


def _are_cards_done(state: JsonObject) -> bool:
    """Return whether every card shows that its call ran."""
    return json.dumps(state["channels"]).count("was approved and ran.") >= COUNT


async def _view(context: DemoContext, purpose: View, words: str = "") -> JsonObject:
    return await context.ana.wait_for_view(
        lambda view: view["callback_id"] == purpose and words in json.dumps(view),
        WAIT_S,
    )


async def _home_shows(context: DemoContext, words: str) -> None:
    await context.ana.wait_for(
        lambda state: words in json.dumps(state["home"]) or None, WAIT_S
    )
