"""A person asks an agent, the bot about an approval, or opens the Home tab."""

from __future__ import annotations

import pytest

from keyturn.bot.listeners.messages import parse_request
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.store.runs.jobs import Job, JobKind, input_of
from tests.bot.bot_stack import TEAM, Stack


async def next_job(stack: Stack) -> Job:
    queue = stack.store.queue(stack.keys)
    await queue.prepare()
    delivery = await queue.take("test", block_ms=2000)
    assert delivery is not None
    # The input is sealed in the store.
    return delivery.job.with_(input=input_of(stack.store.sealing, delivery.job))


async def test_a_mention_starts_the_default_agent(each_stack: Stack) -> None:
    stack = each_stack
    async with stack.running():
        ts = await stack.actor("U0DAN").say("#general", "@keyturn refund 78291 & tell")

        job = await next_job(stack)

        assert (job.kind, job.agent, job.input) == (
            JobKind.START,
            "support",
            "refund 78291 & tell",
        )
        assert job.thread == f"slack:{TEAM}:C0GENERAL:{ts}"
        facts = await stack.store.threads.facts(stack.keys, "support", job.thread)
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


async def test_a_guest_is_told_that_only_members_can_ask(stack: Stack) -> None:
    async with stack.running():
        await stack.actor("U0GUEST").say("#agent-approvals", "@keyturn refund")

        await stack.told("U0GUEST", "Only members")
        assert await stack.store.queue(stack.keys).depth() == 0


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
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise StoreUnavailable("The store does not answer.")

    monkeypatch.setattr(type(stack.reviews), "ask_agent", unavailable)
    async with stack.running():
        await stack.actor("U0DAN").say("#general", "@keyturn refund")

        await stack.told("U0DAN", "cannot keep anything right now", "C0GENERAL")
