"""Script of the demo for direct messages: a reviewer decides on a copy of the card."""

from __future__ import annotations

import json
from functools import partial

from twokey.bot.ids import Action
from twokey.cli.demo_context import STEP_TIMEOUT_S, DemoContext, expect
from twokey.cli.demo_stack import CHANNEL, SENIOR
from twokey.gateway.protocol.states import ItemState
from twokey.sandbox.json_types import JsonObject, as_objects

DONE = ", done "


async def direct(context: DemoContext) -> None:
    """Chloé is sent the card and decides on it; the card in the channel shows it."""
    ts, approval = await context.ask("@twokey refund order 78420")
    chloe = context.demo.sandbox.person(SENIOR)

    async def copy(words: str) -> tuple[str, str]:
        find = partial(_copies_in, ts=ts, approval=approval.id, words=words)
        return (await chloe.wait_for(find, STEP_TIMEOUT_S))[0]

    first = await copy("1299")
    context.say("copy.posted", approval=approval.id, to=SENIOR)
    await context.click(ts, Action.APPROVE, approval, 0)
    await context.voted(ts, approval, 0, have=1, need=2)
    await copy("1 of 2 approvals")
    expect(not context.effects(), "One person was enough.")

    await chloe.click(*first, Action.APPROVE)
    context.say("reviewer.clicked", approval=approval.id, by=SENIOR, on="copy")
    await context.reached(approval, {0: ItemState.EXECUTED})
    # The same message: a second one would leave buttons that no longer work.
    expect(await copy(DONE) == first, "Chloé was sent a second copy.")
    await context.ana.message_with(
        CHANNEL,
        lambda one: one["ts"] == ts and DONE in json.dumps(one["blocks"]),
        STEP_TIMEOUT_S,
    )
    context.say("copy.updated", approval=approval.id, to=SENIOR)
    await context.final_message()
    expect(len(context.effects()) == 1, "The refund did not run once.")


def _copies_in(
    state: JsonObject, *, ts: str, approval: str, words: str
) -> list[tuple[str, str]]:
    """Return channel and ts of the person's copies of a card, with these words."""
    found = list[tuple[str, str]]()
    for channel in as_objects(state["channels"]):
        for message in as_objects(channel["messages"]):
            shown = json.dumps([message["blocks"], message["metadata"]])
            # Neither the card nor a reply in its thread, which name the approval, too.
            is_copy = message["ts"] != ts and message["thread_ts"] is None
            if is_copy and approval in shown and words in shown:
                found.append((str(channel["id"]), str(message["ts"])))
    return found
