"""Ledgers of spent attempts in both kinds of databases, and processes on one."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import psycopg

from keyturn.gateway.resume.ledger import ledger_of
from keyturn.gateway.setting_forms import is_postgres
from keyturn.gateway.store.store import Store
from tests.resume.postgres_server import fresh_database
from tests.store_secrets import SECRETS

LEASE_MS, SHORT_MS = 60_000, 200
"""How long claims stand. Where it is short, what a dead process spent is soon in doubt.
"""

Started = Callable[..., AbstractAsyncContextManager[Store]]
"""Gives the store as a process sees it that has just started, and has this lease."""


def place_of(kind: str, folder: Path, postgres: str) -> str:
    """Return a new place for checkpoints, and so for a ledger."""
    if kind == "postgres":
        return fresh_database(postgres)
    return str(folder / "checkpoints.sqlite")


def rows(place: str, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Run a statement on a database in a separate session."""
    if is_postgres(place):
        with psycopg.connect(place, autocommit=True) as own:
            found = own.execute(statement.replace("?", "%s").encode(), values)
            return found.fetchall() if found.description else []
    with sqlite3.connect(place) as file:
        return file.execute(statement, values).fetchall()


def processes_of(first: Store, place: str) -> Started:
    """Return a function that starts processes on one store and one ledger."""

    @asynccontextmanager
    async def started(lease_ms: int = LEASE_MS) -> AsyncGenerator[Store]:
        store = Store(first.conn.url, secrets=SECRETS, lease_ms=lease_ms)
        store.keyring = first.keyring
        async with ledger_of(store, place):
            yield store
        await store.close()

    return started
