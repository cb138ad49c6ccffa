"""People decide a workflow's call; it runs once, and the outcome names its end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError

from keyturn.connect.once import permit
from keyturn.connect.temporal import Call, Outcome
from keyturn.gateway.approvals.decisions import (
    Approve,
    Decision,
    Reject,
    Respond,
)
from keyturn.gateway.protocol.records import ItemState, Person
from tests.connect.temporal.conftest import World
from tests.connect.temporal.flows import TOOL, Refund, SameKey
from tests.service.harness import DAN


async def ended_by(world: World, decision: Decision) -> Outcome:
    async with world.worker():
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        await world.decide(handle, decision)
        outcome: Outcome = await handle.result()
    return outcome


async def test_a_reason_of_an_approval_is_told(world: World) -> None:
    outcome = await ended_by(world, Approve(reason="only this once"))

    assert "only this once" in outcome.text
    assert outcome.text.endswith("paid 7")


async def test_an_agent_that_floods_people_is_told_to_wait(world: World) -> None:
    world.people.put_policy(("protect:", "protect:\n  flood_per_10m: 1"))
    first, second = [await ended_by(world, Reject(reason="no")) for _ in range(2)]

    assert "combine" not in first.text
    assert second.text.endswith("or combine several calls into one.")


@pytest.mark.parametrize(
    ("decision", "kind"), [(Reject(), "reject"), (Respond(message="no"), "respond")]
)
async def test_an_outcome_names_its_end(
    world: World, decision: Decision, kind: str
) -> None:
    assert (await ended_by(world, decision)).kind == kind


async def test_a_call_expires(world: World) -> None:
    async with world.worker():
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        [held] = await world.waiting(handle)
        await world.people.overdue(held.item_id.partition(".")[0])
        await world.people.sweeper.sweep()
        outcome = await handle.result()

    assert world.paid == []
    assert outcome.kind == "expired"


async def test_the_policy_denies_or_lets_run_without_people(world: World) -> None:
    def look_up_order(order: str) -> dict[str, Any]:
        return {"order": order, "total": 7.5}

    async with world.worker(look_up_order):
        free = await world.start(Refund.run, "look_up_order", {"order": "o1"})
        denied = await world.start(Refund.run, "drop_table", {"name": "orders"})
        ran, refused = await free.result(), await denied.result()

    assert ran == Outcome(
        "ran", '{"order": "o1", "total": 7.5}', {"order": "o1", "total": 7.5}
    )
    assert refused.kind == "refused"


async def test_a_failed_tool_is_an_outcome_and_runs_once(world: World) -> None:
    def process_refund(amount: float) -> None:
        world.paid.append(amount)
        raise ValueError("the bank said no")

    async with world.worker(process_refund):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        await world.decide(handle, Approve())
        outcome = await handle.result()

    assert world.paid == [7]
    assert outcome.kind == "failed"
    assert "the bank said no" in outcome.text


async def test_a_tool_may_return_anything(world: World) -> None:
    async def process_refund(amount: float) -> bytes:
        world.paid.append(amount)
        return b"\xff"

    async with world.worker(process_refund):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        held = await world.decide(handle, Approve())
        outcome: Outcome = await handle.result()

    assert (outcome.kind, outcome.value) == ("ran", "b'\\xff'")
    assert (await world.people.item(held.item_id)).state is ItemState.EXECUTED


async def test_an_async_tool_below_a_plain_decorator_runs(world: World) -> None:
    def plain(tool: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(tool)
        def wrapped(*args: Any, **named: Any) -> Any:
            return tool(*args, **named)

        return wrapped

    @plain
    async def process_refund(amount: float) -> str:
        return await world.process_refund(amount)

    async with world.worker(process_refund):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        await world.decide(handle, Approve())
        outcome: Outcome = await handle.result()

    assert world.paid == [7]
    assert outcome.value == "paid 7"


async def test_a_value_that_temporal_refuses_ends_the_call(world: World) -> None:
    """It fits into the gateway's record, so a later attempt would return it too."""

    async def process_refund(amount: float) -> list[str]:
        world.paid.append(amount)
        return ['"'] * 150_000

    async with world.worker(process_refund):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        await world.decide(handle, Approve())
        outcome: Outcome = await handle.result()

    assert world.paid == [7]
    assert (outcome.kind, outcome.value) == ("ran", None)
    assert "took effect" in outcome.text


async def test_two_tools_of_one_name_are_refused(world: World) -> None:
    with pytest.raises(ValueError, match="More than one activity named process_ref"):
        async with world.worker(world.process_refund, world.process_refund):
            pass


async def test_arguments_that_do_not_fit_run_nothing(world: World) -> None:
    async with world.worker():
        handle = await world.start(Refund.run, TOOL, {"sum": 7})
        held = await world.decide(handle, Approve())
        outcome = await handle.result()

    assert world.paid == []
    assert outcome.kind == "failed"
    assert "missing a required argument: 'amount'" in outcome.text
    assert (await world.people.item(held.item_id)).state is ItemState.FAILED


@pytest.mark.usefixtures("only_dev")
async def test_the_same_key_is_the_same_call(world: World) -> None:
    async with world.worker():
        handle = await world.start(SameKey.run, 7, 7)
        await world.decide(handle, Approve())
        first, second = await handle.result()

    assert world.paid == [7]
    assert first == second


async def test_a_key_with_other_arguments_is_refused_for_good(world: World) -> None:
    async with world.worker():
        handle = await world.start(SameKey.run, 7, 8)
        await world.decide(handle, Approve())
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()

    assert world.paid == [7]
    cause = failed.value.cause
    assert isinstance(cause, ActivityError)
    assert isinstance(cause.cause, ApplicationError)
    assert (cause.cause.type, cause.cause.non_retryable) == ("RefReused", True)


async def test_the_requester_is_asked_for_and_remembered(world: World) -> None:
    asked: list[Call] = []

    async def requester(call: Call) -> Person:
        asked.append(call)
        return DAN

    async with world.worker(requester=requester):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        [held] = await world.waiting(handle)
        approval = await world.people.approval(held.item_id)
        await world.people.decide(held.item_id, Approve())
        await handle.result()

    assert approval.requester == DAN
    assert asked[0].args == {"amount": 7}


async def test_a_tool_knows_its_permit(world: World) -> None:
    keys: list[str] = []

    def process_refund(amount: float) -> None:
        keys.append(permit().idempotency_key)

    async with world.worker(process_refund):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        await world.decide(handle, Approve())
        await handle.result()

    assert len(keys) == 1
    assert keys[0]


async def test_people_hold_no_connection_and_no_activity(world: World) -> None:
    async with world.worker(wakes=False):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        await world.waiting(handle)
        described = await handle.describe()
        await asyncio.sleep(0)

    assert not described.raw_description.pending_activities
