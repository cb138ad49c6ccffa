"""Open SQLite checkpointers, one for each file, shared inside the process.

Theory of operation. SQLite keeps its locks as POSIX advisory locks, and a process loses
all of these on a file when it closes *any* descriptor of that file ("How To Corrupt An
SQLite Database File", section 2.2). So nothing here, and nothing else in Twokey, opens
a checkpoint file but SQLite itself: a new file is made complete under another name and
then linked to its own, and what an existing one holds is found out by SQLite.

Several users of one file in one event loop share a saver. Its writes are brought to
their end when the caller is cancelled: a transaction that stays open on a shared
connection would keep every other process from writing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import sqlite3
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from twokey.gateway.errors import SettingsError
from twokey.gateway.resume.identity import identity_statements
from twokey.gateway.resume.strict_state import strict_serializer

CoroutineT = TypeVar("CoroutineT", bound=Callable[..., Coroutine[Any, Any, Any]])

_LOCK_WAIT_S = 30.0
"""How long one process waits for another's write; SQLite allows one at a time."""


def to_the_end(write: CoroutineT) -> CoroutineT:
    """Bring what a coroutine writes to its end, also when its caller is cancelled."""

    @wraps(write)
    async def shielded(*args: object, **named: object) -> object:
        return await asyncio.shield(write(*args, **named))

    return cast("CoroutineT", shielded)  # it is called like what it wraps


class SqliteSaver(AsyncSqliteSaver):
    """A saver that leaves no transaction open, whenever its caller is cancelled.

    ``reads`` is a connection for reads alone, once the saver is set up.
    """

    reads: aiosqlite.Connection | None = None

    aput = to_the_end(AsyncSqliteSaver.aput)
    aput_writes = to_the_end(AsyncSqliteSaver.aput_writes)
    adelete_thread = to_the_end(AsyncSqliteSaver.adelete_thread)


class _Shared:
    """The one saver of a file in an event loop, and how many use it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.users = 0
        self.opening = asyncio.Lock()
        self.saver: SqliteSaver | None = None


_Place = tuple[Path, asyncio.AbstractEventLoop]
SHARED: Final[dict[_Place, _Shared]] = {}
"""The files that are open in this process."""


@asynccontextmanager
async def open_sqlite(path: Path) -> AsyncGenerator[SqliteSaver]:
    """Open the saver of a file, or share the one that is open in this event loop.

    Raises:
        SettingsError: when the file cannot be used.
    """
    try:
        found = await asyncio.to_thread(_ready, path)
    except OSError as error:
        raise _unusable(path, error) from error
    # One saver for each event loop: its lock and its connection belong to the loop.
    place = (found, asyncio.get_running_loop())
    shared = SHARED.setdefault(place, _Shared())
    # Counted before anything is awaited: the last other user would close the saver
    # under this one.
    shared.users += 1
    try:
        _refuse_inherited(found)
        # Users that begin at once wait for the first one's saver.
        async with shared.opening:
            if shared.saver is None:
                shared.saver = await _opened(found)
        yield shared.saver
    finally:
        shared.users -= 1
        if shared.users == 0:
            # Before the close is awaited: who opens the file meanwhile gets a saver of
            # its own.
            del SHARED[place]
            if shared.saver is not None:
                # The queue of its thread brings writes before it to their end.
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
        # A cancellation, too: an open connection keeps its thread and its locks.
        for one in (reads, connection):
            # What aiosqlite raises when the connection was never opened.
            with suppress(ValueError):
                await one.close()
        if isinstance(error, sqlite3.Error):
            raise _unusable(path, error) from error
        raise
    return saver


def _ready(path: Path) -> Path:
    """Create the file for this user only; return its one name, without links.

    Checkpoints hold what tools are called with.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    real = path.resolve()
    if not real.exists():
        _create(real)
    return real


def _create(path: Path) -> None:
    """Create an empty database, whose descriptor is closed before it has its name."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # The mode is given at creation: with a chmod after it, others could open the file
    # in between.
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with suppress(FileExistsError):
            # link, unlike rename, never replaces what another process put there.
            os.link(draft, path)
    finally:
        draft.unlink()


def _refuse_inherited(path: Path) -> None:
    """Refuse a file that the parent had open when this process was forked.

    SQLite's own state was copied with it and counts locks that this process lacks.
    """
    pid = os.getpid()
    if any(at == path and one.pid != pid for (at, _), one in SHARED.items()):
        raise SettingsError(
            f"The checkpoints in {str(path)!r} were open when this process was forked, "
            "and SQLite must not go through a fork; open Twokey after the fork, in "
            "each worker, or start workers with the method 'spawn'."
        )


_HELP: Final = {
    "SQLITE_BUSY": "Another process keeps it locked: end that process, then start "
    "again.",
    "SQLITE_FULL": "Free some space on its disk, then start again.",
    "SQLITE_CORRUPT": "It is damaged: restore it from a backup. With a new file, "
    "threads that wait do not go on.",
    "SQLITE_NOTADB": "It is damaged, or another kind of file: restore it from a "
    "backup, or correct 'checkpoints'. With a new file, threads that wait do not go "
    "on.",
}
"""What to do, by the first two words of SQLite's name for an error."""

_ELSEWHERE = "Set 'data_dir' or 'checkpoints' to a place this user can write."


def _unusable(path: Path, error: Exception) -> SettingsError:
    name = str(getattr(error, "sqlite_errorname", ""))
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        name = "SQLITE_FULL"
    # An extended code has more words, such as `SQLITE_BUSY_RECOVERY`.
    help_of = _HELP.get("_".join(name.split("_")[:2]), _ELSEWHERE)
    return SettingsError(
        f"The checkpoints in {str(path)!r} cannot be opened: {error}. {help_of}"
    )
