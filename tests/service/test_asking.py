"""A person's message starts the agent once, and everybody who spoke is remembered."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.desk import Desk
from twokey.gateway.protocol.records import Person
from twokey.gateway.store.store import Store

ASKERS = [Person(team="T1", user=f"U{number}") for number in range(6)]


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


async def ask(desk: Desk, by: Person, once: str = "") -> bool:
    return await desk.reviews.ask_agent(
        "support", "t1", "refund it", requester=by, origin=None, once=once
    )


async def test_a_message_that_is_delivered_again_starts_the_agent_once(
    desk: Desk,
) -> None:
    kept = await asyncio.gather(*(ask(desk, ASKERS[0], "event:1") for _ in range(4)))

    assert sorted(kept) == [False, False, False, True]
    assert await desk.jobs() == 1


async def test_the_same_words_said_twice_are_two_messages(desk: Desk) -> None:
    assert await ask(desk, ASKERS[0])
    assert await ask(desk, ASKERS[0])

    assert await desk.jobs() == 2


async def test_a_message_that_comes_again_late_does_not_change_who_asked_last(
    desk: Desk,
) -> None:
    one, two, *_ = ASKERS
    await ask(desk, one, "event:1")
    await ask(desk, two, "event:2")
    await ask(desk, one, "event:1")

    keys = desk.store.keys_of_tenant("default")
    facts = await desk.store.threads.facts(keys, "default", "support", "t1")
    assert facts.requester == two
    assert facts.principals == (one,)


async def test_whoever_asks_at_once_in_one_thread_is_a_principal(desk: Desk) -> None:
    """One forgotten could approve what they asked for."""
    await asyncio.gather(*(ask(desk, each) for each in ASKERS))

    keys = desk.store.keys_of_tenant("default")
    facts = await desk.store.threads.facts(keys, "default", "support", "t1")
    assert facts.requester
    spoke = {person.user for person in (*facts.principals, facts.requester)}
    assert spoke == {person.user for person in ASKERS}
