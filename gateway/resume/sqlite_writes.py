"""Write checkpoints of SQLite under fences: what waits is written in one transaction.

Theory of operation. Each transaction waits for the disk, and each statement of an
`aiosqlite` connection changes threads twice. The calls of one turn end together, each
with a write of its own; so writes that wait for the connection are written by one
function in the connection's thread, in one transaction. Each is still compared with the
fence of its own lease, and one that fails takes no other along.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import aiosqlite
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from twokey.gateway.errors import LeaseLost

P = ParamSpec("P")
T = TypeVar("T")

_NORMAL = 1
"""`PRAGMA synchronous`: a commit is flushed with a later one; FULL (2): at once."""

FENCE = "SELECT fence FROM twokey_fences WHERE lease = ?"


@dataclass(frozen=True, slots=True)
class _Serialized:
    """Gives what was serialized before, since other code runs beside this thread."""

    plain: SerializerProtocol
    made: dict[int, tuple[str, bytes]]

    def dumps_typed(self, obj: object) -> tuple[str, bytes]:
        found = self.made.get(id(obj))
        return self.plain.dumps_typed(obj) if found is None else found

    def loads_typed(self, data: tuple[str, bytes]) -> object:
        return self.plain.loads_typed(data)


@dataclass(slots=True)
class _Write:
    """One write that waits: a method of a saver, and what it is called with."""

    lease: str
    fence: int
    method: str
    given: Sequence[Any]
    serde: _Serialized
    future: asyncio.Future[Any]
    result: object = None
    error: Exception | None = None

    def run(self, conn: sqlite3.Connection, saver: SqliteSaver) -> None:
        """Compare the fence and write, inside a transaction."""
        row = conn.execute(FENCE, (self.lease,)).fetchone()
        # Unequal, not only greater: a database that was put back to an older copy has
        # lost our fence, and what we read from it.
        if row is None or row[0] != self.fence:
            self.error = LeaseLost()
            return
        saver.serde = self.serde
        conn.execute("SAVEPOINT one")
        try:
            self.result = getattr(saver, self.method)(*self.given)
        except Exception as error:
            if not conn.in_transaction:
                # SQLite undid everything itself, as when the disk is full. There is no
                # savepoint any more, and the error of a missing one would say nothing.
                raise
            conn.execute("ROLLBACK TO one")
            self.error = error
        conn.execute("RELEASE one")

    def tell(self) -> None:
        """Give the caller the result, if it still waits."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class _Inside(SqliteSaver):
    """LangGraph's own statements, inside a transaction of ours."""

    @contextmanager
    def cursor(self, transaction: bool = True) -> Generator[sqlite3.Cursor]:  # noqa: FBT001, FBT002 - LangGraph's
        """Give a cursor; the transaction is committed by who began it."""
        del transaction
        cursor = self.conn.cursor()
        try:
            yield cursor
        finally:
            cursor.close()


@dataclass(slots=True)
class SqliteWrites:
    """The writes of one saver, those that wait in one transaction.

    Each is brought to its end, also when its caller is cancelled.
    """

    _waiting: list[_Write] = field(default_factory=list[_Write])
    _writing: asyncio.Task[None] | None = None

    async def write(
        self,
        saver: AsyncSqliteSaver,
        lease: tuple[str, int],
        method: str,
        given: Sequence[Any],
        values: Sequence[object],
    ) -> object:
        """Call a method of the synchronous saver in a transaction with the fence.

        Args:
            saver: whose connection it is.
            lease: name and fence.
            method: name of a method of `SqliteSaver`.
            given: what it is called with.
            values: what it serializes of that.

        Raises:
            LeaseLost: the database knows another fence; nothing was written.
        """
        serde = saver.serde
        # Here and not in the other thread, where it could change meanwhile.
        made = {id(value): serde.dumps_typed(value) for value in values}
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(
            _Write(*lease, method, given, _Serialized(serde, made), future)
        )
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(saver))
        return await future

    async def _write_all(self, saver: AsyncSqliteSaver) -> None:
        try:
            while self._waiting:
                async with saver.lock:
                    # Only now: others came while the lock was somebody else's.
                    batch, self._waiting = self._waiting, []
                    await _written(saver, batch)
        finally:
            self._writing = None


async def _written(saver: AsyncSqliteSaver, batch: Sequence[_Write]) -> None:
    try:
        await in_thread(saver, _in_one_transaction, batch)
    except Exception as error:  # noqa: BLE001 - all of them failed, and are told so
        for one in batch:
            one.error = error
    except asyncio.CancelledError:
        # The loop ends. The thread brings the transaction to its end.
        for one in batch:
            one.future.cancel()
        raise
    for one in batch:
        one.tell()


async def in_thread(
    saver: AsyncSqliteSaver,
    work: Callable[Concatenate[sqlite3.Connection, SqliteSaver, P], T],
    *given: P.args,
    **named: P.kwargs,
) -> T:
    """Run a function with the raw connection and a saver, in the connection's thread.

    The caller holds the saver's lock.
    """
    return await _in_thread_of(saver.conn, saver.serde, work, *given, **named)


async def read_apart(
    connection: aiosqlite.Connection, serde: SerializerProtocol, config: RunnableConfig
) -> CheckpointTuple | None:
    """Read a checkpoint by a connection that nothing is written by."""
    return await _in_thread_of(connection, serde, _read, config)


def _read(
    conn: sqlite3.Connection, saver: SqliteSaver, config: RunnableConfig
) -> CheckpointTuple | None:
    # In a transaction: a checkpoint and its writes as of one moment.
    conn.execute("BEGIN")
    try:
        return saver.get_tuple(config)
    finally:
        conn.rollback()


async def _in_thread_of(
    connection: aiosqlite.Connection,
    serde: SerializerProtocol,
    work: Callable[Concatenate[sqlite3.Connection, SqliteSaver, P], T],
    *given: P.args,
    **named: P.kwargs,
) -> T:
    """Run a function with a raw connection and a saver, in the connection's thread."""
    conn = cast("Any", connection)
    raw: sqlite3.Connection = conn._conn  # noqa: SLF001
    inner = _Inside(raw, serde=serde)
    # Its setup would run a script, which commits a transaction halfway.
    inner.is_setup = True
    # aiosqlite has no public way to run more than one statement in its thread.
    return cast("T", await conn._execute(work, raw, inner, *given, **named))  # noqa: SLF001


@contextmanager
def without_waiting_for_the_disk(conn: sqlite3.Connection) -> Generator[None]:
    """Commit what is done inside to the log of SQLite, without flushing the log.

    Whatever is committed later flushes it, too. Other than in its log (WAL), a commit
    that is not flushed could damage the file; then nothing is otherwise.
    """
    if conn.in_transaction:
        conn.commit()  # somebody else's; within it the setting cannot change
    (mode,) = conn.execute("PRAGMA journal_mode").fetchone()
    (before,) = conn.execute("PRAGMA synchronous").fetchone()
    if mode != "wal" or before <= _NORMAL:
        yield
        return
    conn.execute(f"PRAGMA synchronous = {_NORMAL}")
    try:
        yield
    finally:
        if conn.in_transaction:
            conn.rollback()
        conn.execute(f"PRAGMA synchronous = {before}")


def _in_one_transaction(
    conn: sqlite3.Connection, saver: SqliteSaver, batch: Sequence[_Write]
) -> None:
    if conn.in_transaction:
        # Somebody else's statement on this shared connection opened it; BEGIN would
        # fail in it. What was written is theirs, so it is not undone.
        conn.commit()
    # IMMEDIATE locks before the look. A deferred transaction would lock with its first
    # write, after another process may have changed the fence.
    conn.execute("BEGIN IMMEDIATE")
    try:
        for one in batch:
            one.run(conn, saver)
        conn.commit()
    finally:
        if conn.in_transaction:
            conn.rollback()
