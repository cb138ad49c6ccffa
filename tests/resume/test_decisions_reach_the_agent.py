"""The agent carries out every decision and reports it."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Decided, Edit, Reject, Respond
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import ItemState
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack

REFUND = ("refund", {"order": "78291", "amount": 899.0})


@pytest.mark.slow
async def test_an_approved_call_runs_once_and_the_agent_says_so(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        assert sample_tools.ledger() == []

        assert isinstance(await stack.decide(item), Decided)

        assert await stack.words() == "refunded 78291 899"
        assert len(sample_tools.ledger()) == 1
        assert await stack.states() == [ItemState.EXECUTED]
        [told] = await stack.events(EventName.RUN_FINISHED)
        assert (told.data["channel"], told.data["thread_ts"]) == ("C0SHOP", "1.0")
        assert len(await stack.events(EventName.RUN_STARTED)) == 1


async def test_an_edited_call_runs_as_edited_and_the_agent_is_told(
    stack: Stack,
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()

        edit = Edit(args={"order": "78291", "amount": 449.5}, reason="half is fair")
        await stack.decide(item, edit)

        words = await stack.words()
        assert "refunded 78291 449.5" in words
        assert "half is fair" in words
        assert [line.split()[2] for line in sample_tools.ledger()] == ["449.5"]


@pytest.mark.slow
async def test_a_rejected_call_does_not_run(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()

        await stack.decide(item, Reject(reason="not this one"))

        assert "not this one" in await stack.words()
        assert sample_tools.ledger() == []


async def test_a_response_is_read_as_the_tools_answer(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()

        await stack.decide(item, Respond(message="it was refunded yesterday"))

        assert "it was refunded yesterday" in await stack.words()
        assert sample_tools.ledger() == []
