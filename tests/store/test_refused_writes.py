"""A store that refuses writes is distinguished from an unreachable one."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from keyturn.gateway.errors import StoreUnavailable, Unanswered, UnsafeStore
from keyturn.gateway.service.report.process_check import Registration, registered
from keyturn.gateway.store.connection import durability
from keyturn.gateway.store.connection.connection import Connection, Reply, text
from keyturn.gateway.store.connection.durability import (
    CALLED,
    ensure_durable,
    ensure_writable,
    permission_problems,
)
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.runs.processes import ProcessInfo
from keyturn.gateway.store.scripts.script import FOLDER
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.store_secrets import SECRETS

BOT = ProcessInfo(role="bot", where="here:1", tenant="t")
HALF = """
redis.call('SET', KEYS[1], '1', 'PX', 60000)
return redis.call('XADD', KEYS[2], '*', 'e', '')
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    """Return a store on a separate server, which a test may break."""
    async with EmbeddedEngine(tmp_path / "engine") as engine:
        opened = Store(engine.url, secrets=SECRETS)
        opened.processes.life_ms = 400
        yield opened
        # A server with snapshots does not end while it cannot write one.
        await opened.conn.command("CONFIG SET", "save", "")
        await opened.close()


async def fill_memory(conn: Connection) -> None:
    await conn.command("CONFIG SET", "maxmemory", "1")


async def make_replica(conn: Connection) -> None:
    await conn.command("REPLICAOF", "127.0.0.1", "1")


async def setting(conn: Connection, name: str) -> str:
    found = await conn.command("CONFIG GET", name)
    return text(cast("dict[str, Reply]", found)[name])


async def fail_snapshot(conn: Connection) -> None:
    """Make the server fail to write its snapshot, as on a full disk."""
    engine_folder = await setting(conn, "dir")
    # A folder in its place, since a disk cannot be filled here.
    (Path(engine_folder) / await setting(conn, "dbfilename")).mkdir()
    await conn.command("CONFIG SET", "save", "3600 1")
    await conn.command("BGSAVE")

    async def is_refused() -> bool:
        try:
            await conn.command("SET", "k", "v", "XX")
        except StoreUnavailable:
            return True
        return False

    await eventually(is_refused)


REFUSALS = [
    (fill_memory, "raise 'maxmemory'"),
    (make_replica, "set KEYTURN_REDIS_URL to its master"),
    (fail_snapshot, "make room on its disk"),
]


@pytest.mark.parametrize(("spoil", "remedy"), REFUSALS)
async def test_a_store_that_keeps_nothing_is_told_with_what_to_do(
    store: Store, spoil: Any, remedy: str
) -> None:
    await ensure_writable(store.conn, Keys("default"))
    await spoil(store.conn)

    with pytest.raises(StoreUnavailable, match=remedy):
        await ensure_writable(store.conn, Keys("default"))


async def test_a_process_is_ready_once_its_store_writes_again(store: Store) -> None:
    async with registered(store, BOT) as registration:
        await fill_memory(store.conn)
        await eventually(lambda: says(registration, "takes no writes"))

        await store.conn.command("CONFIG SET", "maxmemory", "0")

        await eventually(lambda: says(registration, ""))


async def says(registration: Registration, words: str) -> bool:
    found = " ".join(registration.problems)
    return words in found if words else not found


async def test_a_script_stopped_midway_may_have_written(store: Store) -> None:
    conn = store.conn
    await conn.command("ACL", "SETUSER", "default", "-xadd")

    with pytest.raises(Unanswered, match="a part of it may be kept"):
        await conn.evalsha(HALF, ["tk:{default}:a", "tk:{default}:b"], [])

    assert await conn.command("GET", "tk:{default}:a") == b"1"


@pytest.mark.parametrize(
    ("rule", "missing"), [("-xadd", "XADD"), ("-@stream", "XACK"), ("resetkeys", "SET")]
)
async def test_a_user_who_may_not_do_all_that_scripts_do_is_refused(
    store: Store, rule: str, missing: str
) -> None:
    await store.conn.command("ACL", "SETUSER", "default", rule)

    with pytest.raises(UnsafeStore, match=rf"ACL SETUSER.*{missing.lower()}"):
        await ensure_durable(store.conn)


def test_what_scripts_call_is_known() -> None:
    sources = "".join(one.read_text() for one in FOLDER.glob("*.lua"))
    # Of a container the subcommand counts as well.
    call = r"redis\.p?call\(\s*'((?:XGROUP|XINFO)', '\w+|[A-Z]+)'"

    named = {found.replace("', '", " ") for found in re.findall(call, sources)}

    # Jobs are acknowledged and dropped by commands that `write_if.lua` gets.
    assert set(CALLED) == named | {"XACK", "XDEL"}


async def test_a_server_whose_commands_were_renamed_is_refused_by_their_names(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "CALLED", (*CALLED, "RENAMED", "XINFO RENAMED"))

    [problem] = await permission_problems(store.conn)

    assert "the server has renamed it" in problem
    assert "+renamed +xinfo|renamed" in problem
