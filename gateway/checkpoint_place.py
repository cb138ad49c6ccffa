"""Where checkpoints are kept: the path of a SQLite file, or a Postgres URL."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import SecretStr

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.ASCII | re.IGNORECASE)
_MEMORY = frozenset({"memory", ":memory:"})
_WRITE = "write the path of a SQLite file, or postgresql://user:password@host/name"


def is_postgres(place: str) -> bool:
    """Return whether a place is a Postgres database; else it is a SQLite file."""
    return urlsplit(place).scheme in {"postgres", "postgresql"}


def check_place(place: str) -> None:
    """Refuse what is meant as something else than a file and would be made one.

    ``postgresql+asyncpg://…`` of another library would be the path of a new file: each
    gateway would keep the threads for itself, and the password would name a folder.

    Raises:
        ValueError: with a text that does not hold the place, which may have a password.
    """
    if place in _MEMORY:
        raise ValueError(
            f"checkpoints in memory would be lost with the process; {_WRITE}."
        )
    if _URL.match(place) and not is_postgres(place):
        raise ValueError(
            f"this is no place for checkpoints; {_WRITE} (without '+' and a driver)."
        )


def checked_place(place: SecretStr) -> SecretStr:
    """Return a place that `check_place` allows; for a setting."""
    check_place(place.get_secret_value())
    return place
