"""One message starts an agent once, and a mention of the bot asks about an approval."""

from __future__ import annotations

import pytest

from keyturn.bot.listeners.messages import parse_request
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.keys import MESSAGE_LIFETIME
from keyturn.gateway.store.runs.jobs import Job, JobKind, input_of
from keyturn.sandbox import payloads
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import TEAM, Stack
from tests.panics import failing


async def next_job(stack: Stack) -> Job:
    queue = stack.store.queue(stack.keys)
    await queue.prepare()
    delivery = await queue.take(block_ms=2000)
    assert delivery is not None
    # The input is sealed in the store.
    return delivery.job.with_(input=input_of(stack.store.sealing, delivery.job))


async def test_a_mention_starts_the_default_agent(each_live: Stack) -> None:
    live = each_live
    ts = await live.actor("U0DAN").say("#general", "@keyturn refund 78291 & tell")

    job = await next_job(live)

    assert (job.kind, job.agent, job.input) == (
        JobKind.START,
        "support",
        "refund 78291 & tell",
    )
    assert job.thread == f"slack:{TEAM}:C0GENERAL:{ts}"
    facts = await live.store.threads.facts(live.keys, "support", job.thread)
    assert facts.requester == Person(team=TEAM, user="U0DAN", name="Dan Díaz")
    assert facts.origin is not None
    assert (facts.origin.channel, facts.origin.thread_ts) == ("C0GENERAL", ts)


async def test_a_message_without_author_is_asked_when_repeated(stack: Stack) -> None:
    for method, calls in (("users.info", 1), ("chat.postEphemeral", 9)):
        stack.sandbox.faults.plan("http_500", method, calls=calls)
    async with stack.running():
        await stack.actor("U0DAN").say("#general", "@keyturn refund 78291")

        job = await next_job(stack)

        assert job.input == "refund 78291"


async def test_a_guest_is_told_that_only_members_can_ask(live: Stack) -> None:
    await live.actor("U0GUEST").say("#agent-approvals", "@keyturn refund")

    await live.told("U0GUEST", "Only members")
    assert await live.store.queue(live.keys).depth() == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<@UBOT> refund it", ("support", "refund it")),
        ("<@UBOT> ops restart", ("ops", "restart")),
        ("<@UBOT|keyturn> Ops: restart", ("ops", "restart")),
        ("ops, restart <@UBOT>", ("ops", "restart")),
        ("<@UBOT> a &lt; b &amp;&amp; c", ("support", "a < b && c")),
        ("<@UBOT> <@U0ANA> asked", ("support", "<@U0ANA> asked")),
        ("<@UBOT> ops", ("ops", "")),
    ],
)
def test_a_first_word_names_an_agent(text: str, expected: tuple[str, str]) -> None:
    found = parse_request(
        text, bot_user="UBOT", agents=("support", "ops"), default_agent="support"
    )

    assert found == expected


async def test_what_the_store_does_not_take_is_asked_to_be_said_again(
    live: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, ReviewService, "ask_agent", StoreUnavailable("gone"))

    await live.actor("U0DAN").say("#general", "@keyturn refund")

    await live.told("U0DAN", "cannot keep anything right now", "C0GENERAL")


GENERAL, DIRECT = "C0GENERAL", "D0DAN"
BEFORE = "Editing your message changes nothing"


async def depth(stack: Stack) -> int:
    return await stack.store.queue(stack.keys).depth()


async def test_an_edited_question_is_answered_in_private(each_live: Stack) -> None:
    live = each_live
    dan = live.actor("U0DAN")
    ts = await dan.say("#general", "@keyturn refund ordr 78291")
    assert (await next_job(live)).input == "refund ordr 78291"

    await dan.edit("#general", ts, "@keyturn refund order 78291")

    await live.told("U0DAN", BEFORE, GENERAL)
    assert await depth(live) == 1
    assert not await live.actor("U0ANA").ephemerals("#general")


@pytest.mark.parametrize("first", ["refund 1", "@keyturn"])
async def test_an_edit_that_adds_the_mention_asks(live: Stack, first: str) -> None:
    dan = live.actor("U0DAN")
    ts = await dan.say("#general", first)
    assert await depth(live) == 0

    await dan.edit("#general", ts, "@keyturn refund 1")

    job = await next_job(live)
    assert (job.input, job.thread.rpartition(":")[2]) == ("refund 1", ts)
    assert await depth(live) == 1


async def test_an_edit_of_a_forgotten_message_asks_nothing(live: Stack) -> None:
    now_s = live.sandbox.clock.now()
    ts = f"{now_s - MESSAGE_LIFETIME.total_seconds():.6f}"

    edited = {"user": "U0DAN", "ts": f"{now_s:.6f}"}
    await mention(live, "<@U0KEYTURN> refund 1", ts, edited=edited)

    await live.told("U0DAN", BEFORE, GENERAL)
    assert await depth(live) == 0


async def test_a_line_in_the_bots_chat_asks_an_agent(each_live: Stack) -> None:
    live = each_live
    ts = await live.actor("U0DAN").say(DIRECT, "refund 78291")

    job = await next_job(live)
    assert (job.agent, job.input) == ("support", "refund 78291")
    facts = await live.store.threads.facts(live.keys, "support", job.thread)
    assert facts.origin is not None
    assert (facts.origin.channel, facts.origin.thread_ts) == (DIRECT, ts)
    await live.actor("U0DAN").edit(DIRECT, ts, "refund 78292")
    await live.told("U0DAN", BEFORE, DIRECT)
    assert await depth(live) == 1


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
