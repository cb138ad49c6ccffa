"""Compare fencing tokens in a checkpoint database before each write.

Each class has the same two methods. ``raise_fence`` stores a new holder's fence, where
the database has a table for it, and returns the newest one. ``write`` compares the
fence and writes.
"""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from twokey.gateway.errors import LeaseLost
from twokey.gateway.resume.sqlite_writes import (
    FENCE,
    SqliteWrites,
    in_thread,
    read_apart,
    without_waiting_for_the_disk,
)
from twokey.gateway.store.fences import Lease

LEASE_KEY, FENCE_KEY = "twokey_lease", "twokey_fence"
"""Checkpoint metadata: the lease that a checkpoint was written under, and its fence."""

Saver = BaseCheckpointSaver[Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Put(Generic[T]):
    """One write: a method of a saver, by its name, and what it is called with.

    ``plain`` is the saver's own, unfenced method. ``values`` are what it serializes.
    """

    name: str
    plain: Callable[..., Awaitable[T]]
    given: Sequence[Any]
    values: Sequence[object] = ()

    async def by(self, saver: Saver | None) -> T:
        """Write through a saver; through the saver itself by its own method."""
        # A decorated method may have another name of its own.
        same = self.plain if saver is None else getattr(saver, self.name)
        return cast("T", await same(*self.given))


_TABLE = (
    "CREATE TABLE IF NOT EXISTS twokey_fences "
    "(lease TEXT PRIMARY KEY, fence BIGINT NOT NULL)"
)
POSTGRES = "langgraph.checkpoint.postgres.aio"
_SQLITE = {
    ("langgraph.checkpoint.sqlite.aio", "AsyncSqliteSaver"),
    ("twokey.gateway.resume.sqlite", "SqliteSaver"),
}
_PAUSE_MS = 15_000
"""How long a writer that was paused in its transaction may hold up others."""
# The bytes of "twofence": any number that no other advisory lock of the database uses.
_CREATE_LOCK = 0x74776F66656E6365
_MAY_NOT, _IS_LOCKED, _DIVISION_BY_ZERO = "42501", "55P03", "22012"
"""SQLSTATE: the user lacks a privilege; a lock was not given within `lock_timeout`."""

# greatest(): a holder that comes late must not lower a later one's fence. The newest is
# returned, so that it learns of that in the same statement.
_RAISE = (
    "INSERT INTO twokey_fences AS kept (lease, fence) VALUES (%s, %s) "
    "ON CONFLICT (lease) DO UPDATE "
    "SET fence = greatest(kept.fence, excluded.fence) RETURNING fence"
)
# A paused client leaves its session waiting for it. Postgres does not end that by its
# `idle_in_transaction_session_timeout`: the time is not counted within a pipeline, nor
# after the message with which psycopg ends one.
_END_PAUSED = (
    "SELECT count(pg_terminate_backend(pid)) "
    "FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE relation = 'twokey_fences'::regclass AND mode = 'RowShareLock' "
    "AND wait_event = 'ClientRead' "
    "AND greatest(query_start, state_change) "
    "< clock_timestamp() - %s * interval '1 millisecond'"
)


# Divides by zero, which ends the transaction, unless the fence is still ours. FOR
# SHARE: writes under one fence run side by side, but a new holder's fence waits until
# they are committed. Equal, not only as great: a database that was put back to an older
# copy has lost our fence, and what we read from it.
_HOLD = (
    "SELECT 1 / count(*) FROM (SELECT 1 FROM twokey_fences "
    "WHERE lease = %s AND fence = %s FOR SHARE) AS held"
)


class NoFenceTable(Exception):
    """This user of the database may not create the table, and nobody else did."""


class PostgresFence:
    """Fences beside the checkpoints of an `AsyncPostgresSaver`.

    A write locks its lease's row until it is committed, so a new holder that writes
    its fence waits for the writes under the old one, and all later ones are refused.
    Sessions that do not go on with their write are ended by who waits for them.
    """

    def __init__(self) -> None:
        self._has_table = False

    async def raise_fence(self, saver: Saver, lease: Lease) -> int:
        """Keep a new holder's fence; return the newest one.

        Raises:
            NoFenceTable: there is no table for it.
        """
        async with _connection(saver) as conn:
            if not self._has_table:
                await _create(conn)
                self._has_table = True
            try:
                return await _raise_fence(saver, conn, lease)
            except Exception as error:
                # By SQLSTATE: the driver is optional, so its classes cannot be named
                # here.
                if getattr(error, "sqlstate", "") != _IS_LOCKED:
                    raise
            # Somebody has locked the row for all of `lock_timeout`. One more attempt
            # after this; a second time-out is raised, and the run is retried like one
            # without a database.
            await conn.execute(_END_PAUSED, (_PAUSE_MS,))
            return await _raise_fence(saver, conn, lease)

    async def write(
        self, saver: Saver, lease: Lease, config: RunnableConfig, put: Put[T]
    ) -> T:
        """Write in one transaction with the look at the fence.

        Raises:
            LeaseLost: there is a newer one; nothing was written.
        """
        del config
        module: Any = importlib.import_module(POSTGRES)
        try:
            async with (
                _connection(saver) as conn,
                _transaction(saver, conn) as pipe,
            ):
                await conn.execute(_HOLD, (lease.name, lease.fence))
                own = module.AsyncPostgresSaver(conn, pipe=pipe, serde=saver.serde)
                return await put.by(own)
        except Exception as error:
            if getattr(error, "sqlstate", "") == _DIVISION_BY_ZERO:
                raise LeaseLost from None
            raise


async def _raise_fence(saver: Saver, conn: Any, lease: Lease) -> int:  # noqa: ANN401 - of an optional package
    async with _transaction(saver, conn):
        # `true`: for this transaction only; the connection goes back to a pool.
        await conn.execute(
            "SELECT set_config('lock_timeout', %s, true)", (str(_PAUSE_MS),)
        )
        cursor = await conn.execute(_RAISE, (lease.name, lease.fence))
    return _first(await cursor.fetchone())


class _NoSync:
    """A pipeline for a saver that is not to wait for its results."""

    async def sync(self) -> None:
        """Leave it to the end of the transaction."""


@asynccontextmanager
async def _transaction(saver: Saver, conn: Any) -> AsyncGenerator[_NoSync | None]:  # noqa: ANN401 - as above
    """Give a saver what it takes as its pipeline, within a transaction.

    All statements of the block go out together, COMMIT with them: one round trip, where
    each would take its own. An error of one of them is raised at the end of the block,
    and the server skips all that come after it. So no statement may depend on what
    Python does with the result of one before.
    """
    if not (cast("Any", saver).supports_pipeline and conn.autocommit):
        async with conn.transaction():
            yield None
        return
    try:
        async with conn.pipeline():
            await conn.execute("BEGIN")
            yield _NoSync()
            await conn.execute("COMMIT")
    except BaseException:
        # COMMIT was not sent, or skipped. A connection that cannot be used any more is
        # the concern of whoever uses it next.
        with suppress(Exception):
            await conn.rollback()
        raise


async def _create(conn: Any) -> None:  # noqa: ANN401 - of an optional package
    cursor = await conn.execute(
        # Not left to CREATE TABLE IF NOT EXISTS: it needs the privilege to create also
        # where the table is there.
        "SELECT (to_regclass('twokey_fences') IS NOT NULL)::int AS found"
    )
    if _first(await cursor.fetchone()):
        return
    try:
        async with conn.transaction():
            # Two processes that create a table at once may both fail.
            await conn.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK,))
            await conn.execute(_TABLE)
    except Exception as error:
        if getattr(error, "sqlstate", "") != _MAY_NOT:
            raise
        raise NoFenceTable from error


@asynccontextmanager
async def _connection(saver: Saver) -> AsyncGenerator[Any]:
    """Give a connection to write through: one of the pool, or the only one."""
    given = cast("Any", saver).conn
    if isinstance(given, importlib.import_module("psycopg").AsyncConnection):
        async with cast("Any", saver).lock:
            yield given
    else:
        async with given.connection() as conn:
            yield conn


class SqliteFence:
    """Fences beside the checkpoints of an `AsyncSqliteSaver`.

    SQLite lets one process write at a time, so the whole write is one transaction. It
    completes even if its caller is cancelled, since one function does all of it in the
    connection's thread: left open on this connection, it would keep every other process
    from writing.
    """

    def __init__(self) -> None:
        self._writes = SqliteWrites()

    async def raise_fence(self, saver: Saver, lease: Lease) -> int:
        """Keep a new holder's fence; return the newest one."""
        own = cast("AsyncSqliteSaver", saver)
        # Before the lock: setup takes it, too, and it is not reentrant.
        await own.setup()
        async with own.lock:
            return await in_thread(own, _raise_in_sqlite, lease.name, lease.fence)

    async def raise_and_read(
        self, saver: Saver, lease: Lease, config: RunnableConfig
    ) -> tuple[int, CheckpointTuple | None]:
        """Do both with one change of threads: the fence is kept before the read."""
        own = cast("AsyncSqliteSaver", saver)
        await own.setup()
        async with own.lock:
            return await in_thread(
                own, _raise_and_read, lease.name, lease.fence, config
            )

    async def read(
        self, saver: Saver, config: RunnableConfig
    ) -> CheckpointTuple | None:
        """Read a checkpoint with one change of threads.

        A connection for reads alone waits for no write that waits for another process.
        """
        own = cast("AsyncSqliteSaver", saver)
        reads = getattr(own, "reads", None)
        if reads is not None:
            return await read_apart(reads, own.serde, config)
        await own.setup()
        async with own.lock:
            return await in_thread(own, _read_from_sqlite, config)

    async def write(
        self, saver: Saver, lease: Lease, config: RunnableConfig, put: Put[T]
    ) -> T:
        """Look at the fence and write, as `PostgresFence.write` does."""
        del config
        own = cast("AsyncSqliteSaver", saver)
        method, place = put.name.removeprefix("a"), (lease.name, lease.fence)
        found = await self._writes.write(own, place, method, put.given, put.values)
        return cast("T", found)


def _read_from_sqlite(
    _: sqlite3.Connection, saver: SqliteSaver, config: RunnableConfig
) -> CheckpointTuple | None:
    return saver.get_tuple(config)


def _raise_and_read(
    conn: sqlite3.Connection,
    saver: SqliteSaver,
    lease: str,
    fence: int,
    config: RunnableConfig,
) -> tuple[int, CheckpointTuple | None]:
    return _raise_in_sqlite(conn, saver, lease, fence), saver.get_tuple(config)


def _raise_in_sqlite(
    conn: sqlite3.Connection, _: object, lease: str, fence: int
) -> int:
    # Durable only with the next write: what is lost with the machine are fences of
    # holders that were lost with it, and a write finds its own fence missing.
    with without_waiting_for_the_disk(conn):
        conn.execute(_TABLE)
        conn.execute(
            "INSERT INTO twokey_fences (lease, fence) VALUES (?, ?) "
            "ON CONFLICT (lease) DO UPDATE SET fence = excluded.fence "
            "WHERE twokey_fences.fence < excluded.fence",
            (lease, fence),
        )
        conn.commit()
    return _first(conn.execute(FENCE, (lease,)).fetchone())


class ComparedFence:
    """Fences in the metadata of the checkpoints of any other saver.

    There is no table, so a fence is stored with the next checkpoint and not before. A
    pause between the comparison and the write is not noticed: only a database can do
    both in one step.
    """

    async def raise_fence(self, saver: Saver, lease: Lease) -> int:
        """Return the holder's own fence; nothing is stored before a checkpoint is."""
        del saver
        return lease.fence

    async def write(
        self, saver: Saver, lease: Lease, config: RunnableConfig, put: Put[T]
    ) -> T:
        """Compare with the fence of the thread's newest checkpoint, then write.

        Raises:
            LeaseLost: another process holds the lease; nothing was written.
        """
        thread = config["configurable"]["thread_id"]  # pyright: ignore[reportTypedDictNotRequiredAccess] - a saver needs it
        head = await saver.aget_tuple(
            {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        )
        known = cast("dict[str, object]", head.metadata) if head else {}
        # A fence says something about its own lease only; a copied thread carries the
        # fence of the lease that it was copied from.
        newest = known.get(FENCE_KEY, 0) if known.get(LEASE_KEY) == lease.name else 0
        if isinstance(newest, int) and newest > lease.fence:
            # A greater fence does not yet mean that the lease is lost: a store that was
            # restored from an older copy gives out smaller ones. The store decides: it
            # gives its holder a greater fence, or raises `LeaseLost`.
            await lease.rise_above(newest)
        lease.check()
        return await put.by(None)


Fence = PostgresFence | SqliteFence | ComparedFence


def fence_of(saver: Saver) -> Fence:
    """Return how fences are kept for a saver.

    Only for the very classes that are known: one derived from them may do anything.
    """
    kind = type(saver)
    name = (kind.__module__, kind.__name__)
    # A saver in pipeline mode sends statements before it has the results of earlier
    # ones, so a comparison could not stop a write.
    if name == (POSTGRES, "AsyncPostgresSaver") and cast("Any", saver).pipe is None:
        return PostgresFence()
    if isinstance(saver, AsyncSqliteSaver) and name in _SQLITE:
        return SqliteFence()
    return ComparedFence()


def _first(row: Any) -> int:  # noqa: ANN401 - a row of any row factory
    """Return the first column of a row; 0 without a row."""
    if not row:
        return 0
    values = cast("dict[str, Any]", row).values() if isinstance(row, dict) else row
    return int(next(iter(values)))
