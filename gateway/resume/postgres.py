"""Open a Postgres checkpointer; the only room that knows the optional packages."""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from gateway.errors import SettingsError

logger = logging.getLogger(__name__)

_CONNECT_S = 10.0
_POOL_SIZE = 8
_SETUPS = 3
"""Two processes that start at once may both create the tables; one of them errs."""


@asynccontextmanager
async def open_postgres(
    url: str, serializer: SerializerProtocol
) -> AsyncGenerator[BaseCheckpointSaver[Any]]:
    """Open a checkpointer over a pool, which survives a restart of the server.

    Raises:
        SettingsError: when a package is missing or the server does not answer.
    """
    try:
        # By name, at the time of need: they are an extra, and who keeps checkpoints
        # in SQLite must not need them.
        savers: Any = importlib.import_module("langgraph.checkpoint.postgres.aio")
        pools: Any = importlib.import_module("psycopg_pool")
        rows: Any = importlib.import_module("psycopg.rows")
    except ImportError as error:
        raise SettingsError(
            "Checkpoints in Postgres need packages that are not installed; run: "
            "pip install 'twokey[postgres]'"
        ) from error
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
            saver = savers.AsyncPostgresSaver(pool, serde=serializer)
            await _set_up(saver)
        except Exception as error:
            raise _unusable(url, error) from error
        yield saver
    finally:
        await pool.close()


async def _set_up(saver: Any) -> None:  # noqa: ANN401 - the class of an optional package
    for _ in range(_SETUPS - 1):
        try:
            await saver.setup()
        except Exception:
            logger.warning("checkpoints.setup_again", exc_info=True)
        else:
            return
    await saver.setup()


def _unusable(url: str, error: Exception) -> SettingsError:
    # Never the URL itself: it holds a password.
    host = urlsplit(url).hostname or "the local socket"
    return SettingsError(
        f"The checkpoints in Postgres at {host!r} cannot be used "
        f"({type(error).__name__}); check 'checkpoints' and that the server is up."
    )
