"""Open a Postgres checkpointer; the only room that knows the optional package."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from gateway.errors import SettingsError

_MODULE = "langgraph.checkpoint.postgres.aio"


@asynccontextmanager
async def open_postgres(
    url: str, serializer: SerializerProtocol
) -> AsyncGenerator[BaseCheckpointSaver[Any]]:
    """Open a checkpointer in Postgres and create its tables.

    Raises:
        SettingsError: when the package is missing or the server does not answer.
    """
    try:
        # By name, at the time of need: the package is an extra, and who keeps
        # checkpoints in SQLite must not need it.
        saver_class: Any = importlib.import_module(_MODULE).AsyncPostgresSaver
    except ImportError as error:
        raise SettingsError(
            "Checkpoints in Postgres need a package that is not installed; run: "
            "pip install 'twokey[postgres]'"
        ) from error
    connecting = saver_class.from_conn_string(url, serde=serializer)
    try:
        saver = await connecting.__aenter__()
    except Exception as error:
        raise _unusable(url, error) from error
    try:
        try:
            await saver.setup()
        except Exception as error:
            raise _unusable(url, error) from error
        yield saver
    finally:
        await connecting.__aexit__(None, None, None)


def _unusable(url: str, error: Exception) -> SettingsError:
    # Never the URL itself: it holds a password.
    host = urlsplit(url).hostname or "?"
    return SettingsError(
        f"The checkpoints in Postgres at {host!r} cannot be used "
        f"({type(error).__name__}); check 'checkpoints' and that the server is up."
    )
