"""Threads are stored in SQLite or Postgres; an unusable database is refused."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import struct
import traceback
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from psycopg.sql import SQL, Identifier

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.resume import checkpoints
from keyturn.gateway.resume import recovery as listing
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.recovery import newest_threads
from tests.conftest import eventually
from tests.resume.postgres_server import fresh_database


async def test_sqlite_serves_several_processes_of_one_user(tmp_path: Path) -> None:
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


async def test_a_file_that_another_process_keeps_locked_is_not_to_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "checkpoints.sqlite"
    async with open_checkpoints(str(place)):
        pass
    monkeypatch.setattr(checkpoints, "_LOCK_WAIT_S", 0.05)

    with closing(sqlite3.connect(place, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            SettingsError, match="keeps the file locked, end that process"
        ):
            async with open_checkpoints(str(place)):
                pass


async def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(
        "keyturn.gateway.resume.checkpoints.importlib.import_module", missing
    )

    with pytest.raises(SettingsError, match=r"pip install 'keyturn\[postgres\]'"):
        async with open_checkpoints("postgresql://user:hunter2@db.example/keyturn"):
            pass


async def test_gateways_share_a_fresh_postgres_at_start(postgres: str) -> None:
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


async def test_a_user_that_may_create_no_tables_is_told_so(postgres: str) -> None:
    fresh, name = fresh_database(postgres), f"reader_{secrets.token_hex(6)}"
    with psycopg.connect(fresh, autocommit=True) as own:
        own.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(name)))
        own.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")

    with pytest.raises(SettingsError, match="permission denied for schema public"):
        async with open_checkpoints(fresh.replace("//keyturn@", f"//{name}@")):
            pass


async def test_a_refused_password_is_reported_and_hidden() -> None:
    async def refuse(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with closing(writer):
            while True:
                [size] = struct.unpack("!i", await reader.readexactly(4))
                version = (await reader.readexactly(size - 4))[:4]
                if version == struct.pack("!hh", 3, 0):
                    break
                writer.write(b"N")  # neither SSL nor GSSAPI
            writer.write(b"R" + struct.pack("!ii", 8, 3))  # asks for the password
            _, size = struct.unpack("!ci", await reader.readexactly(5))
            password = await reader.readexactly(size - 4)
            said = b"SFATAL\0C28P01\0Mno entry for " + password + b"\0"
            writer.write(b"E" + struct.pack("!i", 4 + len(said)) + said)
            await writer.drain()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port, password = server.sockets[0].getsockname()[1], "hunter2"
    async with server:
        with pytest.raises(SettingsError, match=r"no entry for \*\*\*") as caught:
            async with open_checkpoints(
                f"postgresql://u:{password}@127.0.0.1:{port}/d"
            ):
                pass
    assert password not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("password", ["hun@ter2", "hun%ter2", "hun/@ter2", "h@n/@ter2"])
async def test_a_password_that_breaks_its_url_is_not_shown(
    password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyturn.gateway.resume.checkpoints._CONNECT_S", 0.2)

    with pytest.raises(SettingsError, match="'%40' for '@'") as caught:
        async with open_checkpoints(f"postgresql://u:{password}@127.0.0.1:1/keyturn"):
            pass

    shown = "".join(traceback.format_exception(caught.value))
    assert not any(part in shown for part in ("hun", "ter2", "h@n"))


Saver = BaseCheckpointSaver[Any]


class State(TypedDict):
    """What the graphs keep."""

    asks: bool
    said: str


def node(state: State) -> dict[str, str]:
    """Make a call, or answer nothing."""
    return {"said": str(interrupt("well?")) if state["asks"] else ""}


@pytest.fixture(params=["sqlite", "postgres"])
async def saver(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[Saver]:
    """Give an empty saver."""
    place = str(tmp_path / "c.db")
    if request.param == "postgres":
        place = fresh_database(request.getfixturevalue("postgres"))
    async with open_checkpoints(place) as opened:
        yield opened


def graph_on(saver: Saver, *, depth: int) -> Any:
    """Return a graph that asks at once or in a graph inside."""
    graph: Any = StateGraph(State)
    graph.add_node("node", node).add_edge(START, "node")
    if depth:
        inner, graph = graph.compile(), StateGraph(State)
        graph.add_node("in", inner).add_edge(START, "in")
    return graph.compile(checkpointer=saver)


def at(thread: str) -> RunnableConfig:
    """Name a thread."""
    return {"configurable": {"thread_id": thread}}


async def test_those_that_ask_are_listed_and_no_others(
    saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    for depth in (0, 1):
        graph = graph_on(saver, depth=depth)
        for number in range(3):
            await graph.ainvoke({"asks": True}, at(f"asks-{depth}-{number}"))
            await graph.ainvoke({"asks": False}, at(f"says-{depth}-{number}"))
        answered = at(f"answered-{depth}")
        await graph.ainvoke({"asks": True}, answered)
        await graph.ainvoke(Command(resume="yes"), answered)

    pages = [page async for page in newest_threads(saver)]
    found = [thread for page in pages for thread, is_waiting in page if is_waiting]

    asking = [f"asks-{depth}-{number}" for depth in (0, 1) for number in range(3)]
    assert sorted(found) == asking
