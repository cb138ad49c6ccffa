"""One message starts an agent once, despite Slack's repetitions and people's edits."""

from __future__ import annotations

import pytest

from keyturn.gateway.store.keys import MESSAGE_LIFETIME
from keyturn.sandbox import payloads
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import Stack
from tests.bot.listeners.test_asking import next_job

GENERAL, DIRECT = "C0GENERAL", "D0DAN"
BEFORE = "Editing your message changes nothing"


async def depth(stack: Stack) -> int:
    return await stack.store.queue(stack.keys).depth()


async def test_an_edited_question_is_answered_in_private(each_stack: Stack) -> None:
    stack = each_stack
    async with stack.running():
        dan = stack.actor("U0DAN")
        ts = await dan.say("#general", "@keyturn refund ordr 78291")
        assert (await next_job(stack)).input == "refund ordr 78291"

        await dan.edit("#general", ts, "@keyturn refund order 78291")

        await stack.told("U0DAN", BEFORE, GENERAL)
        assert await depth(stack) == 1
        assert not await stack.actor("U0ANA").ephemerals("#general")
    assert stack.sandbox.problems == []


@pytest.mark.parametrize("first", ["refund 1", "@keyturn"])
async def test_an_edit_that_adds_the_mention_or_the_words_asks_for_the_first_time(
    stack: Stack, first: str
) -> None:
    async with stack.running():
        dan = stack.actor("U0DAN")
        ts = await dan.say("#general", first)
        assert await depth(stack) == 0

        await dan.edit("#general", ts, "@keyturn refund 1")

        job = await next_job(stack)
        assert (job.input, job.thread.rpartition(":")[2]) == ("refund 1", ts)
        assert await depth(stack) == 1


async def test_an_edit_that_overtakes_its_message_asks_once(stack: Stack) -> None:
    async with stack.running():
        dan = stack.actor("U0DAN")
        stack.sandbox.workspace.events = ()
        ts = await dan.say("#general", "@keyturn refund ordr")
        first = stack.sandbox.workspace.messages[GENERAL][ts]
        stack.sandbox.workspace.events = ("app_mention",)
        await dan.edit("#general", ts, "@keyturn refund order")
        assert (await next_job(stack)).input == "refund order"

        await mention(stack, first.text, ts)

        assert await depth(stack) == 1


async def test_a_mention_repeated_as_another_event_asks_once(stack: Stack) -> None:
    async with stack.running():
        ts = await stack.actor("U0DAN").say("#general", "@keyturn refund 1")

        await mention(stack, "<@U0KEYTURN> refund 1", ts)

        assert await depth(stack) == 1
        assert not await stack.actor("U0DAN").ephemerals("#general")


async def test_an_edit_of_a_forgotten_message_asks_nothing(stack: Stack) -> None:
    async with stack.running():
        now_s = stack.sandbox.clock.now()
        ts = f"{now_s - MESSAGE_LIFETIME.total_seconds():.6f}"

        edited = {"user": "U0DAN", "ts": f"{now_s:.6f}"}
        await mention(stack, "<@U0KEYTURN> refund 1", ts, edited=edited)

        await stack.told("U0DAN", BEFORE, GENERAL)
        assert await depth(stack) == 0


async def test_a_line_in_the_bots_chat_asks_an_agent(each_stack: Stack) -> None:
    stack = each_stack
    async with stack.running():
        ts = await stack.actor("U0DAN").say(DIRECT, "refund 78291")

        job = await next_job(stack)
        assert (job.agent, job.input) == ("support", "refund 78291")
        facts = await stack.store.threads.facts(stack.keys, "support", job.thread)
        assert facts.origin is not None
        assert (facts.origin.channel, facts.origin.thread_ts) == (DIRECT, ts)
        await stack.actor("U0DAN").edit(DIRECT, ts, "refund 78292")
        await stack.told("U0DAN", BEFORE, DIRECT)
        assert await depth(stack) == 1


async def mention(stack: Stack, text: str, ts: str, **more: object) -> None:
    """Deliver a mention of Dan's as a separate event."""
    body: JsonObject = {
        "type": "app_mention",
        "user": "U0DAN",
        "team": "T0SANDBOX",
        "text": text,
        "channel": GENERAL,
        "ts": ts,
        "event_ts": ts,
        **more,
    }
    envelope = payloads.event(stack.sandbox.slack, body)
    await stack.sandbox.control.delivery.deliver(envelope)
