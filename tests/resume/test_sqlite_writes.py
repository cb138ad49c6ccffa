"""Each checkpoint write in SQLite is whole, fenced, and apart from the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableConfig

from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.resume.checkpoints import SqliteSaver, open_checkpoints
from keyturn.gateway.resume.fence_tables import fenced
from keyturn.gateway.store.scripts.fences import Lease, holding


async def _never(_lease: Lease, fence: int) -> int:
    raise LeaseLost


def lease_of(thread: str, fence: int = 2) -> Lease:
    """Return a lease that lives long enough."""
    return Lease(
        f"lease:{thread}", "me", fence=fence, ends_s=now_s() + 60, renumber=_never
    )


def place(thread: str, checkpoint: str = "c1") -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": thread,
            "checkpoint_ns": "",
            "checkpoint_id": checkpoint,
        }
    }


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[tuple[SqliteSaver, Any]]:
    """Give a saver and its fenced clone."""
    async with open_checkpoints(str(path / "checkpoints.db")) as plain:
        saver = cast("SqliteSaver", plain)
        yield saver, fenced(saver)


async def written(saver: SqliteSaver, thread: str) -> list[tuple[str, Any]]:
    """Return what tasks wrote in a thread."""
    query = "SELECT task_id, type, value FROM writes WHERE thread_id = ? ORDER BY 1"
    rows = await saver.conn.execute_fetchall(query, (thread,))
    return [
        (str(row[0]), saver.serde.loads_typed((str(row[1]), row[2]))) for row in rows
    ]


async def put(
    clone: Any, lease: Lease, task: str, writes: Sequence[tuple[str, Any]]
) -> None:
    with holding(lease):
        await clone.aput_writes(place(lease.key.partition(":")[2]), writes, task)


async def known(clone: Any, *leases: Lease) -> None:
    """Store these leases in the database."""
    for lease in leases:
        with holding(lease):
            await clone.aget_tuple(place(lease.key.partition(":")[2]))


async def test_a_lost_lease_keeps_nothing_and_takes_no_other_along(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (saver, clone):
        late, newer, other = lease_of("t1"), lease_of("t1", 3), lease_of("t2")
        await known(clone, late, newer, other)

        found = await asyncio.gather(
            put(clone, late, "late", [("messages", 1)]),
            put(clone, newer, "newer", [("messages", 2)]),
            put(clone, other, "other", [("messages", 3)]),
            return_exceptions=True,
        )

        assert [type(one) for one in found] == [LeaseLost, type(None), type(None)]
        assert await written(saver, "t1") == [("newer", 2)]
        assert await written(saver, "t2") == [("other", 3)]


async def test_a_write_that_fails_leaves_nothing_and_takes_no_other_along(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (saver, clone):
        lease = lease_of("t1")
        await known(clone, lease)
        # Refused by the database after the first row of the write was inserted.
        await saver.conn.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON writes WHEN new.channel = 'bad' "
            "BEGIN SELECT raise(ABORT, 'no'); END"
        )

        found = await asyncio.gather(
            put(clone, lease, "a", [("messages", 1)]),
            put(clone, lease, "b", [("messages", 2), ("bad", 3)]),
            put(clone, lease, "c", [("messages", 4)]),
            return_exceptions=True,
        )

        assert [str(one) for one in found if one] == ["no"]
        assert await written(saver, "t1") == [("a", 1), ("c", 4)]


async def test_a_write_ends_without_the_caller_that_was_cancelled(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (saver, clone):
        lease = lease_of("t1")
        await known(clone, lease)
        async with saver.lock:
            gone = asyncio.create_task(put(clone, lease, "a", [("messages", 1)]))
            stays = asyncio.create_task(put(clone, lease, "b", [("messages", 2)]))
            await asyncio.sleep(0)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        await stays

        assert await written(saver, "t1") == [("a", 1), ("b", 2)]


async def test_a_fence_keeps_what_somebody_else_had_begun_to_write(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (saver, clone):
        # By name: an older checkpointer has no column for the path of a task.
        row = ("t2", "", "c1", "task", 0, "messages", "null", b"")
        into = "thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type"
        await saver.conn.execute(
            f"INSERT INTO writes ({into}, value) VALUES (?,?,?,?,?,?,?,?)",  # noqa: S608 - the names stand above
            row,
        )
        await known(clone, lease_of("t1"))

        assert [task for task, _ in await written(saver, "t2")] == ["task"]
        assert not saver.conn.in_transaction
