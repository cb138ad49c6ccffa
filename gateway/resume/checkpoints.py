"""Open a checkpoint database: a SQLite file, or Postgres by URL."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from twokey.gateway.checkpoint_place import check_place, is_postgres
from twokey.gateway.errors import SettingsError
from twokey.gateway.resume.postgres import open_postgres
from twokey.gateway.resume.sqlite import open_sqlite


def open_checkpoints(
    place: str,
) -> AbstractAsyncContextManager[BaseCheckpointSaver[Any]]:
    """Open a checkpointer whose serializer is strict.

    Args:
        place: path of a SQLite file, or a ``postgres://`` or ``postgresql://`` URL.

    Raises:
        SettingsError: when it is neither, or cannot be opened.
    """
    try:
        check_place(place)
    except ValueError as error:
        raise SettingsError(f"'checkpoints': {error}") from None
    if is_postgres(place):
        return open_postgres(place)
    return open_sqlite(Path(place))
