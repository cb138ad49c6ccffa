"""Give tests of connectors a gateway: in this process, and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from keyturn.connect.gate import Gate, HttpGate
from keyturn.connect.local_gate import LocalGate
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import Desk
from tests.api.api_stack import serving
from tests.service.harness import ServiceHarness


@asynccontextmanager
async def gate_over_http(harness: ServiceHarness) -> AsyncGenerator[HttpGate]:
    """Serve the harness's store, and connect with a key of every agent."""
    async with serving(harness) as stack:
        gate = HttpGate(stack.url, stack.key(agents=["*"]))
        yield gate
        await gate.aclose()


@pytest.fixture
def people(store: Store) -> ServiceHarness:
    """Decide as reviewers."""
    return ServiceHarness(store)


@pytest.fixture(params=["local", "http"])
async def gate(
    request: pytest.FixtureRequest, people: ServiceHarness
) -> AsyncGenerator[Gate]:
    """Connect to the gateway in each of the two ways."""
    if request.param == "http":
        async with gate_over_http(people) as over_http:
            yield over_http
        return
    local = LocalGate(people.store, lambda: people.policy)
    yield local
    await local.aclose()


@pytest.fixture
async def desk(store: Store) -> AsyncGenerator[Desk]:
    async with Desk.on(store) as opened:
        yield opened


class Attempts:
    """A first attempt, and how to make more."""

    def __init__(
        self, first: asyncio.Task[list[str]], more: Callable[[], Awaitable[list[str]]]
    ) -> None:
        self._first, self._more = first, more

    async def outputs(self) -> list[str]:
        return await self._first

    async def replay(self) -> list[str]:
        return await self._more()

    async def stop(self) -> None:
        self._first.cancel()
        with suppress(asyncio.CancelledError):
            await self._first
