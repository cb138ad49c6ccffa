"""Open a checkpoint database: a SQLite file, or Postgres by URL.

SQLite's locks are POSIX advisory locks, and a process loses all of these on a file when
it closes *any* descriptor of that file ("How To Corrupt An SQLite Database File",
section 2.2). So only SQLite itself opens a checkpoint file: a new file is completed
under another name and then linked to its final name, and the content of an existing
file is read by SQLite only.

Several users of one file in one event loop share a saver. Its writes complete even if
the caller is cancelled: an open transaction on a shared connection would block the
writes of every other process.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import secrets
import socket
import sqlite3
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    closing,
    suppress,
)
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import aiosqlite
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.resume.graphs import strict_serializer
from keyturn.gateway.secret_file import make_private
from keyturn.gateway.setting_forms import is_postgres

# Identity of a checkpoint database: a random id in the database itself.
#
# A copy and a restored backup have the id of the original; the file distinguishes two
# live copies.

_SELECT = "SELECT id FROM keyturn_identity WHERE one = 1"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def identity_statements() -> tuple[str, ...]:
    """Return statements that give a database an id, unless it has one."""
    table = "keyturn_identity (one INTEGER PRIMARY KEY, id TEXT)"
    row = f"(1, '{secrets.token_hex(16)}')"
    return (
        f"CREATE TABLE IF NOT EXISTS {table}",
        f"INSERT INTO keyturn_identity VALUES {row} ON CONFLICT DO NOTHING",  # noqa: S608 - generated hex digits
    )


async def identity_of(saver: BaseCheckpointSaver[Any], place: str) -> dict[str, str]:
    """Return the identity of an open checkpoint database, as fields of `ProcessInfo`.

    ``checkpoints`` is the id in the database; ``file`` is machine, device and inode of
    its file, and absent for Postgres; ``shown`` is the place without a password.

    Args:
        saver: from `keyturn.gateway.resume.checkpoints.open_checkpoints`.
        place: the path or URL that it was opened with.
    """
    if isinstance(saver, AsyncSqliteSaver):
        rows = list(await saver.conn.execute_fetchall(_SELECT))
        file = await asyncio.to_thread(_file, place)
        shown = f"{place!r} on {socket.gethostname()!r}"
        return {"checkpoints": str(rows[0][0]), "file": file, "shown": shown}
    pool: Any = saver
    async with pool.conn.connection() as connection:
        row = await (await connection.execute(_SELECT)).fetchone()
    parts = urlsplit(place)
    shown = f"Postgres {parts.path.lstrip('/')!r} at {parts.hostname or 'a socket'!r}"
    return {"checkpoints": str(row["id"]), "shown": shown}


def _file(place: str) -> str:
    """Return a file's identity, equal in every process that may share the file.

    Containers on one machine may share a file under different host names.
    """
    state = Path(place).stat()
    boot = _BOOT.read_text("ascii").strip() if _BOOT.exists() else socket.gethostname()
    # Device and inode identify a file on one running machine; the boot id identifies
    # the machine.
    return f"{boot}:{state.st_dev}:{state.st_ino}"


CoroutineT = TypeVar("CoroutineT", bound=Callable[..., Coroutine[Any, Any, Any]])

_LOCK_WAIT_S = 30.0
"""Longest wait for another process's write; SQLite allows one at a time."""


def to_the_end(write: CoroutineT) -> CoroutineT:
    """Complete a coroutine's write even if its caller is cancelled."""

    @wraps(write)
    async def shielded(*args: object, **named: object) -> object:
        return await asyncio.shield(write(*args, **named))

    return cast("CoroutineT", shielded)  # it has the signature of `write`


class SqliteSaver(AsyncSqliteSaver):
    """A saver that leaves no transaction open, even if its caller is cancelled.

    ``reads`` is a connection for reads alone, once the saver is set up.
    """

    reads: aiosqlite.Connection | None = None

    aput = to_the_end(AsyncSqliteSaver.aput)
    aput_writes = to_the_end(AsyncSqliteSaver.aput_writes)
    adelete_thread = to_the_end(AsyncSqliteSaver.adelete_thread)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint, even while a write waits for another process."""
        reader = AsyncSqliteSaver(self.reads or self.conn, serde=self.serde)
        reader.is_setup = True
        return await reader.aget_tuple(config)


class _Shared:
    """The only saver of a file in an event loop, and its number of users."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.users = 0
        self.opening = asyncio.Lock()
        self.saver: SqliteSaver | None = None


_Place = tuple[Path, asyncio.AbstractEventLoop]
SHARED: Final[dict[_Place, _Shared]] = {}
"""The open files of this process."""


@asynccontextmanager
async def open_sqlite(path: Path) -> AsyncGenerator[SqliteSaver]:
    """Open the saver of a file, or share the open one of this event loop.

    Raises:
        SettingsError: the file cannot be used.
    """
    try:
        found = await asyncio.to_thread(_ready, path)
    except OSError as error:
        raise _unusable_file(path, error) from error
    # One saver for each event loop: its lock and its connection belong to the loop.
    place = (found, asyncio.get_running_loop())
    shared = SHARED.setdefault(place, _Shared())
    # Count before the first await: otherwise the last other user could close the saver
    # in use.
    shared.users += 1
    try:
        _refuse_inherited(found)
        # Concurrent first users wait for one saver.
        async with shared.opening:
            if shared.saver is None:
                shared.saver = await _opened(found)
        yield shared.saver
    finally:
        shared.users -= 1
        if shared.users == 0:
            # Before the close is awaited: a user that opens the file now gets a new
            # saver.
            del SHARED[place]
            if shared.saver is not None:
                # The queue of its thread completes earlier writes.
                await asyncio.shield(_closed(shared.saver))


async def _closed(saver: SqliteSaver) -> None:
    if saver.reads is not None:
        await saver.reads.close()
    await saver.conn.close()


async def _opened(path: Path) -> SqliteSaver:
    connection = aiosqlite.connect(path, timeout=_LOCK_WAIT_S)
    reads = aiosqlite.connect(path, timeout=_LOCK_WAIT_S)
    try:
        await connection
        saver = SqliteSaver(connection, serde=strict_serializer())
        await saver.setup()  # creates the tables and turns on WAL
        for statement in identity_statements():
            await connection.execute(statement)
        await connection.commit()
        saver.reads = await reads
    except BaseException as error:
        # Also on a cancellation: an open connection keeps its thread and its locks.
        for one in (reads, connection):
            # aiosqlite raises this for a connection that was never opened.
            with suppress(ValueError):
                await one.close()
        if isinstance(error, sqlite3.Error):
            raise _unusable_file(path, error) from error
        raise
    return saver


def _ready(path: Path) -> Path:
    """Create the file for this user only; return its real path, without links.

    Checkpoints contain the arguments of tools.
    """
    make_private(path.parent)
    real = path.resolve()
    if not real.exists():
        _create(real)
    return real


def _create(path: Path) -> None:
    """Create an empty database; close its descriptors before it gets its final name."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # The mode is set at creation: before a later chmod, others could open the file.
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        # WAL is set before others can open the file: two processes that set it at the
        # same time get "database is locked" at once, whatever their timeout is.
        with closing(sqlite3.connect(draft)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        with suppress(FileExistsError):
            # link, unlike rename, never replaces another process's file.
            os.link(draft, path)
    finally:
        draft.unlink()


def _refuse_inherited(path: Path) -> None:
    """Refuse a file that the parent had open when this process was forked.

    SQLite's state was copied with the process and counts locks that the child lacks.
    """
    pid = os.getpid()
    if any(at == path and one.pid != pid for (at, _), one in SHARED.items()):
        raise SettingsError(
            f"The checkpoints in {str(path)!r} were open when this process was forked, "
            "and SQLite must not go through a fork; open Keyturn after the fork, in "
            "each worker, or start workers with the method 'spawn'."
        )


def _unusable_file(path: Path, error: Exception) -> SettingsError:
    return SettingsError(
        f"The checkpoints in {str(path)!r} cannot be opened: {error}. If another "
        "process keeps the file locked, end that process; if its disk is full, free "
        "some space; if it is damaged, restore it from a backup. Otherwise set "
        "'data_dir' or 'checkpoints' to a place this user can write."
    )


_CONNECT_S = 10.0
_POOL_SIZE = 8
# Without parameters: a query with parameters keeps its snapshot until the next one. The
# number is the bytes of "keyturn".
_TRY_LOCK = f"SELECT pg_try_advisory_xact_lock({0x74776F6B6579}) AS is_ours"
"""Tries the lock under which one process at a time creates the tables."""
_SETUP_S, _SETUP_POLL_S = 60.0, 0.1


@asynccontextmanager
async def open_postgres(url: str) -> AsyncGenerator[BaseCheckpointSaver[Any]]:
    """Open a checkpointer over a pool, which survives a restart of the server.

    Through a pooler such as PgBouncer each transaction may get another session, so
    prepared statements and pipelines are used only without a pooler.

    Raises:
        SettingsError: a package is missing or the server does not answer.
    """
    try:
        # By name, when needed: these packages are an extra, and checkpoints in SQLite
        # must not need them.
        savers: Any = importlib.import_module("langgraph.checkpoint.postgres.aio")
        driver: Any = importlib.import_module("psycopg")
        pools: Any = importlib.import_module("psycopg_pool")
        rows: Any = importlib.import_module("psycopg.rows")
    except ImportError as error:
        raise SettingsError(
            "Checkpoints in Postgres need packages that are not installed; run: "
            "pip install 'keyturn[postgres]'"
        ) from error
    # The settings of `AsyncPostgresSaver.from_conn_string`: it reads rows by name, and
    # its setup creates indexes CONCURRENTLY, which is not allowed in a transaction.
    settings: dict[str, Any] = {
        "autocommit": True,
        "prepare_threshold": None,
        "row_factory": rows.dict_row,
    }
    pool: Any = pools.AsyncConnectionPool(
        url, min_size=1, max_size=_POOL_SIZE, open=False, kwargs=settings
    )
    try:
        try:
            # Before the pool, which would hide the reason of a failed connection.
            async with (
                await _connected(driver, url, settings) as own,
                await _connected(driver, url, settings) as making,
            ):
                is_direct = await _is_direct(own)
                await _set_up(driver, own, making, savers.AsyncPostgresSaver(making))
            if is_direct:
                # The pool uses these settings for its new connections.
                settings["prepare_threshold"] = 0
            await pool.open(wait=True, timeout=_CONNECT_S)
            saver = savers.AsyncPostgresSaver(pool, serde=strict_serializer())
            saver.supports_pipeline &= is_direct
        except Exception as error:  # noqa: BLE001 - each is replaced
            # Without its cause: the text of an invalid URL contains the password.
            raise _unusable(driver, url, error) from None
        yield saver
    finally:
        await pool.close()


async def _connected(driver: Any, url: str, settings: dict[str, Any]) -> Any:  # noqa: ANN401 - of an optional package
    async with asyncio.timeout(_CONNECT_S):
        return await driver.AsyncConnection.connect(url, **settings)


async def _is_direct(connection: Any) -> bool:  # noqa: ANN401 - of an optional package
    """Return True without a pooler; a pooler reports another session's id."""
    cursor = await connection.execute("SELECT pg_backend_pid() AS pid")
    return bool((await cursor.fetchone())["pid"] == connection.info.backend_pid)


async def _set_up(driver: Any, own: Any, making: Any, saver: Any) -> None:  # noqa: ANN401 - classes of optional packages
    """Create the tables, one process at a time; the others wait.

    The lock is polled: a process that waits inside ``pg_advisory_lock`` has a snapshot,
    and the lock holder's ``CREATE INDEX CONCURRENTLY`` waits for that snapshot. The
    lock ends with its transaction, also behind a pooler. Only another connection can
    create indexes concurrently.
    """
    # A snapshot of the whole transaction would block them as well.
    await own.set_isolation_level(driver.IsolationLevel.READ_COMMITTED)
    async with asyncio.timeout(_SETUP_S), own.transaction():
        while True:
            cursor = await own.execute(_TRY_LOCK)
            if (await cursor.fetchone())["is_ours"]:
                break
            await asyncio.sleep(_SETUP_POLL_S)
        await saver.setup()
        for statement in identity_statements():
            await making.execute(statement)


def _unusable(driver: Any, url: str, error: Exception) -> SettingsError:  # noqa: ANN401 - as above
    """Return an error with the text of the server or the network, without any password.

    Never the URL itself: it contains a password.
    """
    diagnosis = getattr(error, "diag", None)
    text: str | None = getattr(diagnosis, "message_primary", None)
    # If no address was tried, the text may quote the URL. In an ambiguous URL, the
    # apparent host may be the end of the password.
    if not text and getattr(error, "pgconn", None) and url.count("@") == 1:
        text = str(error).partition("\n")[0]
    if text and (password := driver.conninfo.conninfo_to_dict(url).get("password")):
        text = text.replace(password, "***")
    return SettingsError(
        f"The checkpoints in Postgres cannot be used: {text or type(error).__name__}. "
        "Check host, user, password (with '%40' for '@', for instance) and database in "
        "'checkpoints', that the server is up, and that the database exists and the "
        "user may create tables in it. A pooler in front has to pool sessions or "
        "transactions, not statements."
    )


def open_checkpoints(
    place: str,
) -> AbstractAsyncContextManager[BaseCheckpointSaver[Any]]:
    """Open a checkpointer whose serializer is strict.

    Args:
        place: path of a SQLite file, or a ``postgres://`` or ``postgresql://`` URL.

    Raises:
        SettingsError: it is neither, or cannot be opened.
    """
    if is_postgres(place):
        return open_postgres(place)
    return open_sqlite(Path(place))
