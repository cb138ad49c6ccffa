"""Give each test one Agent Server, a gateway, and people who decide."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest

from keyturn.gateway.store.store import Store
from tests.agent_server.bench import GRAPHS, Bench, bench
from tests.agent_server.dev_server import DevServer, Process, connected, dev_server


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    """Start the server; it serves all tests of this process."""
    folder = tmp_path_factory.mktemp("agent-server")
    with dev_server(folder, {one: f"graphs.py:{one}" for one in GRAPHS}) as started:
        yield started


@pytest.fixture
async def server(process: Process) -> AsyncGenerator[DevServer]:
    """Connect a test to the server."""
    async with connected(process) as found:
        yield found


@pytest.fixture
async def on(server: DevServer, store: Store) -> AsyncGenerator[Bench]:
    """Connect the server with a gateway of the test."""
    async with bench(server, store) as found:
        yield found
