"""A thread always moves on: expiry, new words, several calls, failures, restarts."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.runs.jobs import Job, JobKind
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import DAN, Stack

REFUND = ("refund", {"order": "78291", "amount": 899.0})
EMAIL = ("email", {"to": "ana@example.org"})


async def expire(stack: Stack) -> None:
    """Move the clock past the deadline of all approvals."""
    for approval in await stack.approvals():
        await stack.store.conn.transaction(
            ["HSET", stack.keys.head(approval.id), "expires", 1],
            ["ZADD", stack.keys.expiry, 1, stack.keys.listed(approval.id)],
        )


@pytest.mark.slow
async def test_silence_ends_in_an_expiry_that_the_agent_is_told_of(
    stack: Stack,
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        await stack.asked()

        await expire(stack)

        assert "Nobody decided in time" in await stack.words()
        assert await stack.states() == [ItemState.EXPIRED]
        assert sample_tools.ledger() == []


async def test_each_call_of_a_turn_ends_as_it_was_decided(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(REFUND, EMAIL, ("look_up", {"order": "1"}))
        first, second = await stack.asked(2)

        await stack.decide(second, Reject(reason="no mail"))
        await eventually(lambda: _is(stack, second.id, ItemState.REJECTED))
        await stack.idle()
        await stack.decide(first)

        words = await stack.words()
        assert words.startswith("refunded 78291 899 | ")
        assert "no mail" in words
        assert words.endswith("found 1")
        assert sorted(line.split()[0] for line in sample_tools.ledger()) == [
            "look_up",
            "refund",
        ]


@pytest.mark.slow
async def test_a_new_message_supersedes_what_waits(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()

        await stack.say("never mind")

        assert await stack.words() == "You said never mind"
        assert await stack.states() == [ItemState.SUPERSEDED]
        await stack.decide(item)
        await stack.idle()
        assert sample_tools.ledger() == []


async def test_what_was_approved_before_a_new_message_runs_before_it(
    stack: Stack,
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()

    await stack.decide(item)
    await stack.say("thank you")
    async with stack.working(slots=1):
        await eventually(lambda: _finished(stack))

    assert len(sample_tools.ledger()) == 1
    assert await stack.states() == [ItemState.EXECUTED]


async def test_a_job_of_an_agent_that_runs_elsewhere_is_left_to_it(
    stack: Stack,
) -> None:
    await stack.reviews.ask_agent("other", "t9", "hi", requester=DAN, origin=None)
    async with stack.working():
        await stack.say("hello")
        await stack.words()

    assert await stack.store.queue(stack.keys).depth() == 1


async def test_a_thread_that_was_cut_off_goes_on(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError):
        await stack.runner.start("t1", "break", key="k")
    monkeypatch.setattr(sample_tools, "is_broken", False)

    await stack.store.queue(stack.keys).put(
        Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
    )

    async with stack.working():
        assert await stack.words() == "You said break"


async def _is(stack: Stack, item_id: str, state: ItemState) -> bool:
    return [one.state for one in await stack.items() if one.id == item_id] == [state]


async def _finished(stack: Stack) -> bool:
    state = await stack.runner.probe("t1")
    return state.is_finished and state.final_message == "You said thank you"
