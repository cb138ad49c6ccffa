"""Threads are stored in SQLite or Postgres; an unusable database is refused."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver as SyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from psycopg.sql import SQL, Identifier

from keyturn.cli.doctor import check_checkpoints
from keyturn.gateway.clock import now_s
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError, SettingsError
from keyturn.gateway.resume import checkpoints
from keyturn.gateway.resume import recovery as listing
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.fence_tables import PostgresFence, Put
from keyturn.gateway.resume.recovery import newest_threads
from keyturn.gateway.store.scripts.fences import Lease
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.debian import find_or_install
from tests.forked import Forked
from tests.ports import free_port
from tests.resume import sample_tools
from tests.resume.checkpoint_process import keep_step, keep_steps
from tests.resume.postgres_server import fresh_database
from tests.resume.resume_stack import RULES
from tests.topologies import until


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


OTHERS, THREADS = 2, 10
PLACE: Any = {
    "configurable": {"thread_id": "t1", "checkpoint_ns": "", "checkpoint_id": "1"}
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.sqlite"


async def other_process(file: Path, thread: str) -> None:
    """Open the file in another process, write a thread, and close it."""
    program = "tests.resume.checkpoint_process"
    process = await asyncio.to_thread(Forked, program, str(file), thread)
    assert await asyncio.to_thread(process.wait) == 0


async def threads_in(file: Path) -> int:
    """Check the file in a separate process, and count its threads.

    A check in this process would close a descriptor that is still needed.
    """
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        "print(c.execute('PRAGMA integrity_check').fetchone()[0],"
        "c.execute('SELECT count(DISTINCT thread_id) FROM checkpoints '"
        "\"WHERE thread_id NOT LIKE 'keyturn:restore-counter:%'\").fetchone()[0])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(file), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    whole, count = said.split()
    assert whole == b"ok"
    return int(count)


async def test_concurrent_openings_keep_every_thread(file: Path) -> None:
    async with open_checkpoints(str(file)) as saver:
        await keep_step(saver, "first")
        await keep_steps(str(file), "second")
        for other in range(OTHERS):
            await other_process(file, f"other{other}")
            for number in range(THREADS):
                await keep_step(saver, f"t{other}-{number}")

    assert await threads_in(file) == 2 + OTHERS * (1 + THREADS)


async def test_processes_that_create_the_file_together_share_it(file: Path) -> None:
    await asyncio.gather(*(other_process(file, f"t{number}") for number in range(3)))

    assert await threads_in(file) == 3
    assert _is_private(file)


async def test_a_process_that_reads_a_new_file_at_once_keeps_nobody_out(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_LOCK_WAIT_S", 0.1)
    real = os.link
    with ExitStack() as stack:

        def link(draft: Path, path: Path) -> None:
            real(draft, path)
            other = sqlite3.connect(path, check_same_thread=False)
            stack.callback(other.close)
            other.execute("BEGIN")
            other.execute("SELECT * FROM sqlite_schema").fetchall()

        monkeypatch.setattr(os, "link", link)
        await keep_steps(str(file), "t1")

    assert await threads_in(file) == 1


def _is_private(file: Path) -> bool:
    return not file.stat().st_mode & 0o077 and not [*file.parent.glob(".*")]


async def test_one_saver_serves_all_who_open_the_file(file: Path) -> None:
    link = file.with_name("link.sqlite")
    link.symlink_to(file)

    async with open_checkpoints(str(file)) as first:
        async with open_checkpoints(str(link)) as second:
            assert second is first
        await keep_step(first, "t1")  # one that leaves closes nothing of the others
    async with open_checkpoints(str(file)) as third:
        assert third is not first
        await keep_step(third, "t2")

    assert await threads_in(file) == 2


async def test_openings_that_are_cancelled_leave_the_file_usable(file: Path) -> None:
    async def hold() -> None:
        async with open_checkpoints(str(file)):
            await asyncio.sleep(60)

    for turns in range(12):
        holders = [asyncio.create_task(hold()) for _ in range(2)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for holder in holders:
            holder.cancel()
        await asyncio.gather(*holders, return_exceptions=True)
    await keep_steps(str(file), "t1")

    assert not checkpoints.SHARED
    assert await threads_in(file) == 1


async def test_each_event_loop_has_a_saver_of_its_own(file: Path) -> None:
    def elsewhere(thread: str) -> None:
        asyncio.run(keep_steps(str(file), thread))

    async with open_checkpoints(str(file)) as saver:
        await asyncio.gather(
            *(asyncio.to_thread(elsewhere, f"t{number}") for number in range(3)),
            *(keep_step(saver, f"here{number}") for number in range(3)),
        )
        await other_process(file, "other")
        await keep_step(saver, "last")

    assert await threads_in(file) == 8


async def test_a_cancelled_write_keeps_no_other_process_from_writing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_checkpoints(str(file)) as opened:
        saver = cast("checkpoints.SqliteSaver", opened)
        has_written, may_commit = asyncio.Event(), asyncio.Event()
        commit = saver.conn.commit

        async def late() -> None:
            has_written.set()
            await may_commit.wait()
            await commit()

        monkeypatch.setattr(saver.conn, "commit", late)
        writes: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: saver.aput(PLACE, empty_checkpoint(), {}, {}),
            lambda: saver.adelete_thread("t1"),
            lambda: saver.aput_writes(PLACE, [("channel", 1)], "task"),
        ]
        for write in writes:
            writing = asyncio.create_task(write())
            await has_written.wait()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            may_commit.set()
            await asyncio.to_thread(_write_something, file)
            has_written.clear()
            may_commit.clear()


def _write_something(file: Path) -> None:
    with closing(sqlite3.connect(file, timeout=5)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.rollback()


async def test_a_fork_with_an_open_file_is_refused_in_the_child(file: Path) -> None:
    async with open_checkpoints(str(file)):
        [shared] = checkpoints.SHARED.values()
        shared.pid = -1  # as the child finds it

        with pytest.raises(SettingsError, match="when this process was forked"):
            await asyncio.to_thread(asyncio.run, keep_steps(str(file), "t1"))

        shared.pid = os.getpid()


class _Synchronous(BaseCheckpointSaver[str]):
    """A checkpointer of a program's own, without asynchronous methods."""


async def test_a_sync_checkpointer_is_refused(store: Store, tmp_path: Path) -> None:
    asked: Any = {"messages": [{"role": "user", "content": "hello"}]}
    with SyncSqliteSaver.from_conn_string(str(tmp_path / "own.sqlite")) as own:
        for saver in (own, _Synchronous()):
            graph = sample_tools.graph().copy(update={"checkpointer": saver})
            async with Keyturn(
                policy=RULES, url=store.conn.url, data_dir=tmp_path
            ) as t:
                expected = f"{type(saver).__name__}, which has no asynchronous methods"
                with pytest.raises(GraphError, match=expected):
                    await t.run(
                        graph, asked, thread_id="t1", agent="shop", timeout_s=60
                    )
                with pytest.raises(GraphError, match=expected):
                    await t.delete(graph, thread_id="t1", agent="shop")


@pytest.mark.parametrize("place", [":memory:", "postgresql+asyncpg://u:hush@h/d"])
async def test_what_is_no_place_for_threads_is_refused_and_makes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SettingsError, match="SQLite file, or postgresql://") as refused:
        async with Keyturn(policy=RULES, data_dir=tmp_path, checkpoints=place):
            pass

    assert "hush" not in str(refused.value)
    made = {path.name for path in tmp_path.rglob("*")}  # noqa: ASYNC240 - a few files
    assert not made & {":memory:", "postgresql+asyncpg:", "d"}


CONFIG = """
[databases]
* = host={host} user=keyturn
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
server_round_robin = 1
ignore_startup_parameters = extra_float_digits
"""

Pooled = Callable[[str], str]


@pytest.fixture
def pooled(postgres: str, tmp_path: Path) -> Generator[Pooled]:
    """Start a pooler in a mode, in front of a fresh database; return its URL."""
    program = find_or_install(_installed, "pgbouncer")
    if program is None:
        pytest.fail(
            "These tests need pgbouncer. Install it, on Debian with `apt-get install "
            "pgbouncer`."
        )
    url = fresh_database(postgres)
    with _poolers(program, url, tmp_path) as start:
        yield start


def _installed() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


@contextmanager
def _poolers(program: str, url: str, folder: Path) -> Generator[Pooled]:
    there, started = urlsplit(url), list[subprocess.Popen[bytes]]()
    host = parse_qs(there.query)["host"][0]

    def start(mode: str) -> str:
        port = free_port()
        config = folder / "pgbouncer.ini"
        config.write_text(CONFIG.format(host=host, port=port, mode=mode))
        user = 65534 if os.geteuid() == 0 else None
        with config.open("rb") as readable:
            started.append(
                subprocess.Popen(
                    [program, "-q", "/dev/stdin"],
                    stdin=readable,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    user=user,
                    group=user,
                )
            )
        until(partial(_listens, port), "the pooler listens")
        return f"postgresql://keyturn@127.0.0.1:{port}{there.path}"

    try:
        yield start
    finally:
        for one in started:
            one.terminate()
            one.wait(10)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


async def _run_beside_others(url: str, number: int) -> None:
    """Do what a run does: raise its fence, write under it, and read."""
    at: RunnableConfig = {
        "configurable": {"thread_id": f"t{number}", "checkpoint_ns": ""}
    }
    async with open_checkpoints(url) as saver:
        fence = PostgresFence()
        lease = Lease(f"l{number}", "me", fence=3, ends_s=now_s() + 60, renumber=_never)
        for _ in range(5):
            assert await fence.raise_fence(saver, lease) == 3
            given = (at, empty_checkpoint(), dict[str, Any](), dict[str, Any]())
            await fence.write(saver, lease, at, Put("aput", saver.aput, given))
            kept = await saver.aget_tuple(at)
            assert kept is not None
            writes = (kept.config, [("channel", number)], "task")
            await fence.write(
                saver, lease, at, Put("aput_writes", saver.aput_writes, writes)
            )
            kept = await saver.aget_tuple(at)
            assert kept is not None
            assert kept.pending_writes == [("task", "channel", number)]


async def _never(_lease: Lease, _above: int) -> int:
    raise AssertionError


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_runs_work_concurrently_behind_poolers(pooled: Pooled, mode: str) -> None:
    url = pooled(mode)

    await asyncio.gather(*(_run_beside_others(url, number) for number in range(3)))

    found = await check_checkpoints(url)
    assert found == "AsyncPostgresSaver behind a pooler"


async def test_a_statement_pooler_is_refused_with_advice(pooled: Pooled) -> None:
    with pytest.raises(SettingsError, match="pool sessions or transactions"):
        async with open_checkpoints(pooled("statement")):
            pass
