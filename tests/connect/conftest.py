"""Give tests of connectors a gateway: in this process, and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from keyturn.connect.gate import Gate, HttpGate
from keyturn.connect.local_gate import LocalGate
from keyturn.gateway.store.store import Store
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
