"""A call has one effect, despite lost workers, attempts and runs."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from keyturn.connect.gate import HttpGate, Listing, each_listed
from keyturn.connect.temporal import gated, waker
from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.approvals.decisions import Approve, Reconcile
from keyturn.gateway.protocol.records import Finding, ItemState
from tests.api.api_stack import serving
from tests.conftest import eventually
from tests.connect.temporal.conftest import Handle, World
from tests.connect.temporal.flows import TOOL, Eager, Hasty, Refund, Refunds, Renewed
from tests.connect.temporal.worker_process import PLACES
from tests.forked import Forked
from tests.levels import sample, size
from tests.service.harness import ServiceHarness


async def cancelled(handle: Handle) -> None:
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert isinstance(failed.value.cause, CancelledError)


async def continued(handle: Handle, run_id: str | None) -> str:
    """Wait until a workflow runs under another run id; return it."""
    found = run_id

    async def has_changed() -> bool:
        nonlocal found
        found = (await handle.describe()).run_id
        return found != run_id

    await eventually(has_changed)
    assert found
    return found


@pytest.mark.usefixtures("only_dev")
async def test_an_attempt_that_ran_out_of_time_ends_the_call(world: World) -> None:
    async def process_refund(amount: float) -> str:
        world.paid.append(amount)
        await world.go_on.wait()
        return f"paid {amount}"

    async with world.worker(process_refund):
        handle = await world.start(Hasty.run, 7)
        await world.decide(handle, Approve())

        async def is_second() -> bool:
            pending = (await handle.describe()).raw_description.pending_activities
            return any(one.attempt > 1 for one in pending)

        await eventually(is_second)
        world.go_on.set()
        outcome = await handle.result()

    assert world.paid == [7]
    assert outcome.text == "paid 7.0"


async def test_a_run_that_continues_as_new_keeps_its_approvals(world: World) -> None:
    async with world.worker():
        handle = await world.start(Renewed.run, [1.5, 2.5])
        run_id = (await handle.describe()).run_id
        before = await world.waiting(handle, 2)
        latest = world.client.get_workflow_handle(handle.id)
        for _ in range(2):
            await latest.signal("again")
            run_id = await continued(latest, run_id)
            after = await world.waiting(latest, 2)
            assert [one.item_id for one in after] == [one.item_id for one in before]
        for held in before:
            await world.people.decide(held.item_id, Approve())
        texts = await latest.result()

    assert sorted(world.paid) == [1.5, 2.5]
    assert texts == ["paid 1.5", "paid 2.5"]


async def test_a_run_continues_as_new_while_its_tool_runs(world: World) -> None:
    begun = asyncio.Event()

    async def process_refund(amount: float) -> str:
        world.paid.append(amount)
        begun.set()
        await world.go_on.wait()
        return "paid"

    async with world.worker(process_refund):
        handle = await world.start(Renewed.run, [7])
        run_id = (await handle.describe()).run_id
        await world.decide(handle, Approve())
        await asyncio.wait_for(begun.wait(), 30)
        latest = world.client.get_workflow_handle(handle.id)
        await latest.signal("again")
        await continued(latest, run_id)
        world.go_on.set()
        texts = await latest.result()

    assert texts == ["paid"]
    assert len(world.paid) == 1


async def test_a_cancelled_workflow_withdraws_its_calls(world: World) -> None:
    async with world.worker():
        handle = await world.start(Refunds.run, [1, 2])
        held = await world.waiting(handle, 2)
        await handle.cancel()
        await cancelled(handle)
        states = {(await world.people.item(one.item_id)).state for one in held}

    assert states == {ItemState.WITHDRAWN}
    assert world.paid == []


async def test_a_workflow_cancelled_while_it_asks_leaves_no_card(world: World) -> None:
    async with world.holding("/submit") as is_held, world.worker():
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        await asyncio.wait_for(is_held.wait(), 30)
        [listed] = (await world.gate.listing(Listing())).approvals
        await handle.cancel()
        world.go_on.set()
        await cancelled(handle)

    item = await world.people.item(listed.calls[0].id)
    assert item.state is ItemState.WITHDRAWN


@pytest.mark.usefixtures("only_dev")
async def test_an_effect_that_began_is_recorded_although_its_workflow_is_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gated, "HEARTBEAT", timedelta(seconds=1))
    begun = asyncio.Event()

    async def process_refund(amount: float) -> str:
        begun.set()

        await eventually(activity.is_cancelled)
        world.paid.append(amount)
        return "paid"

    async with world.worker(process_refund):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        held = await world.decide(handle, Approve())
        await asyncio.wait_for(begun.wait(), 30)
        await handle.cancel()
        await cancelled(handle)
        await world.reaches(held.item_id, ItemState.EXECUTED)

    assert world.paid == [7]


async def test_a_workflow_is_replayed_at_each_step(world: World) -> None:
    async with world.worker(cached=0):
        handle = await world.start(Refunds.run, [1, 2])
        ended = await world.start(Refund.run, TOOL, {"amount": 7})
        for held in await world.waiting(handle, 2):
            await world.people.decide(held.item_id, Approve())
        outcomes = await handle.result()
        await world.waiting(ended)
        await ended.cancel()
        await cancelled(ended)

    assert [one.kind for one in outcomes] == ["ran", "ran"]
    assert sorted(world.paid) == [1, 2]


@pytest.mark.usefixtures("only_dev")
async def test_a_reset_finds_the_same_approval(world: World) -> None:
    async with world.worker():
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        held = await world.decide(handle, Approve())
        await handle.result()
        # Back to the first task, before the call was submitted.
        answer = await world.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace="default",
                workflow_execution=WorkflowExecution(workflow_id=handle.id),
                workflow_task_finish_event_id=3,
                request_id="again",
                reason="test",
            )
        )
        again = world.client.get_workflow_handle(handle.id, run_id=answer.run_id)
        outcome = await again.result()

    assert world.paid == [7]
    assert outcome["text"] == "paid 7"
    approvals = (await world.people.approval(held.item_id)).items
    assert len(approvals) == 1


async def test_an_outage_and_a_refused_key_are_waited_out(world: World) -> None:
    seen = {status: asyncio.Event() for status in (401, 503)}
    is_down = False

    @web.middleware
    async def broken(request: web.BaseRequest, handler: Any) -> Any:
        if is_down and request.path.endswith("/answers"):
            seen[503].set()
            return web.Response(status=503, text="no gateway")
        answer = await handler(request)
        if answer.status in seen and request.path.endswith("/answers"):
            seen[answer.status].set()
        return answer

    async with serving(world.people, [broken]) as stack:
        world.gate = HttpGate(stack.url, stack.key(agents=["*"]))
        async with world.worker(wakes=False):
            handle = await world.start(Eager.run, 7)
            [held] = await world.waiting(handle)
            is_down = True
            await asyncio.wait_for(seen[503].wait(), 30)
            kept, stack.kept = stack.kept, {}
            is_down = False
            await asyncio.wait_for(seen[401].wait(), 30)
            await world.people.decide(held.item_id, Approve())
            stack.kept.update(kept)
            await handle.result()
        await world.gate.aclose()

    assert world.paid == [7]


class Reviewer:
    """Approves, and after a crash reports the state of the bank."""

    def __init__(self, world: World, handle: Handle, folder: Path) -> None:
        self.world, self.handle = world, handle
        self.paid = folder / "paid"
        self.deaths = folder / "deaths"
        self.known = 0

    async def decide_all(self) -> None:
        """Decide all waiting calls, until cancelled."""
        people = self.world.people
        while True:
            has_died = self.has_died()
            listed = (await self.world.gate.listing(Listing())).approvals
            calls = [call for one in listed for call in one.calls]
            for call in calls:
                if call.state is ItemState.PENDING:
                    await people.decide(call.id, Approve())
                if call.state is ItemState.EXECUTING and has_died:
                    await people.owner_dies(call.id)
            for item_id in await self._in_doubt():
                found = Finding.EXECUTED if self.paid.exists() else Finding.RERUN
                await people.decide(item_id, Reconcile(finding=found))
            await asyncio.sleep(0.05)

    def has_died(self) -> bool:
        """Return whether a worker died since this was asked last."""
        deaths = self.deaths.stat().st_size if self.deaths.exists() else 0
        is_new, self.known = deaths > self.known, deaths
        return is_new

    async def _in_doubt(self) -> list[str]:
        held = await self.world.known(self.handle)
        return [
            one.item_id
            for one in held
            if one.item_id
            and (await self.world.people.item(one.item_id)).state is ItemState.IN_DOUBT
        ]


@pytest.mark.slow
@pytest.mark.usefixtures("only_dev")
@pytest.mark.parametrize("place", sample(PLACES, 1))
@pytest.mark.parametrize("times", [size(deep=3, short=1)])
async def test_a_worker_may_die_at_each_place(
    world: World, tmp_path: Path, place: str, times: int
) -> None:
    paid = tmp_path / "paid"
    target = world.client.service_client.config.target_host
    words = (target, world.stack.url, world.stack.key(agents=["*"]), world.queue)
    handle = await world.start(Refund.run, TOOL, {"amount": 7})

    async def keep_a_worker() -> None:
        while True:
            worker = await asyncio.to_thread(
                Forked,
                "tests.connect.temporal.worker_process",
                *(*words, str(tmp_path), place, str(times)),
            )
            running.append(worker)
            await asyncio.to_thread(worker.wait)

    running: list[Forked] = []
    reviewer = Reviewer(world, handle, tmp_path)
    others = [
        asyncio.create_task(it) for it in (keep_a_worker(), reviewer.decide_all())
    ]
    try:
        async with asyncio.timeout(60):
            outcome = await handle.result()
    finally:
        for task in others:
            task.cancel()
        running[-1].send_signal(9)  # type: ignore[arg-type]
        await asyncio.gather(*others, return_exceptions=True)

    assert paid.read_text("utf-8").splitlines() == ["7"]
    assert outcome.kind == "ran"
    # A reviewer who sees the effect does not allow a second run.
    assert len((tmp_path / "deaths").read_text("utf-8")) in {1, times}


@pytest.mark.usefixtures("only_dev")
async def test_many_workflows_wait_on_one_connection(world: World) -> None:
    count = size(deep=1000, short=20)
    world.stack.api.limits = RateLimits(10**6)
    async with world.worker():
        handles = await asyncio.gather(
            *(world.start(Refund.run, TOOL, {"amount": n}) for n in range(count))
        )

        async def all_wait() -> bool:
            found = [one async for one in each_listed(world.gate, Listing(limit=200))]
            return len(found) == count

        async def holds_none() -> bool:
            described = await handles[-1].describe()
            return not described.raw_description.pending_activities

        await eventually(all_wait, within_s=120)
        await eventually(holds_none)
        waiting = world.stack.api.limits._waits.total()  # pyright: ignore[reportPrivateUsage] - its count
        began = time.perf_counter()
        await world.decide(handles[0], Approve())
        await handles[0].result()
        took_s = time.perf_counter() - began

    assert waiting == 1
    assert took_s < 10


# The waker's log tells people why it waits, and when it goes on.


AWAY = 10
"""Number of requests that fail."""


async def test_a_gateway_that_is_away_is_one_line_and_one_when_it_is_back(
    people: ServiceHarness,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waker, "PAUSE_S", 0.01)
    requests = itertools.count()

    @web.middleware
    async def away_at_first(request: web.BaseRequest, handler: Any) -> Any:
        is_away = next(requests) < AWAY
        return web.Response(status=502) if is_away else await handler(request)

    unused: Any = None
    async with serving(people, [away_at_first]) as stack:
        gate = HttpGate(stack.url, stack.key(agents=["*"]))
        waking = asyncio.create_task(waker.Waker(unused, gate).run())

        await eventually(lambda: len(caplog.records) > 1)
        waking.cancel()
        await asyncio.gather(waking, return_exceptions=True)
        await gate.aclose()

    began, ended = (one.getMessage() for one in caplog.records)
    assert "outage.began of=the gateway" in began
    assert "answered 502" in began
    assert ".py:" not in began
    assert ended == "outage.ended of=the gateway"
