"""Each fenced checkpoint write is whole, and apart from the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.fence_tables import PostgresFence, Put, fenced
from keyturn.gateway.store.scripts.fences import Lease, holding
from tests.resume.ledgers import place_of, rows

REFUSING = {
    "sqlite": "CREATE TRIGGER refuse BEFORE INSERT ON writes WHEN new.channel = 'bad' "
    "BEGIN SELECT raise(ABORT, 'bad'); END",
    "postgres": "ALTER TABLE checkpoint_writes ADD CONSTRAINT bad "
    "CHECK (channel <> 'bad')",
}


async def _never(_lease: Lease, _above: int) -> int:
    raise LeaseLost


def lease_of(thread: str, fence: int = 2) -> Lease:
    """Return a lease that lives long enough."""
    return Lease(
        f"lease:{thread}", "me", fence=fence, ends_s=now_s() + 60, renumber=_never
    )


@dataclass
class Database:
    """A database of checkpoints, by the saver that is opened on it."""

    kind: str
    place: str
    saver: BaseCheckpointSaver[Any]
    clone: BaseCheckpointSaver[Any]
    """The same, with fenced writes."""

    def run(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement in another session."""
        return rows(self.place, statement)

    def written(self, thread: str) -> list[object]:
        """Return the tasks whose results a thread has."""
        table = "writes" if self.kind == "sqlite" else "checkpoint_writes"
        query = f"SELECT task_id FROM {table} WHERE thread_id = '{thread}' ORDER BY 1"  # noqa: S608 - of this file
        return [task for (task,) in self.run(query)]

    async def known(self, *leases: Lease) -> None:
        """Store the fences of these leases in the database."""
        for lease in leases:
            with holding(lease):
                await self.clone.aget_tuple(at(lease))

    async def put(self, lease: Lease, task: str, *channels: str) -> None:
        """Write a task's result to these channels, under a lease."""
        writes = [(channel, task) for channel in channels or ("messages",)]
        with holding(lease):
            await self.clone.aput_writes(at(lease), writes, task)


def at(lease: Lease) -> RunnableConfig:
    """Return the place of a checkpoint in the thread of a lease."""
    thread = lease.key.partition(":")[2]
    place = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": "c1"}
    return {"configurable": place}


@pytest.fixture(
    params=[
        "sqlite",
        "postgres",
        "postgres without pipelines",
        "postgres by one connection",
    ]
)
async def database(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: str
) -> AsyncGenerator[Database]:
    kind, _, how = request.param.partition(" ")
    place = place_of(kind, tmp_path, postgres)
    async with open_checkpoints(place) as saver:
        if how == "without pipelines":
            saver.supports_pipeline = False  # type: ignore[attr-defined]  # as an old libpq has it
        if how == "by one connection":
            # As a program's own saver, which has no pool.
            async with AsyncPostgresSaver.from_conn_string(place) as own:
                yield Database(kind, place, own, fenced(own))
            return
        yield Database(kind, place, saver, fenced(saver))


async def both(*work: Awaitable[None]) -> list[BaseException | None]:
    return await asyncio.gather(*work, return_exceptions=True)


async def test_a_lost_lease_writes_nothing_and_fails_alone(database: Database) -> None:
    late, newer, other = lease_of("t1"), lease_of("t1", 3), lease_of("t2")
    await database.known(late, newer, other)

    found = await both(
        database.put(late, "late"),
        database.put(newer, "newer"),
        database.put(other, "other"),
    )

    assert [type(one) for one in found] == [LeaseLost, type(None), type(None)]
    assert database.written("t1") == ["newer"]
    assert database.written("t2") == ["other"]


async def test_a_database_from_an_older_copy_takes_no_write_that_it_did_not_read_for(
    database: Database,
) -> None:
    lease = lease_of("t1")
    await database.known(lease)
    database.run("UPDATE keyturn_fences SET fence = 1")

    with pytest.raises(LeaseLost):
        await database.put(lease, "a")

    assert database.written("t1") == []


async def test_a_failed_write_leaves_nothing_and_is_alone(database: Database) -> None:
    lease = lease_of("t1")
    await database.known(lease)
    # It refuses after the first row of the write was inserted.
    database.run(REFUSING[database.kind])

    found = await both(
        database.put(lease, "a"),
        database.put(lease, "b", "messages", "bad"),
        database.put(lease, "c"),
    )

    assert ["bad" in str(one) for one in found if one] == [True]
    assert database.written("t1") == ["a", "c"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_cancelled_caller_does_not_cancel_sqlite(database: Database) -> None:
    lease, saver = lease_of("t1"), database.saver
    await database.known(lease)
    async with saver.lock:  # type: ignore[attr-defined]
        gone = asyncio.create_task(database.put(lease, "a"))
        stays = asyncio.create_task(database.put(lease, "b"))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
    await stays

    assert database.written("t1") == ["a", "b"]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_a_cancelled_postgres_write_leaves_nothing(database: Database) -> None:
    inside, saver, fence = asyncio.Event(), database.saver, PostgresFence()

    class Stuck(Put[None]):
        async def by(self, saver: BaseCheckpointSaver[Any] | None) -> None:
            await super().by(saver)
            inside.set()
            await asyncio.Event().wait()

    lease = lease_of("t1")
    await fence.raise_fence(saver, lease)
    given: Sequence[Any] = (at(lease), [("messages", 1)], "task")
    put = Stuck("aput_writes", saver.aput_writes, given)
    writing = asyncio.create_task(fence.write(saver, lease, at(lease), put))
    await inside.wait()

    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing

    assert database.written("t1") == []
    await database.put(lease, "next")
    assert database.written("t1") == ["next"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_fence_keeps_what_another_caller_began_and_how_sqlite_writes(
    database: Database,
) -> None:
    conn: Any = cast("Any", database.saver).conn
    # By name: an older checkpointer has no column for the path of a task.
    into = "thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value"
    await conn.execute(
        f"INSERT INTO writes ({into}) VALUES ('t2', '', 'c1', 'task', 0, 'm', '', '')"  # noqa: S608 - of this file
    )

    await database.known(lease_of("t1"))

    full = 2
    assert database.written("t2") == ["task"]
    assert not conn.in_transaction
    assert await conn.execute_fetchall("PRAGMA synchronous") == [(full,)]
