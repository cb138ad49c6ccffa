"""A stopped worker lets its tool finish, or hands its job back."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Reconcile
from keyturn.gateway.protocol.records import Finding, ItemState
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack


@pytest.mark.slow
async def test_a_stop_without_grace_hands_the_job_back_and_hides_no_doubt(
    stack: Stack,
) -> None:
    async with stack.working(grace_s=0.05):
        await stack.ask(("slow", {"order": "1", "seconds": 0.7}))
        [slow] = await stack.asked()
        await stack.idle()  # or the job that asked would take the decision along
        await stack.decide(slow)
        await eventually(_has_begun)

    assert await stack.store.queue(stack.keys).depth() == 1
    async with stack.working():
        await eventually(lambda: _is_in_doubt(stack))
        await stack.idle()
        [item] = await stack.items()
        await stack.decide(item, Reconcile(finding=Finding.EXECUTED))
        await stack.words()

    assert sample_tools.ledger() == ["begin 1", "end 1"]


@pytest.mark.slow
async def test_a_stop_lets_the_running_tool_finish(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(("slow", {"order": "1", "seconds": 0.7}))
        [slow] = await stack.asked()
        await stack.decide(slow)
        await eventually(_has_begun)

    assert sample_tools.ledger() == ["begin 1", "end 1"]
    assert await stack.states() == [ItemState.EXECUTED]


async def _has_begun() -> bool:
    return bool(sample_tools.ledger())


async def _is_in_doubt(stack: Stack) -> bool:
    return await stack.states() == [ItemState.IN_DOUBT]
