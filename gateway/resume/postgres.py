"""Open a Postgres checkpointer, the only module that needs the Postgres packages."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from langgraph.checkpoint.base import BaseCheckpointSaver

from twokey.gateway.errors import SettingsError
from twokey.gateway.resume.identity import identity_statements
from twokey.gateway.resume.strict_state import strict_serializer

_CONNECT_S = 10.0
_POOL_SIZE = 8
# The bytes of "twokey".
_SETUP_LOCK = 0x74776F6B6579
"""Key of the advisory lock under which one process at a time creates the tables."""
_SETUP_S, _SETUP_POLL_S = 60.0, 0.1


@asynccontextmanager
async def open_postgres(url: str) -> AsyncGenerator[BaseCheckpointSaver[Any]]:
    """Open a checkpointer over a pool, which survives a restart of the server.

    Raises:
        SettingsError: when a package is missing or the server does not answer.
    """
    try:
        # By name, at the time of need: they are an extra, and who keeps checkpoints
        # in SQLite must not need them.
        savers: Any = importlib.import_module("langgraph.checkpoint.postgres.aio")
        driver: Any = importlib.import_module("psycopg")
        pools: Any = importlib.import_module("psycopg_pool")
        rows: Any = importlib.import_module("psycopg.rows")
    except ImportError as error:
        raise SettingsError(
            "Checkpoints in Postgres need packages that are not installed; run: "
            "pip install 'twokey[postgres]'"
        ) from error
    # What `AsyncPostgresSaver.from_conn_string` sets: it reads rows by name, and its
    # setup creates indexes CONCURRENTLY, which no transaction allows.
    settings = {
        "autocommit": True,
        "prepare_threshold": 0,
        "row_factory": rows.dict_row,
    }
    pool: Any = pools.AsyncConnectionPool(
        url, min_size=1, max_size=_POOL_SIZE, open=False, kwargs=settings
    )
    try:
        try:
            await pool.open(wait=True, timeout=_CONNECT_S)
            # Not from the pool: the advisory lock ends with this connection, whatever
            # goes wrong.
            async with await driver.AsyncConnection.connect(url, **settings) as own:
                await _set_up(savers.AsyncPostgresSaver(own), own)
            saver = savers.AsyncPostgresSaver(pool, serde=strict_serializer())
        except Exception as error:
            raise _unusable(url, error) from error
        yield saver
    finally:
        await pool.close()


async def _set_up(saver: Any, connection: Any) -> None:  # noqa: ANN401 - classes of optional packages
    """Create the tables, one process at a time; the others wait.

    The lock is polled: who waits inside ``pg_advisory_lock`` holds a snapshot, and the
    ``CREATE INDEX CONCURRENTLY`` of the lock's holder waits for that snapshot. The lock
    ends with its connection, so nothing has to release it.
    """
    async with asyncio.timeout(_SETUP_S):
        while True:
            cursor = await connection.execute(
                "SELECT pg_try_advisory_lock(%s) AS is_ours", (_SETUP_LOCK,)
            )
            if (await cursor.fetchone())["is_ours"]:
                break
            await asyncio.sleep(_SETUP_POLL_S)
        await saver.setup()
        for statement in identity_statements():
            await connection.execute(statement)


def _unusable(url: str, error: Exception) -> SettingsError:
    # Never the URL itself: it holds a password.
    host = urlsplit(url).hostname or "the local socket"
    return SettingsError(
        f"The checkpoints in Postgres at {host!r} cannot be used "
        f"({type(error).__name__}); check 'checkpoints' and that the server is up."
    )
