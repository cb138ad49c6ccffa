"""An Update only makes a workflow ask; none, forged and stale ones change nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from keyturn.connect.gate import Listing
from keyturn.connect.temporal.gated import DECISION
from keyturn.connect.temporal.waker import Waker
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.protocol import texts
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.gateway.protocol.wire import ClaimRequest, TurnRef
from tests.conftest import eventually
from tests.connect.temporal.conftest import Handle, World
from tests.connect.temporal.flows import TOOL, Eager, Refund, Refunds

pytestmark = pytest.mark.usefixtures("only_dev")

UPDATED = "WORKFLOW_EXECUTION_UPDATE_ACCEPTED"


async def knock(handle: Handle, item_id: str) -> None:
    knocked: Any = handle
    await knocked.execute_update(DECISION, item_id)


async def refused(handle: Handle, item_id: str) -> None:
    with pytest.raises(WorkflowUpdateFailedError):
        await knock(handle, item_id)


async def test_a_decision_wakes_the_workflow(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.worker():
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        await world.decide(handle, Approve())
        await handle.result()

    assert await world.events(handle, UPDATED) == 1
    assert await world.events(handle, "TIMER_FIRED") == 0
    assert not caplog.records


async def test_a_forged_update_runs_nothing(world: World) -> None:
    async with world.worker(wakes=False):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        [held] = await world.waiting(handle)
        await knock(handle, held.item_id)
        item = await world.people.item(held.item_id)
        await world.people.decide(held.item_id, Reject())
        await knock(handle, held.item_id)
        outcome = await handle.result()

    assert item.state is ItemState.PENDING
    assert (outcome.kind, world.paid) == ("reject", [])


async def test_unknown_and_stale_updates_leave_no_event(world: World) -> None:
    async with world.worker(wakes=False):
        handle = await world.start(Refunds.run, [1, 2])
        first, second = await world.waiting(handle, 2)
        await world.people.decide(first.item_id, Reject())
        await knock(handle, first.item_id)
        [left] = await world.waiting(handle, 1)
        before = await world.events(handle)

        await refused(handle, "ap_unknown.0")
        await refused(handle, first.item_id)

        assert left == second
        assert await world.events(handle) == before


async def test_a_second_update_leaves_no_event(world: World) -> None:
    world.go_on.set()
    async with world.holding("/answers") as is_held, world.worker(wakes=False):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        [held] = await world.waiting(handle)
        world.go_on.clear()
        # The first makes it ask; the second is kept, so that it asks once more.
        await knock(handle, held.item_id)
        await asyncio.wait_for(is_held.wait(), 30)
        await knock(handle, held.item_id)
        before = await world.events(handle)

        await refused(handle, held.item_id)

        assert await world.events(handle) == before


async def test_an_early_decision_wakes_the_workflow(world: World) -> None:
    async with world.holding("/answers") as is_held, world.worker():
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        # The gateway answered that people have not decided.
        await asyncio.wait_for(is_held.wait(), 30)
        [listed] = (await world.gate.listing(Listing())).approvals
        await world.people.decide(listed.calls[0].id, Approve())
        await world.was_updated(handle)
        world.go_on.set()
        await handle.result()

    assert world.paid == [7]
    assert await world.events(handle, "TIMER_FIRED") == 0


async def test_a_lost_update_is_found_by_the_poll(world: World) -> None:
    async with world.worker(wakes=False):
        handle = await world.start(Eager.run, 7)
        await world.decide(handle, Approve())
        await handle.result()

    assert world.paid == [7]
    assert await world.events(handle, UPDATED) == 0


async def test_a_starting_worker_finds_a_decision(world: World) -> None:
    async with world.worker():
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        [held] = await world.waiting(handle)
    await world.people.decide(held.item_id, Approve())

    async with world.worker():
        await world.was_updated(handle)
        await handle.result()

    assert world.paid == [7]


async def test_an_ended_workflows_call_is_withdrawn(world: World) -> None:
    async with world.worker():
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        [held] = await world.waiting(handle)
        await handle.terminate()
        await world.people.decide(held.item_id, Approve())
        await world.reaches(held.item_id, ItemState.WITHDRAWN)

    assert world.paid == []


async def test_a_late_report_wakes_a_waiting_workflow(world: World) -> None:
    async with world.worker(wakes=False):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        held = await world.decide(handle, Approve())
        claimed = await world.people.granted(
            ClaimRequest(
                item_id=held.item_id,
                ref=TurnRef(
                    agent="support",
                    thread=held.call.thread,
                    ns=held.call.key,
                    message_id=held.call.key,
                ),
                tool=TOOL,
                tool_call_id=held.call.key,
                owner="0" * 32,
            )
        )
        waking = asyncio.create_task(Waker(world.client, world.gate).run())

        async def follows() -> bool:
            waits = world.stack.api.limits._waits  # pyright: ignore[reportPrivateUsage] - its count
            return waits.total() == 1

        async def waits_for_reviewers() -> bool:
            return [one.in_doubt for one in await world.known(handle)] == [True]

        await eventually(follows)
        await world.people.doubt(held.item_id)
        await knock(handle, held.item_id)
        await eventually(waits_for_reviewers)
        done = Result(ok=True, summary="paid")
        await world.people.agents.finish(held.item_id, claimed.fence, done)
        outcome = await handle.result()
        waking.cancel()

    assert world.paid == []
    assert (outcome.kind, outcome.text) == ("ran", texts.RESULT_LOST)
    assert await world.events(handle, "TIMER_FIRED") == 0


async def test_calls_of_other_programs_are_left_alone(world: World) -> None:
    async with world.worker():
        ref, [verdict] = await world.people.submit((TOOL, {"amount": 7}))
        await world.people.decide(verdict.item_id, Approve())
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        await world.decide(handle, Approve())
        await handle.result()

    assert ref.thread == "t1"
    assert (await world.people.item(verdict.item_id)).state is ItemState.AUTHORIZED
