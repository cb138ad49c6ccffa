"""Checkpoints in Postgres work behind a pooler, or are refused at start."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from keyturn.cli.doctor import check_checkpoints
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.fence_tables import PostgresFence, Put
from keyturn.gateway.store.scripts.fences import Lease
from tests.debian import find_or_install
from tests.ports import free_port
from tests.resume.postgres_server import fresh_database
from tests.topologies import until

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
