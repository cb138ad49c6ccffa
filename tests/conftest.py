"""Give every test a real, empty, durable Valkey, and hold it to its promises."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import settings

from gateway.store.connection import Connection, Reply, text
from gateway.store.engine import EmbeddedEngine
from gateway.store.keys import is_permanent
from gateway.store.store import Store

pytest_plugins = ["pytester"]

WAIT_S = 30.0

# How long an example takes says something about the machine and nothing about the code;
# what has to be fast is measured in bench/.
settings.register_profile("twokey", deadline=None)
settings.load_profile("twokey")


@pytest.fixture(scope="session")
def valkey_url() -> Generator[str]:
    """Start one embedded Valkey for the session, as the product does."""
    folder = Path(tempfile.mkdtemp(prefix="tk-test-"))
    with EmbeddedEngine(folder) as engine:
        yield engine.url
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def store(valkey_url: str) -> AsyncGenerator[Store]:
    """Give an empty store; afterwards no key may live for ever undeclared."""
    opened = Store(valkey_url, lease_ms=2000)
    await opened.conn.command("FLUSHALL")
    yield opened
    leaked = await leaked_keys(opened.conn)
    await opened.close()
    assert not leaked, f"keys without a lifetime: {leaked}"


async def leaked_keys(conn: Connection) -> list[str]:
    """Return keys that live for ever and are not declared permanent."""
    names = [text(name) for name in listed(await conn.command("KEYS", "*"))]
    return [
        name
        for name in names
        if not is_permanent(name) and await conn.command("PTTL", name) == -1
    ]


def listed(reply: Reply) -> list[Reply]:
    """Return a reply that is a list."""
    assert isinstance(reply, list)
    return cast("list[Reply]", reply)


async def eventually(
    condition: Callable[[], Awaitable[bool]], *, within_s: float = WAIT_S
) -> None:
    """Wait until a condition holds; fail when it does not in time."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - the condition is outside
            await asyncio.sleep(0.02)
