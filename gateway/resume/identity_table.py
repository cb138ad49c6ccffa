"""Table of a checkpoint database that holds its random id, in SQLite and Postgres."""

from __future__ import annotations

import secrets

SELECT_IDENTITY = "SELECT id FROM twokey_identity WHERE one = 1"


def identity_statements() -> tuple[str, ...]:
    """Return what gives a database an id, unless it has one."""
    table = "twokey_identity (one INTEGER PRIMARY KEY, id TEXT)"
    row = f"(1, '{secrets.token_hex(16)}')"
    return (
        f"CREATE TABLE IF NOT EXISTS {table}",
        f"INSERT INTO twokey_identity VALUES {row} ON CONFLICT DO NOTHING",  # noqa: S608 - hex digits of our own
    )
