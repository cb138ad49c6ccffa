"""Open the place where threads are kept: a SQLite file, or Postgres by URL."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiosqlite
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from gateway.errors import SettingsError
from gateway.resume import postgres
from gateway.resume.strict_state import strict_serializer

_LOCK_WAIT_S = 30.0
"""How long one process waits for another's write; SQLite allows one at a time."""


@asynccontextmanager
async def open_checkpoints(place: str) -> AsyncGenerator[BaseCheckpointSaver[Any]]:
    """Open a checkpointer whose serializer is strict.

    Args:
        place: path of a SQLite file, or a ``postgres://`` or ``postgresql://`` URL.

    Raises:
        SettingsError: when it cannot be opened.
    """
    opened = (
        postgres.open_postgres(place, strict_serializer())
        if urlsplit(place).scheme in {"postgres", "postgresql"}
        else _open_sqlite(Path(place))
    )
    async with opened as saver:
        yield saver


@asynccontextmanager
async def _open_sqlite(path: Path) -> AsyncGenerator[BaseCheckpointSaver[Any]]:
    try:
        await asyncio.to_thread(_prepare, path)
    except (OSError, sqlite3.Error) as error:
        raise SettingsError(
            f"The checkpoints in {str(path)!r} cannot be opened: {error}. Set "
            "'data_dir' or 'checkpoints' to a place this user can write."
        ) from error
    async with aiosqlite.connect(path, timeout=_LOCK_WAIT_S) as connection:
        saver = AsyncSqliteSaver(connection, serde=strict_serializer())
        await saver.setup()  # creates the tables and turns on WAL
        yield saver


def _prepare(path: Path) -> None:
    """Create the file for this user only, and see that it is a database.

    Checkpoints hold what tools are called with.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    with closing(sqlite3.connect(path, timeout=_LOCK_WAIT_S)) as connection:
        connection.execute("PRAGMA schema_version")
