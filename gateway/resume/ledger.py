"""The ledger of spent attempts, in the database of the checkpoints.

All requests that wait at the same time form one transaction, in one thread with one
connection. The same transaction compares the fence of the caller's lease. Rows are kept
until every authorization of their age has lapsed.
"""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from keyturn.gateway.approvals.executing import Attempt
from keyturn.gateway.errors import AlreadySpent, LeaseLost, StoreUnavailable
from keyturn.gateway.resume.fence_tables import CREATE_LOCK, TABLE
from keyturn.gateway.setting_forms import is_postgres
from keyturn.gateway.store.scripts.fences import Lease, current
from keyturn.gateway.store.store import Store

_LOCK_WAIT_S = 30.0
KEPT_MS: Final = 100 * 24 * 60 * 60 * 1000
"""Lifetime of a row. Every older authorization has lapsed, by its sealed record."""
_NAMES = ("keyturn_fences", "keyturn_attempts")

_TABLES = (
    TABLE,
    (
        "CREATE TABLE IF NOT EXISTS keyturn_attempts (approval TEXT NOT NULL, "
        "item INTEGER NOT NULL, number BIGINT NOT NULL, owner TEXT NOT NULL, "
        "at_ms BIGINT NOT NULL, PRIMARY KEY (approval, item))"
    ),
)
_FENCE = "SELECT fence FROM keyturn_fences WHERE lease = ?"
_SPEND = (
    "INSERT INTO keyturn_attempts AS kept (approval, item, number, owner, at_ms) "
    "VALUES (?, ?, ?, ?, ?) ON CONFLICT (approval, item) DO UPDATE "
    "SET number = excluded.number, owner = excluded.owner, at_ms = excluded.at_ms "
    "WHERE kept.number < excluded.number"
)
# An end takes over a claim's attempt, so that the claim does not give it back.
_END = f"{_SPEND} OR (kept.number = excluded.number AND kept.owner <> '')"
_READ = (
    "SELECT number, owner, at_ms FROM keyturn_attempts WHERE approval = ? AND item = ?"
)
_TAKE_BACK = (
    "UPDATE keyturn_attempts SET number = number - 1, owner = '' "
    "WHERE approval = ? AND item = ? AND number = ? AND owner = ? AND at_ms = ?"
)
# Changes the time, so that the claim's first request does not give it back.
_AGAIN = (
    "UPDATE keyturn_attempts SET at_ms = at_ms + 1 "
    "WHERE approval = ? AND item = ? AND number = ? AND owner = ?"
)
_FORGET = "DELETE FROM keyturn_attempts WHERE at_ms < ?"

Execute = Callable[..., Any]
"""Runs a statement with its values; returns the driver's cursor."""


@dataclass(slots=True)
class Request:
    """One caller's request."""

    run: Callable[[Execute, Request], None]
    order: Sequence[Attempt]
    future: Future[None] = field(default_factory=Future[None])
    error: Exception | None = None
    was_tried: bool = False


class DatabaseLedger:
    """A ledger in a SQLite file or a Postgres database.

    Args:
        connect: opens a connection that commits each statement by itself.
        make: creates the tables.
        begin: statement that begins a transaction.
        mark: placeholder of a value in a statement.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        make: Callable[[Execute], None],
        *,
        begin: str,
        mark: str,
    ) -> None:
        self._connect, self._make = connect, make
        self._begin, self._mark = begin, mark
        self._thread = ThreadPoolExecutor(1, "keyturn-ledger")
        self._waiting = deque[Request]()
        self._connection: Any = None

    async def spend(
        self,
        attempts: Sequence[Attempt],
        unspent: Sequence[Attempt] = (),
        *,
        now_ms: int,
        again: bool = False,
    ) -> None:
        """Spend all of these attempts, or none; see `Ledger`."""
        lease = current()

        def run(execute: Execute, request: Request) -> None:
            _compare(execute, lease)
            for one in unspent:
                row = execute(_READ, (one.approval, one.item)).fetchone()
                if row is not None and row[0] >= one.number:
                    raise AlreadySpent(one.approval, one.item, row[0], row[2])
            for one in attempts:
                if not (again and execute(_AGAIN, one).rowcount):
                    _spend(execute, one, now_ms, again=request.was_tried)

        await self._do(Request(run, attempts))

    async def take_back(self, attempts: Sequence[Attempt], *, now_ms: int) -> None:
        """Make unused attempts claimable again; see `Ledger`."""

        def run(execute: Execute, _request: Request) -> None:
            for one in attempts:
                if one.owner:
                    execute(_TAKE_BACK, (*one, now_ms))

        try:
            await self._do(Request(run, attempts))
        except StoreUnavailable:
            # Try again with the next request. An attempt that stays spent puts its call
            # in doubt: it does not run.
            self._waiting.append(Request(run, attempts))

    async def forget(self, now_ms: int) -> None:
        """Delete the rows that no record can use any more."""

        def run(execute: Execute, _request: Request) -> None:
            execute(_FORGET, (now_ms - KEPT_MS,))

        await self._do(Request(run, ()))

    async def open(self) -> None:
        """Create the tables.

        Raises:
            StoreUnavailable: the database cannot be used.
        """
        await self._do(Request(lambda execute, _: self._make(execute), ()))

    async def close(self) -> None:
        """Finish pending requests, and close the connection."""
        await asyncio.to_thread(self._thread.shutdown)
        self._disconnect()

    async def _do(self, request: Request) -> None:
        self._waiting.append(request)
        self._thread.submit(self._work)
        await asyncio.wrap_future(request.future)

    def _work(self) -> None:
        batch = list[Request]()
        while self._waiting:
            one = self._waiting.popleft()
            if one.future.set_running_or_notify_cancel():
                batch.append(one)
        if not batch:
            return
        # In the same order everywhere, or two processes could wait for each other.
        batch.sort(key=lambda one: list(one.order))
        failure: Exception | None = None
        # Twice: the server may have ended an idle connection.
        for _ in range(2 if self._connection else 1):
            try:
                self._commit(batch)
            except Exception as error:  # noqa: BLE001 - each caller gets it
                failure = StoreUnavailable(
                    "The ledger beside the checkpoints cannot be written, so nothing "
                    f"was started: {type(error).__name__}. See that its disk has room, "
                    "its server answers, and its user may create tables (at the first "
                    "start), and try again."
                )
                failure.__cause__ = error
                self._disconnect()
            else:
                failure = None
                break
        for one in batch:
            if (refused := failure or one.error) is not None:
                one.future.set_exception(refused)
            else:
                one.future.set_result(None)

    def _commit(self, batch: Sequence[Request]) -> None:
        if self._connection is None:
            self._connection = self._connect()
        self._execute(self._begin)
        for one in batch:
            self._execute("SAVEPOINT one")
            one.error = None
            try:
                one.run(self._execute, one)
            except (AlreadySpent, LeaseLost) as error:
                one.error = error
                self._execute("ROLLBACK TO SAVEPOINT one")
            one.was_tried = True
            self._execute("RELEASE SAVEPOINT one")
        self._execute("COMMIT")

    def _execute(self, statement: str, values: Sequence[object] = ()) -> Any:  # noqa: ANN401 - of a driver
        return self._connection.execute(statement.replace("?", self._mark), values)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


def _spend(execute: Execute, one: Attempt, now_ms: int, *, again: bool) -> None:
    """Spend an attempt; ``again``: this request may have spent it already."""
    statement = _SPEND if one.owner else _END
    if execute(statement, (*one, now_ms)).rowcount == 1 or not one.owner:
        return
    number, owner, at_ms = execute(_READ, (one.approval, one.item)).fetchone()
    if not (again and (number, owner) == (one.number, one.owner)):
        raise AlreadySpent(one.approval, one.item, number, at_ms, owner)


def _make_tables(execute: Execute) -> None:
    for statement in _TABLES:
        execute(statement)


def _make_in_postgres(execute: Execute) -> None:
    # CREATE TABLE IF NOT EXISTS would need the privilege to create even if the tables
    # exist.
    names = [execute("SELECT to_regclass(?)", (one,)).fetchone()[0] for one in _NAMES]
    if all(names):
        return
    # Two processes that create a table at the same time may both fail.
    execute("SELECT pg_advisory_xact_lock(?)", (CREATE_LOCK,))
    _make_tables(execute)


def _compare(execute: Execute, lease: Lease | None) -> None:
    """Refuse a former holder of a lease."""
    if lease is None:
        return
    row = execute(_FENCE, (lease.name,)).fetchone()
    if row is not None and row[0] > lease.fence:
        raise LeaseLost


def sqlite_ledger(path: str) -> DatabaseLedger:
    """Return the ledger in a SQLite file."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            path, timeout=_LOCK_WAIT_S, isolation_level=None, check_same_thread=False
        )

    # IMMEDIATE locks before the first read.
    return DatabaseLedger(connect, _make_tables, begin="BEGIN IMMEDIATE", mark="?")


def postgres_ledger(url: str) -> DatabaseLedger:
    """Return the ledger in a Postgres database."""

    def connect() -> Any:  # noqa: ANN401 - of an optional package
        psycopg: Any = importlib.import_module("psycopg")
        # Without prepared statements, which a pooler may not preserve.
        return psycopg.connect(url, autocommit=True, prepare_threshold=None)

    return DatabaseLedger(connect, _make_in_postgres, begin="BEGIN", mark="%s")


@asynccontextmanager
async def ledger_of(store: Store, place: str) -> AsyncGenerator[DatabaseLedger]:
    """Make a store spend attempts in the database of its checkpoints.

    Args:
        store: the store of the calls.
        place: a SQLite file or a Postgres URL.

    Raises:
        StoreUnavailable: the ledger cannot be written.
    """
    ledger = (postgres_ledger if is_postgres(place) else sqlite_ledger)(place)
    try:
        await ledger.open()
        store.conn.ledger = ledger
        yield ledger
    finally:
        await ledger.close()
