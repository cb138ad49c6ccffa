"""A SQLite file keeps every thread while several processes open and close it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver as SyncSqliteSaver

from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError, SettingsError
from keyturn.gateway.resume import checkpoints
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.store.store import Store
from tests.forked import Forked
from tests.resume import sample_tools
from tests.resume.checkpoint_process import keep_step, keep_steps
from tests.resume.resume_stack import RULES

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
