"""Give every test a real, empty, durable Valkey, and hold it to its promises."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path

import pytest

from tests.lifetimes import wrong_lifetimes
from tests.patience import WAIT_S, be_patient
from twokey.gateway.store.connection import Connection
from twokey.gateway.store.engine import EmbeddedEngine
from twokey.gateway.store.store import Store

pytest_plugins = ["pytester", "tests.levels"]

DURABLE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
}


@pytest.fixture(scope="session", autouse=True)
def slack_waits() -> Generator[pytest.MonkeyPatch]:
    """Wait longer for answers in this process."""
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch)
        yield patch


@pytest.fixture(scope="session")
def valkey_url() -> Generator[str]:
    """Start one embedded Valkey for each process of tests, as the product does.

    ``TWOKEY_TEST_REDIS`` names another server instead. Everything on it is deleted, and
    it is made as durable as Twokey demands.
    """
    named = os.environ.get("TWOKEY_TEST_REDIS")
    if named:
        # The tests of one process empty the store while another's are using it.
        assert "PYTEST_XDIST_WORKER" not in os.environ, "TWOKEY_TEST_REDIS: use -n 0"
        asyncio.run(make_durable(named))
        yield named
        return
    folder = Path(tempfile.mkdtemp(prefix="tk-test-"))
    with EmbeddedEngine(folder) as engine:
        yield engine.url
    shutil.rmtree(folder, ignore_errors=True)


async def make_durable(url: str) -> None:
    """Give a server the settings without which Twokey refuses it."""
    conn = Connection(url)
    for name, value in DURABLE.items():
        await conn.command("CONFIG SET", name, value)
    await conn.close()


@pytest.fixture
async def store(valkey_url: str) -> AsyncGenerator[Store]:
    """Give an empty store; afterwards each key lives as long as it is needed."""
    opened = Store(valkey_url, lease_ms=2000)
    await opened.conn.command("FLUSHALL")
    yield opened
    wrong = await wrong_lifetimes(opened.conn)
    await opened.close()
    assert not wrong, "; ".join(wrong)


async def eventually(
    condition: Callable[[], Awaitable[bool]], *, within_s: float = WAIT_S
) -> None:
    """Wait until a condition holds; fail when it does not in time."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - the condition is outside
            await asyncio.sleep(0.02)
