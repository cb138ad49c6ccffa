"""Refuse checkpoint writes of a stale lease holder, by fencing tokens in the database.

Theory of operation. A paused or disconnected process may continue in the middle of a
write, long after another process took its thread over. Checking the clock or the lease
does not help against a pause right after the check. So the checkpoint database stores
the newest fence of each lease (`keyturn.gateway.store.scripts.fences`). A new holder
writes its fence there before it reads the thread. From then on the database refuses the
older holder's writes, and the new holder reads everything written before.

Postgres and SQLite compare the fence in the transaction of the write. For any other
saver, the thread's newest checkpoint is read before each write; its metadata has the
fence. A pause between this read and the write is not noticed.

For each kind of saver a class has two methods. ``raise_fence`` stores a new holder's
fence, if the database has a table for it, and returns the newest one. ``write``
compares the fence and writes.
"""

from __future__ import annotations

import copy
import importlib
import logging
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeGuard, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.pregel import Pregel
from typing_extensions import override

from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.resume.checkpoints import to_the_end
from keyturn.gateway.store.scripts.fences import Lease, current

logger = logging.getLogger(__name__)


def fenced_graph(graph: Pregel[Any, Any, Any, Any]) -> Pregel[Any, Any, Any, Any]:
    """Return a copy of a graph that refuses checkpoints of a former lease holder."""
    saver: object = cast("Any", graph).checkpointer
    # A clone of a clone would lose the atomic comparison: `fence_of` supports only the
    # savers' own classes.
    if not _is_saver(saver) or isinstance(saver, FencedSaver):
        return graph
    clone = copy.copy(graph)
    cast("Any", clone).checkpointer = fenced(saver)
    return clone


def fenced(saver: Saver) -> Saver:
    """Return a clone of a saver that refuses writes under a lost lease.

    The clone shares everything with the saver, like the clone of
    `Saver.with_allowlist`. Its class derives from the saver's, so checks for a kind of
    saver accept it.
    """
    kind = type(saver)
    clone = copy.copy(saver)
    clone.__class__ = type(f"Fenced{kind.__name__}", (FencedSaver, kind), {})
    cast("FencedSaver", clone).keyturn_fence = fence_of(saver)
    return clone


class FencedSaver(BaseCheckpointSaver[Any]):
    """Methods in which a fenced clone differs from its saver.

    The synchronous methods of both databases' savers call these on their event loop.
    Outside of any lease there is no difference: a program may change its threads.
    """

    keyturn_fence: Fence

    @override
    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint, after the reader's fence is stored in the database."""
        # Before the read: from then on no older holder can write anything that this
        # read would miss.
        await self._introduce()
        return await super().aget_tuple(config)

    @override
    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint under the holder's fence."""
        if lease := current():
            metadata = _marked(metadata, lease)
        given = (config, checkpoint, metadata, new_versions)
        return await self._write(config, Put("aput", super().aput, given))

    @override
    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Write a task's results under the holder's fence."""
        given = (config, writes, task_id, task_path)
        await self._write(config, Put("aput_writes", super().aput_writes, given))

    @override
    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread, unless the lease on it was lost."""
        config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        put = Put("adelete_thread", super().adelete_thread, (thread_id,))
        await self._write(config, put)

    async def _write(self, config: RunnableConfig, put: Put[T]) -> T:
        """Write by a method of the saver, under the fence of the lease, if any."""
        lease = current()
        if lease is None:
            return await put.by(None)
        # A deletion may come before any read, so the database may not have the fence
        # yet.
        await self._introduce()
        # Stops most late writers; the fence stops those that pause after this check.
        lease.check()
        return await self.keyturn_fence.write(self, lease, config, put)

    async def _introduce(self) -> None:
        """Store the fence of the current lease in the database, once for each lease."""
        lease = current()
        if lease is None or self.keyturn_fence in lease.known_to:
            return
        lease.check()
        try:
            # A greater fence belongs to another holder, or is unknown to a restored
            # store. The store decides: it issues a greater fence for this lease, or
            # raises `LeaseLost`. Another process may do the same concurrently, hence
            # the loop.
            while (
                newest := await self.keyturn_fence.raise_fence(self, lease)
            ) > lease.fence:
                await lease.rise_above(newest)
        except NoFenceTable:
            logger.warning("checkpoints.fence_not_atomic saver=%s", type(self).__name__)
            # For all later leases: do not ask for the table again.
            self.keyturn_fence = ComparedFence()
        # Last: after an error the next read or write introduces the lease again.
        lease.known_to.add(self.keyturn_fence)


def _is_saver(found: object) -> TypeGuard[Saver]:
    return isinstance(found, BaseCheckpointSaver)


def _marked(metadata: CheckpointMetadata, lease: Lease) -> CheckpointMetadata:
    marks = {LEASE_KEY: lease.name, FENCE_KEY: lease.fence}
    return cast("CheckpointMetadata", {**metadata, **marks})


LEASE_KEY, FENCE_KEY = "keyturn_lease", "keyturn_fence"
"""Checkpoint metadata: the lease of a checkpoint's writer, and its fence."""

Saver = BaseCheckpointSaver[Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Put(Generic[T]):
    """One write: a saver's method, by name, and its arguments.

    ``plain`` is the saver's unfenced method.
    """

    name: str
    plain: Callable[..., Awaitable[T]]
    given: Sequence[Any]

    async def by(self, saver: Saver | None) -> T:
        """Write through a saver, or by the unfenced method for None."""
        # A decorated method may have another `__name__`.
        same = self.plain if saver is None else getattr(saver, self.name)
        return cast("T", await same(*self.given))


TABLE = (
    "CREATE TABLE IF NOT EXISTS keyturn_fences "
    "(lease TEXT PRIMARY KEY, fence BIGINT NOT NULL)"
)
POSTGRES = "langgraph.checkpoint.postgres.aio"
_SQLITE = {
    ("langgraph.checkpoint.sqlite.aio", "AsyncSqliteSaver"),
    ("keyturn.gateway.resume.checkpoints", "SqliteSaver"),
}
_PAUSE_MS = 15_000
"""Longest pause of a writer in its transaction while other processes wait for it."""
# The bytes of "twofence": a number that no other advisory lock of the database uses.
CREATE_LOCK = 0x74776F66656E6365
MAY_NOT, _IS_LOCKED, _DIVISION_BY_ZERO = "42501", "55P03", "22012"
"""SQLSTATE: missing privilege; lock not granted within `lock_timeout`; division."""

# greatest(): a late holder must not lower a later holder's fence. RETURNING gives it
# the newest fence in the same statement.
_RAISE = (
    "INSERT INTO keyturn_fences AS kept (lease, fence) VALUES (%s, %s) "
    "ON CONFLICT (lease) DO UPDATE "
    "SET fence = greatest(kept.fence, excluded.fence) RETURNING fence"
)
# A paused client leaves its session idle. Postgres does not end such a session by its
# `idle_in_transaction_session_timeout`: the time is not counted within a pipeline, nor
# after the message with which psycopg ends a pipeline.
_END_PAUSED = (
    "SELECT count(pg_terminate_backend(pid)) "
    "FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE relation = 'keyturn_fences'::regclass AND mode = 'RowShareLock' "
    "AND wait_event = 'ClientRead' "
    "AND greatest(query_start, state_change) "
    "< clock_timestamp() - %s * interval '1 millisecond'"
)


# Divides by zero, which ends the transaction, if the fence has changed. FOR SHARE:
# writes under one fence run concurrently, but a new holder's fence waits until they are
# committed. Equal, not "at least": a database restored from an older copy has lost this
# fence, and the data that was read under it.
_HOLD = (
    "SELECT 1 / count(*) FROM (SELECT 1 FROM keyturn_fences "
    "WHERE lease = %s AND fence = %s FOR SHARE) AS held"
)


class NoFenceTable(Exception):
    """This user may not create the table, and it does not exist."""


class PostgresFence:
    """Fences in the database of an `AsyncPostgresSaver`.

    A write locks its lease's row until it is committed. A new holder's fence therefore
    waits for the writes under the old one, and all later ones are refused. The waiting
    process ends sessions that do not continue their write.
    """

    def __init__(self) -> None:
        self._has_table = False

    async def raise_fence(self, saver: Saver, lease: Lease) -> int:
        """Store a new holder's fence; return the newest one.

        Raises:
            NoFenceTable: the table is missing and cannot be created.
        """
        async with _connection(saver) as conn:
            if not self._has_table:
                await _create(conn)
                self._has_table = True
            try:
                return await _raise_fence(conn, lease)
            except Exception as error:
                # By SQLSTATE: the driver is optional, so its classes cannot be named
                # here.
                if getattr(error, "sqlstate", "") != _IS_LOCKED:
                    raise
            # Another session has locked the row for all of `lock_timeout`. One more
            # attempt follows; a second time-out is raised, and the run is retried as
            # when the database is down.
            await conn.execute(_END_PAUSED, (_PAUSE_MS,))
            return await _raise_fence(conn, lease)

    async def write(
        self, saver: Saver, lease: Lease, config: RunnableConfig, put: Put[T]
    ) -> T:
        """Compare the fence and write in one transaction.

        Raises:
            LeaseLost: the fence has changed; nothing was written.
        """
        del config
        module: Any = importlib.import_module(POSTGRES)
        try:
            async with _connection(saver) as conn, conn.transaction():
                await conn.execute(_HOLD, (lease.name, lease.fence))
                own = module.AsyncPostgresSaver(conn, serde=saver.serde)
                own.supports_pipeline = cast("Any", saver).supports_pipeline
                return await put.by(own)
        except Exception as error:
            if getattr(error, "sqlstate", "") == _DIVISION_BY_ZERO:
                raise LeaseLost from None
            raise


async def _raise_fence(conn: Any, lease: Lease) -> int:  # noqa: ANN401 - of an optional package
    async with conn.transaction():
        # `true`: for this transaction only; the connection goes back to a pool.
        await conn.execute(
            "SELECT set_config('lock_timeout', %s, true)", (str(_PAUSE_MS),)
        )
        cursor = await conn.execute(_RAISE, (lease.name, lease.fence))
    return _first(await cursor.fetchone())


async def _create(conn: Any) -> None:  # noqa: ANN401 - of an optional package
    cursor = await conn.execute(
        # CREATE TABLE IF NOT EXISTS would need the privilege to create even if the
        # table exists.
        "SELECT (to_regclass('keyturn_fences') IS NOT NULL)::int AS found"
    )
    if _first(await cursor.fetchone()):
        return
    try:
        async with conn.transaction():
            # Two processes that create a table at the same time may both fail.
            await conn.execute("SELECT pg_advisory_xact_lock(%s)", (CREATE_LOCK,))
            await conn.execute(TABLE)
    except Exception as error:
        if getattr(error, "sqlstate", "") != MAY_NOT:
            raise
        raise NoFenceTable from error


@asynccontextmanager
async def _connection(saver: Saver) -> AsyncGenerator[Any]:
    """Yield a connection for a write: one of the pool, or the only one."""
    given = cast("Any", saver).conn
    if isinstance(given, importlib.import_module("psycopg").AsyncConnection):
        async with cast("Any", saver).lock:
            yield given
    else:
        async with given.connection() as conn:
            yield conn


class SqliteFence:
    """Fences in the database of an `AsyncSqliteSaver`.

    SQLite has one writer at a time, so the whole write is one transaction. It completes
    even if its caller is cancelled: an open transaction on this connection would block
    the writes of every other process.
    """

    async def raise_fence(self, saver: Saver, lease: Lease) -> int:
        """Store a new holder's fence; return the newest one."""
        own = cast("AsyncSqliteSaver", saver)
        # Before the lock: `setup` acquires it too, and it is not reentrant.
        await own.setup()
        async with own.lock:
            return await _in_thread(own, _raise_in_sqlite, lease)

    async def write(
        self, saver: Saver, lease: Lease, config: RunnableConfig, put: Put[T]
    ) -> T:
        """Compare the fence and write, as `PostgresFence.write` does."""
        del config
        return await _write_in_sqlite(cast("AsyncSqliteSaver", saver), lease, put)


@to_the_end
async def _write_in_sqlite(own: AsyncSqliteSaver, lease: Lease, put: Put[T]) -> T:
    async with own.lock:
        try:
            await _in_thread(own, _begin_in_sqlite, lease)
            # Its methods commit. Another saver, because this one's lock is taken.
            inner = AsyncSqliteSaver(own.conn, serde=own.serde)
            inner.is_setup = True
            return await put.by(inner)
        finally:
            if own.conn.in_transaction:
                await own.conn.rollback()


async def _in_thread(
    saver: AsyncSqliteSaver,
    work: Callable[[sqlite3.Connection, Lease], T],
    lease: Lease,
) -> T:
    """Run a function with the raw connection, in the connection's thread."""
    # aiosqlite has no public way to run more than one statement in its thread.
    conn = cast("Any", saver.conn)
    return cast("T", await conn._execute(work, conn._conn, lease))  # noqa: SLF001


def _begin_in_sqlite(conn: sqlite3.Connection, lease: Lease) -> None:
    _commit_others(conn)
    # IMMEDIATE locks before the comparison. A deferred transaction would lock with its
    # first write, after another process may have changed the fence.
    conn.execute("BEGIN IMMEDIATE")
    # Unequal, not only greater: a database restored from an older copy has lost this
    # fence, and the data that was read under it.
    if _kept_in_sqlite(conn, lease) != lease.fence:
        raise LeaseLost


def _commit_others(conn: sqlite3.Connection) -> None:
    """Commit what another caller began on this shared connection."""
    # Neither BEGIN nor PRAGMA works inside its transaction.
    if conn.in_transaction:
        conn.commit()


def _raise_in_sqlite(conn: sqlite3.Connection, lease: Lease) -> int:
    _commit_others(conn)
    with conn:  # commits, or rolls back
        conn.execute(TABLE)
        conn.execute(
            "INSERT INTO keyturn_fences (lease, fence) VALUES (?, ?) "
            "ON CONFLICT (lease) DO UPDATE SET fence = excluded.fence "
            "WHERE keyturn_fences.fence < excluded.fence",
            (lease.name, lease.fence),
        )
    return _kept_in_sqlite(conn, lease)


def _kept_in_sqlite(conn: sqlite3.Connection, lease: Lease) -> int:
    query = "SELECT fence FROM keyturn_fences WHERE lease = ?"
    return _first(conn.execute(query, (lease.name,)).fetchone())


class ComparedFence:
    """Fences in the checkpoint metadata of any other saver.

    There is no table, so a fence is stored with the next checkpoint and not before. A
    pause between the comparison and the write is not noticed: only a database can do
    both in one step.
    """

    async def raise_fence(self, saver: Saver, lease: Lease) -> int:
        """Return the holder's fence; it is stored with the first checkpoint."""
        del saver
        return lease.fence

    async def write(
        self, saver: Saver, lease: Lease, config: RunnableConfig, put: Put[T]
    ) -> T:
        """Compare with the fence of the thread's newest checkpoint, then write.

        Raises:
            LeaseLost: another process has the lease; nothing was written.
        """
        thread = config["configurable"]["thread_id"]  # pyright: ignore[reportTypedDictNotRequiredAccess] - a saver needs it
        head = await saver.aget_tuple(
            {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        )
        known = cast("dict[str, object]", head.metadata) if head else {}
        # A fence is valid for its own lease only; a copied thread has the fence of the
        # original thread's lease.
        newest = known.get(FENCE_KEY, 0) if known.get(LEASE_KEY) == lease.name else 0
        if isinstance(newest, int) and newest > lease.fence:
            # A greater fence does not prove that the lease is lost: a store restored
            # from an older copy issues smaller ones. The store decides: it issues a
            # greater fence to its holder, or raises `LeaseLost`.
            await lease.rise_above(newest)
        lease.check()
        return await put.by(None)


Fence = PostgresFence | SqliteFence | ComparedFence


def fence_of(saver: Saver) -> Fence:
    """Return the kind of fence for a saver.

    Only for exact classes: a derived class may do anything.
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
