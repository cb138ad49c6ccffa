"""Temporal's connector keeps what every connector promises."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from keyturn.connect.temporal import Carry
from keyturn.connect.temporal.plugin import KeyturnPlugin
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import (
    EXECUTED,
    Behaviour,
    Call,
    Desk,
    Run,
    killed_in_the_effect,
    name_of,
)
from tests.connect.temporal.conftest import Handle
from tests.connect.temporal.flows import Proposals

# Death in the effect needs a real process: see test_attempts.py.
PROMISES = [one for one in EXECUTED if one is not killed_in_the_effect]


@dataclass
class Workflows:
    """Each proposal is a workflow; ``opened`` has the workers."""

    desk: Desk
    env: WorkflowEnvironment
    opened: AsyncExitStack
    queue: str = field(default_factory=lambda: f"adapter-{uuid4()}")

    async def propose(self, calls: Sequence[Call]) -> Run:
        made = [(call.tool, call.args) for call in calls]
        run = ProposalsRun(self, made, AsyncExitStack(), await self.start(made))
        await run.work()
        return run

    async def start(self, *args: object) -> Handle:
        found: Handle = await self.env.client.start_workflow(
            Proposals.run, args=args, id=f"p-{uuid4()}", task_queue=self.queue
        )
        return found


@dataclass
class ProposalsRun:
    """A workflow, and the worker that runs it."""

    driver: Workflows
    calls: list[tuple[str, JsonObject]]
    worker: AsyncExitStack
    handle: Handle

    async def work(self) -> None:
        """Start a worker."""
        bank, desk = self.driver.desk.bank, self.driver.desk
        self.worker = await self.driver.opened.enter_async_context(AsyncExitStack())
        await self.worker.enter_async_context(
            Worker(
                self.driver.env.client,
                task_queue=self.driver.queue,
                workflows=[Proposals],
                plugins=[KeyturnPlugin(bank.pay, bank.wipe, gateway=desk.gate)],
            )
        )
        self.is_at_work = True

    async def outputs(self) -> list[str]:
        found: list[str] = await self.handle.result()
        return found

    async def replay(self) -> list[str]:
        """Go on after a death; else make the calls again under the same names."""
        if not self.is_at_work:
            await self.work()
            return await self.outputs()
        info = await self.handle.describe()
        carry = Carry(f"{info.id}/{info.run_id}", 0, [])
        again = await self.driver.start(self.calls, carry)
        found: list[str] = await again.result()
        return found

    async def stop(self) -> None:
        await self.worker.aclose()
        self.is_at_work = False


@pytest.mark.usefixtures("only_dev")
@pytest.mark.parametrize("behaviour", PROMISES, ids=name_of)
async def test_it_keeps_what_connectors_promise(
    behaviour: Behaviour, store: Store, server: WorkflowEnvironment
) -> None:
    async with Desk.on(store) as desk, AsyncExitStack() as opened:
        async with asyncio.timeout(60):
            await behaviour(desk, Workflows(desk, server, opened))
