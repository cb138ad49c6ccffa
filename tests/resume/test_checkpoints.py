"""Threads are kept in SQLite or Postgres; what cannot be opened says so."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import psycopg
import pytest

from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.postgres_server import fresh_database
from tests.resume.resume_stack import Stack
from twokey.gateway.errors import SettingsError
from twokey.gateway.resume.checkpoints import open_checkpoints
from twokey.gateway.resume.graphs import attached
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.store.store import Store


async def test_sqlite_is_made_ready_for_several_processes_of_one_user(
    tmp_path: Path,
) -> None:
    place = tmp_path / "deep" / "checkpoints.db"

    async with open_checkpoints(str(place)):
        pass

    with sqlite3.connect(place) as connection:
        [mode] = connection.execute("PRAGMA journal_mode").fetchone()
    assert mode == "wal"
    for private in (place.parent, place):
        assert private.stat().st_mode & 0o077 == 0


async def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    junk = tmp_path / "junk.db"
    junk.write_text("this is no database at all, whatever it is called" * 100)

    for place in (junk, tmp_path, junk / "below"):
        with pytest.raises(SettingsError, match="cannot be opened"):
            async with open_checkpoints(str(place)):
                pass


async def test_postgres_without_its_packages_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(
        "twokey.gateway.resume.postgres.importlib.import_module", missing
    )

    with pytest.raises(SettingsError, match=r"pip install 'twokey\[postgres\]'"):
        async with open_checkpoints("postgresql://user:hunter2@db.example/twokey"):
            pass


@pytest.mark.slow
async def test_postgres_keeps_threads(store: Store, postgres: str) -> None:
    for amount in (1, 2):  # the second time the tables are there
        thread = f"pg-{os.getpid()}-{amount}"
        async with open_checkpoints(postgres) as saver:
            stack = Stack(store, LangGraphLocal(attached(sample_tools.graph(), saver)))
            async with stack.working():
                call = ("refund", {"order": "1", "amount": amount})
                await stack.ask(call, thread=thread)
                [item] = await stack.asked(thread=thread)
        async with open_checkpoints(postgres) as saver:
            stack = Stack(store, LangGraphLocal(attached(sample_tools.graph(), saver)))
            async with stack.working():
                await stack.decide(item)
                words = await stack.words(thread=thread)
        assert words == f"refunded 1 {amount}"


async def test_gateways_that_start_together_on_a_fresh_postgres_all_start(
    postgres: str,
) -> None:
    fresh = fresh_database(postgres)

    async def start() -> None:
        async with open_checkpoints(fresh):
            pass

    await asyncio.gather(*(start() for _ in range(6)))

    async with await psycopg.AsyncConnection.connect(fresh) as connection:
        # Postgres frees the locks of a session after its client is gone, not before.
        async def none_is_locked() -> bool:
            cursor = await connection.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            )
            return await cursor.fetchone() == (0,)

        await eventually(none_is_locked)


async def test_a_postgres_that_does_not_answer_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twokey.gateway.resume.postgres._CONNECT_S", 0.2)
    with pytest.raises(SettingsError, match=r"at '127\.0\.0\.1'") as caught:
        async with open_checkpoints("postgresql://user:hunter2@127.0.0.1:1/twokey"):
            pass
    assert "hunter2" not in str(caught.value)
