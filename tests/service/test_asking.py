"""A person's message starts the agent once, and all speakers are remembered."""

from __future__ import annotations

import asyncio

from keyturn.gateway.protocol.records import Person
from tests.service.harness import ServiceHarness

ASKERS = [Person(team="T1", user=f"U{number}") for number in range(6)]


async def ask(harness: ServiceHarness, by: Person, once: str = "") -> bool:
    return await harness.reviews.ask_agent(
        "support", "t1", "refund it", requester=by, origin=None, message_key=once
    )


async def test_a_message_that_is_delivered_again_starts_the_agent_once(
    harness: ServiceHarness,
) -> None:
    kept = await asyncio.gather(*(ask(harness, ASKERS[0], "event:1") for _ in range(4)))

    assert sorted(kept) == [False, False, False, True]
    assert await harness.jobs() == 1


async def test_the_same_words_said_twice_are_two_messages(
    harness: ServiceHarness,
) -> None:
    assert await ask(harness, ASKERS[0])
    assert await ask(harness, ASKERS[0])

    assert await harness.jobs() == 2


async def test_a_message_that_comes_again_late_does_not_change_who_asked_last(
    harness: ServiceHarness,
) -> None:
    one, two, *_ = ASKERS
    await ask(harness, one, "event:1")
    await ask(harness, two, "event:2")
    await ask(harness, one, "event:1")

    facts = await harness.store.threads.facts(harness.keys, "support", "t1")
    assert facts.requester == two
    assert facts.principals == (one,)


async def test_somebody_who_asks_at_once_in_one_thread_is_a_principal(
    harness: ServiceHarness,
) -> None:
    """A forgotten speaker could approve their own request."""
    await asyncio.gather(*(ask(harness, each) for each in ASKERS))

    facts = await harness.store.threads.facts(harness.keys, "support", "t1")
    assert facts.requester
    spoke = {person.user for person in (*facts.principals, facts.requester)}
    assert spoke == {person.user for person in ASKERS}
