"""A thread always moves on: expiry, new words, several calls, failures, restarts."""

from __future__ import annotations

import json

import pytest

from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.house import DAN, RULES, House
from twokey.agent import connected
from twokey.gateway.approvals.decisions import Reject
from twokey.gateway.approvals.events import EventName
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.resume.every_loop import EveryLoop
from twokey.gateway.store.jobs import Job, JobKind

REFUND = ("refund", {"order": "78291", "amount": 899.0})
EMAIL = ("email", {"to": "ana@example.org"})


async def expire(house: House) -> None:
    """Move the clock: let the deadline of all approvals have passed."""
    for approval in await house.approvals():
        await house.store.conn.together(
            ["HSET", house.keys.head(approval.id), "expires", 1],
            ["ZADD", house.keys.expiry, 1, approval.id],
        )


async def test_silence_ends_in_an_expiry_that_the_agent_is_told_of(
    house: House,
) -> None:
    async with house.working():
        await house.ask(REFUND)
        await house.asked()

        await expire(house)

        assert "Nobody decided in time" in await house.words()
        assert await house.states() == [ItemState.EXPIRED]
        assert sample_tools.ledger() == []


async def test_each_call_of_a_turn_ends_as_it_was_decided(house: House) -> None:
    async with house.working():
        await house.ask(REFUND, EMAIL, ("look_up", {"order": "1"}))
        first, second = await house.asked(2)

        await house.decide(second, Reject(reason="no mail"))
        await eventually(lambda: _is(house, second.id, ItemState.REJECTED))
        await house.idle()
        await house.decide(first)

        words = await house.words()
        assert words.startswith("refunded 78291 899 | ")
        assert "no mail" in words
        assert words.endswith("found 1")
        assert sorted(line.split()[0] for line in sample_tools.ledger()) == [
            "look_up",
            "refund",
        ]


async def test_decisions_that_came_before_a_worker_did_are_carried_out_together(
    house: House,
) -> None:
    async with house.working():
        await house.ask(REFUND, EMAIL)
        items = await house.asked(2)

    for item in items:
        await house.decide(item)
    async with house.working():
        await house.words()
        await house.idle()

    assert len(sample_tools.ledger()) == 2
    assert len(await house.events(EventName.RUN_FINISHED)) == 1


async def test_a_new_message_supersedes_what_waits(house: House) -> None:
    async with house.working():
        await house.ask(REFUND)
        [item] = await house.asked()

        await house.say("never mind")

        assert await house.words() == "You said never mind"
        assert await house.states() == [ItemState.SUPERSEDED]
        await house.decide(item)
        await house.idle()
        assert sample_tools.ledger() == []


async def test_what_was_approved_before_a_new_message_runs_before_it(
    house: House,
) -> None:
    async with house.working():
        await house.ask(REFUND)
        [item] = await house.asked()

    await house.decide(item)
    await house.say("thank you")
    async with house.working(slots=1):
        await eventually(lambda: _finished(house))

    assert len(sample_tools.ledger()) == 1
    assert await house.states() == [ItemState.EXECUTED]


async def test_the_same_words_delivered_twice_are_given_once(house: House) -> None:
    job = Job(
        kind=JobKind.START,
        tenant="default",
        agent="shop",
        thread="t1",
        input=json.dumps([REFUND]),
    )
    queue = house.store.queue(house.keys)
    await queue.prepare()
    await queue.put(job)
    taken = await queue.take("one-that-dies", block_ms=100)
    assert taken
    with connected(EveryLoop(house.store, lambda: RULES)):
        await house.runner.start("t1", job.input, key=taken.id)
    # ... and dies without acknowledging it.

    async with house.working():
        [_] = await house.asked()
        await house.idle()

    assert len(await house.items()) == 1


async def test_a_job_of_an_agent_that_runs_elsewhere_is_left_to_it(
    house: House,
) -> None:
    await house.reviews.ask_agent("other", "t9", "hi", requester=DAN, origin=None)
    async with house.working():
        await house.say("hello")
        await house.words()

    assert await house.store.queue(house.keys).depth() == 1


async def test_a_thread_that_was_cut_off_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError):
        await house.runner.start("t1", "break", key="k")
    monkeypatch.setattr(sample_tools, "is_broken", False)

    await house.store.queue(house.keys).put(
        Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
    )

    async with house.working():
        assert await house.words() == "You said break"


async def _is(house: House, item_id: str, state: ItemState) -> bool:
    return [one.state for one in await house.items() if one.id == item_id] == [state]


async def _finished(house: House) -> bool:
    state = await house.runner.probe("t1")
    return state.is_finished and state.last_words == "You said thank you"
