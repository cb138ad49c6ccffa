"""After the loss of all data, the last messages in Slack are still true."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.resume.store_threads import ThreadRef
from keyturn.gateway.service.people.freezing import run_event
from tests.bot.bot_stack import Stack, says
from tests.bot.listeners.test_asking import next_job
from tests.bot.test_publisher import put

ASKED = "#general"


@pytest.mark.parametrize("name", [EventName.RUN_FINISHED, EventName.RUN_FAILED])
async def test_a_run_ends_where_it_was_asked_for_although_the_store_was_emptied(
    stack: Stack, name: EventName
) -> None:
    async with stack.running():
        dan = stack.actor("U0DAN")
        ts = await dan.say(ASKED, "@keyturn refund 78291")
        thread = (await next_job(stack)).thread
        await put(stack, EventName.RUN_STARTED, channel="C0GENERAL", thread_ts=ts)
        await dan.message_with(ASKED, says("working on it"))
        await stack.store.conn.command("FLUSHALL")

        at = ThreadRef(stack.keys, "support", thread)
        event = await run_event(stack.store, at.keys, at.run_ref, name)
        told = event.with_(data={**event.data, "text": "I could not refund it."})
        await stack.store.outbox(stack.keys, reader="").put(told)

        words = "refund it" if name is EventName.RUN_FINISHED else "not be resumed"
        found = await dan.message_with(ASKED, says(words))
        assert (event.channel, found["thread_ts"]) == ("", ts)
