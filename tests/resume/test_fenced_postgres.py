"""A fenced write to Postgres is one transaction and waits for the server once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.pq import TransactionStatus

from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.resume.fence_tables import PostgresFence, Put
from keyturn.gateway.store.scripts.fences import Lease
from tests.resume.postgres_server import fresh_database

AT: RunnableConfig = {
    "configurable": {"thread_id": "t1", "checkpoint_ns": "", "checkpoint_id": "c1"}
}
WRITES = [("messages", ["hello"]), ("count", 1)]

Saver = BaseCheckpointSaver[Any]


async def unmoved(lease: Lease, above: int) -> int:
    """Give a lease the next fence."""
    del lease
    return above + 1


def held(fence: int) -> Lease:
    """Return a lease of one thread, under this fence."""
    return Lease("lease:t1", "me", fence=fence, ends_s=now_s() + 60, renumber=unmoved)


@pytest.fixture
def fence() -> PostgresFence:
    """Give what keeps the fences of one saver."""
    return PostgresFence()


@pytest.fixture(params=["pipeline", "no pipeline"])
async def saver(
    request: pytest.FixtureRequest, postgres: str
) -> AsyncGenerator[AsyncPostgresSaver]:
    """Give a saver of one connection, by a libpq that has pipelines or has not."""
    url = fresh_database(postgres)
    async with AsyncPostgresSaver.from_conn_string(url) as found:
        await found.setup()
        found.supports_pipeline = request.param == "pipeline"
        yield found


def connection_of(saver: AsyncPostgresSaver) -> psycopg.AsyncConnection[Any]:
    """Return the connection that the saver has to itself."""
    assert isinstance(saver.conn, psycopg.AsyncConnection)
    return saver.conn


def status(saver: AsyncPostgresSaver) -> TransactionStatus:
    """Return whether the saver's connection is inside of a transaction."""
    return connection_of(saver).info.transaction_status


async def written(saver: AsyncPostgresSaver) -> int:
    """Count what tasks wrote."""
    found = await connection_of(saver).execute("TABLE checkpoint_writes")
    return found.rowcount


def writes(saver: AsyncPostgresSaver) -> Put[None]:
    """Return a write of two values."""
    return Put("aput_writes", saver.aput_writes, (AT, WRITES, "task"))


@pytest.mark.parametrize("known", [2, 4])
async def test_a_holder_of_another_fence_writes_nothing_and_spoils_nothing(
    saver: AsyncPostgresSaver, fence: PostgresFence, known: int
) -> None:
    """A smaller one is known where the database was put back to an older copy."""
    await fence.raise_fence(saver, held(known))

    with pytest.raises(LeaseLost):
        await fence.write(saver, held(3), AT, writes(saver))

    assert await written(saver) == 0
    assert status(saver) is TransactionStatus.IDLE
    await fence.write(saver, held(known), AT, writes(saver))
    assert await written(saver) == len(WRITES)


async def test_a_write_that_fails_halfway_leaves_nothing(
    saver: AsyncPostgresSaver, fence: PostgresFence
) -> None:
    class Half(Put[None]):
        async def by(self, saver: Saver | None) -> None:
            await super().by(saver)
            raise ValueError("cannot be serialized")

    mine = held(3)
    await fence.raise_fence(saver, mine)

    with pytest.raises(ValueError, match="serialized"):
        await fence.write(
            saver, mine, AT, Half("aput_writes", saver.aput_writes, (AT, WRITES, "t"))
        )

    assert await written(saver) == 0
    assert status(saver) is TransactionStatus.IDLE


async def test_a_write_that_is_cancelled_halfway_leaves_nothing(
    saver: AsyncPostgresSaver, fence: PostgresFence
) -> None:
    inside = asyncio.Event()

    class Stuck(Put[None]):
        async def by(self, saver: Saver | None) -> None:
            await super().by(saver)
            inside.set()
            await asyncio.Event().wait()

    mine = held(3)
    await fence.raise_fence(saver, mine)
    put = Stuck("aput_writes", saver.aput_writes, (AT, WRITES, "task"))
    writing = asyncio.create_task(fence.write(saver, mine, AT, put))
    await inside.wait()

    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing

    assert await written(saver) == 0
    assert status(saver) is TransactionStatus.IDLE
