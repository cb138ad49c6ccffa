"""A start that loses the store at any of its steps waits for it and goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from keyturn.gateway.embed import Keyturn
from keyturn.gateway.store.connection import usable
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.connection.servers import Command, Reply
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import RULES, Stack


class Failover:
    """A store that fails one call of the starting task.

    Attributes:
        asked: number of calls so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int = 0) -> None:
        self.asked = 0
        mine, ask = asyncio.current_task(), Connection._ask  # pyright: ignore[reportPrivateUsage] - the lowest of all ways to ask

        async def failing(conn: Connection, commands: Sequence[Command]) -> list[Reply]:
            # Loops in the background are not part of the start, and a lease that is not
            # given back ends by itself.
            if asyncio.current_task() is mine and "free" not in commands[0]:
                self.asked += 1
                if self.asked == at:
                    raise RedisConnectionError("No master at the moment.")
            return await ask(conn, commands)

        monkeypatch.setattr(Connection, "_ask", failing)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usable, "_LOOK_S", 0.0)


async def whichever_call_fails(
    starts: Callable[[int], Awaitable[int]],
    caplog: pytest.LogCaptureFixture,
    *,
    at_least: int,
) -> None:
    """Start once for each of the calls, which fails then."""
    # The second start, which finds everything as later ones do.
    await starts(0)
    count = await starts(0)

    assert count >= at_least
    for at in range(1, count + 1):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            await starts(at)
        assert caplog.text.count("store.waiting") == 1, at


async def test_a_gateway_starts_whichever_call_fails(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def starts(at: int) -> int:
        with pytest.MonkeyPatch.context() as patch:
            failover = Failover(patch, at)
            async with Keyturn(
                policy=RULES, url=store.conn.url, data_dir=tmp_path, insecure_dev=True
            ):
                return failover.asked

    await whichever_call_fails(starts, caplog, at_least=8)


async def test_a_bot_starts_whichever_call_fails(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async def starts(at: int) -> int:
        with pytest.MonkeyPatch.context() as patch:
            failover = Failover(patch, at)
            async with stack.running():
                return failover.asked

    async with Sandbox() as sandbox:
        stack = Stack(sandbox, store)
        await whichever_call_fails(starts, caplog, at_least=3)
