"""Open the place where threads are kept: a SQLite file, or Postgres by URL."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from langgraph.checkpoint.base import BaseCheckpointSaver

from twokey.gateway.resume.postgres import open_postgres
from twokey.gateway.resume.sqlite import open_sqlite


@asynccontextmanager
async def open_checkpoints(place: str) -> AsyncGenerator[BaseCheckpointSaver[Any]]:
    """Open a checkpointer whose serializer is strict.

    Args:
        place: path of a SQLite file, or a ``postgres://`` or ``postgresql://`` URL.

    Raises:
        SettingsError: when it cannot be opened.
    """
    opened = (
        open_postgres(place)
        if urlsplit(place).scheme in {"postgres", "postgresql"}
        else open_sqlite(Path(place))
    )
    async with opened as saver:
        yield saver
