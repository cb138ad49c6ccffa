"""Start Temporal's servers from the installed packages, with a gateway over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from keyturn.connect.gate import HttpGate
from keyturn.connect.temporal import Held
from keyturn.connect.temporal.plugin import KeyturnPlugin
from keyturn.gateway.approvals.decisions import Decision
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.conftest import eventually
from tests.connect.temporal.flows import CURRENT
from tests.levels import is_deep
from tests.service.harness import ServiceHarness

PROGRAMS = Path(sys.executable).parent
QUEUE = "refunds"
_STOPS_WITHIN_S = 20.0
Handle = WorkflowHandle[Any, Any]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests on the development server, in a deep run also on the other one.

    The server that skips time once refused a worker's answer ("invalid history builder
    state for action") and never asked again, so the workflow hung.
    """
    names = metafunc.fixturenames
    ways = [one for one in ("dev", "skipping") if f"only_{one}" in names]
    if "server" in names:
        usual = ["dev", "skipping"] if is_deep() else ["dev"]
        metafunc.parametrize("server", ways or usual, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the development server in one process of the tests."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("temporal"))


@pytest.fixture
def only_dev() -> None:
    """Run a test on the development server, whose history has what a real one has."""


@pytest.fixture
def only_skipping() -> None:
    """Run a test on the server that skips time."""


@pytest.fixture(scope="session")
def dev_server() -> Generator[str]:
    """Start a development server; give its address."""
    with asyncio.Runner() as runner:
        starting: Any = WorkflowEnvironment.start_local(  # pyright: ignore[reportUnknownMemberType] - as Temporal types it
            dev_server_existing_path=str(PROGRAMS / "temporal"),
            dev_server_log_level="error",
        )
        started = runner.run(starting)
        yield started.client.service_client.config.target_host
        runner.run(started.shutdown())


@pytest.fixture
async def server(
    request: pytest.FixtureRequest, dev_server: str
) -> AsyncGenerator[WorkflowEnvironment]:
    """Give one of Temporal's two servers."""
    if request.param == "dev":
        yield WorkflowEnvironment.from_client(await Client.connect(dev_server))
        return
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(PROGRAMS / "temporal-test-server")
    ) as started:
        yield started


@dataclass
class World:
    """A Temporal server, a gateway, and people.

    ``paid`` has the effects of the tool. Whatever a test holds back waits for
    ``go_on``, so that it ends with the worker, also when the test fails.
    """

    env: WorkflowEnvironment
    people: ServiceHarness
    stack: ApiStack
    gate: HttpGate
    queue: str = field(default_factory=lambda: f"refunds-{uuid4()}")
    paid: list[float] = field(default_factory=list[float])
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def client(self) -> Client:
        return self.env.client

    async def process_refund(self, amount: float) -> str:
        self.paid.append(amount)
        return f"paid {amount}"

    @asynccontextmanager
    async def worker(
        self,
        *tools: Callable[..., Any],
        cached: int = 1000,
        **options: Any,
    ) -> AsyncGenerator[None]:
        """Run a worker; by default its tool refunds."""
        plugin = KeyturnPlugin(
            *(tools or (self.process_refund,)), gateway=self.gate, **options
        )
        worker = Worker(
            self.client,
            task_queue=self.queue,
            plugins=[plugin],
            workflows=CURRENT,
            max_cached_workflows=cached,
            # The gateway is in this process, and has to answer in time.
            max_concurrent_activities=20,
        )
        await worker.__aenter__()
        try:
            yield
        finally:
            self.go_on.set()
            # On a busy machine, the SDK's core sometimes never finishes its shutdown
            # while a workflow is open: twice in 48 runs of one test.
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOPS_WITHIN_S):
                    await worker.__aexit__(None, None, None)

    @asynccontextmanager
    async def holding(self, path: str) -> AsyncGenerator[asyncio.Event]:
        """Use a gateway whose answers to a path wait for ``go_on``.

        The event is set when the gateway has an answer that waits.
        """
        is_held = asyncio.Event()

        @web.middleware
        async def middleware(request: web.BaseRequest, handler: Any) -> Any:
            answer = await handler(request)
            if request.path.endswith(path) and not self.go_on.is_set():
                is_held.set()
                await self.go_on.wait()
            return answer

        async with serving(self.people, [middleware]) as stack:
            self.gate = HttpGate(stack.url, stack.key(agents=["*"]))
            try:
                yield is_held
            finally:
                await self.gate.aclose()

    async def start(self, workflow: Any, *args: Any, **options: Any) -> Handle:
        found: Handle = await self.client.start_workflow(
            workflow, args=args, id=f"w-{uuid4()}", task_queue=self.queue, **options
        )
        return found

    async def known(self, handle: Handle) -> list[Held]:
        """Return the open calls of a workflow; none while no worker answers."""
        try:
            found: list[Held] = await handle.query(
                "keyturn_waiting",
                result_type=list[Held],
                rpc_timeout=timedelta(seconds=1),
            )
        except RPCError:
            return []
        return found

    async def waiting(self, handle: Handle, count: int = 1) -> list[Held]:
        """Wait until the gateway knows all calls of a workflow."""
        found: list[Held] = []

        async def are_known() -> bool:
            nonlocal found
            found = await handle.query("keyturn_waiting", result_type=list[Held])
            return len(found) == count and all(held.item_id for held in found)

        await eventually(are_known)
        return found

    async def decide(self, handle: Handle, decision: Decision) -> Held:
        """Decide the only call of a workflow."""
        [held] = await self.waiting(handle)
        await self.people.decide(held.item_id, decision)
        return held

    async def reaches(self, item_id: str, state: ItemState) -> None:
        """Wait for a state of a call."""

        async def is_there() -> bool:
            return (await self.people.item(item_id)).state is state

        await eventually(is_there)

    async def was_updated(self, handle: Handle) -> None:
        """Wait until a workflow was woken."""

        async def is_there() -> bool:
            return bool(await self.events(handle, "WORKFLOW_EXECUTION_UPDATE_ACCEPTED"))

        await eventually(is_there)

    async def events(self, handle: Handle, *kinds: str) -> int:
        """Count the events of a workflow's history, of all kinds or some."""
        history = await handle.fetch_history()
        names = [EventType.Name(one.event_type) for one in history.events]
        return sum(not kinds or name[len("EVENT_TYPE_") :] in kinds for name in names)


@pytest.fixture
async def world(server: WorkflowEnvironment, store: Store) -> AsyncGenerator[World]:
    """Give a server, a gateway and people."""
    people = ServiceHarness(store)
    async with serving(people) as stack:
        gate = HttpGate(stack.url, stack.key(agents=["*"]))
        yield World(server, people, stack, gate)
        await gate.aclose()
