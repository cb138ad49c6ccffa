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
            # Not from the pool: the advisory lock ends with this connection, whatever
            # goes wrong. And before the pool, which would not say why it cannot
            # connect.
            async with await _connected(driver, url, settings) as own:
                await _set_up(savers.AsyncPostgresSaver(own), own)
            await pool.open(wait=True, timeout=_CONNECT_S)
            saver = savers.AsyncPostgresSaver(pool, serde=strict_serializer())
        except Exception as error:  # noqa: BLE001 - all of them are raised as another
            # Without its cause: the text of a URL that cannot be read has the password.
            raise _unusable(url, _said(driver, url, error)) from None
        yield saver
    finally:
        await pool.close()


async def _connected(driver: Any, url: str, settings: dict[str, Any]) -> Any:  # noqa: ANN401 - of an optional package
    """Connect, and wait a while for a server that starts together with the gateway.

    Raises:
        psycopg.Error: the last one, and at once what no other attempt would change.
        TimeoutError: when there is no answer at all.
    """
    refused: Exception | None = None
    try:
        async with asyncio.timeout(_CONNECT_S):
            while True:
                try:
                    return await driver.AsyncConnection.connect(url, **settings)
                except driver.OperationalError as error:
                    refused = error
                    tried = error.pgconn
                    # A server asks for passwords once it has started.
                    if tried and (tried.used_password or tried.needs_password):
                        raise
                await asyncio.sleep(_SETUP_POLL_S)
    except TimeoutError:
        raise refused or TimeoutError from None


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


def _unusable(url: str, said: str) -> SettingsError:
    # Never the URL itself: it holds a password. Where it can be read in two ways, what
    # seems to be its host may be the end of the password.
    host = "" if _is_ambiguous(url) else urlsplit(url).hostname or "the local socket"
    return SettingsError(
        f"The checkpoints in Postgres{f' at {host!r}' if host else ''} cannot be used: "
        f"{said}. Check host, user, password (with '%40' for '@', for instance) and "
        "database in 'checkpoints', that the server is up, and that the database "
        "exists and the user may create tables in it."
    )


def _is_ambiguous(url: str) -> bool:
    return url.count("@") > 1


def _said(driver: Any, url: str, error: Exception) -> str:  # noqa: ANN401 - as above
    """Return what the server or the network said, without any password."""
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_S:g} s"
    diagnosis = getattr(error, "diag", None)
    text: str | None = getattr(diagnosis, "message_primary", None)
    # Where no address was tried, the text may quote the URL.
    if not text and getattr(error, "pgconn", None) and not _is_ambiguous(url):
        text = str(error).partition("\n")[0]
    if text:
        password = driver.conninfo.conninfo_to_dict(url).get("password")
        return text.replace(password, "***") if password else text
    if isinstance(error, driver.OperationalError | driver.ProgrammingError):
        return "its host is not found, or the URL cannot be read"
    return type(error).__name__
