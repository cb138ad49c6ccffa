"""A start waits for an unreachable store, reports it calmly, and gives up in time."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError

from keyturn.gateway.errors import (
    NotConfirmed,
    SettingsError,
    StoreUnavailable,
    Unanswered,
    UnsafeStore,
)
from keyturn.gateway.store.connection import usable
from keyturn.gateway.store.connection.servers import NotMasterError
from keyturn.gateway.store.connection.usable import Loading, is_loading, until_usable
from keyturn.gateway.store.embedded import engine as engine_module
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.store import ENGINE_FOLDER, open_store
from tests.conftest import eventually
from tests.topologies import SentinelSet


def caused(cause: Exception | None) -> StoreUnavailable:
    error = StoreUnavailable("The store\n  does not answer.")
    error.__cause__ = cause
    return error


PASSING = [
    caused(RedisConnectionError("no master")),
    caused(ConnectionRefusedError()),
    caused(NotMasterError("READONLY")),
    NotConfirmed(),
    Unanswered("cut off", "try again"),
    UnsafeStore("a replica", can_pass=True),
]
STAYING = [
    caused(None),
    caused(AuthenticationError("WRONGPASS")),
    UnsafeStore("appendfsync is 'no'"),
    SettingsError("another secret"),
]


class Store:
    """A store that fails for a while; each look takes a second."""

    def __init__(self, error: Exception, *, for_s: int) -> None:
        self.now_s, self._error, self._for_s = 0, error, for_s

    async def check(self) -> None:
        self.now_s += 1
        if self.now_s <= self._for_s:
            raise self._error


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usable, "_LOOK_S", 0.0)


@pytest.mark.parametrize("error", PASSING, ids=str)
async def test_what_passes_is_waited_for_with_a_line_now_and_then(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(error, for_s=13)
    monkeypatch.setattr(usable, "now_s", lambda: store.now_s)

    with caplog.at_level(logging.INFO):
        await until_usable(store.check, "here")

    assert store.now_s == 14
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" of=")[0] for line in lines] == [
        f"store.waiting where=here seconds={seconds}" for seconds in (1, 6, 11)
    ]
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize("error", STAYING, ids=str)
async def test_what_does_not_pass_is_said_at_once(error: Exception) -> None:
    store = Store(error, for_s=1)

    with pytest.raises(type(error)) as caught:
        await until_usable(store.check, "here")

    assert caught.value is error


async def test_a_start_gives_up_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(PASSING[0], for_s=1000)
    monkeypatch.setattr(usable, "now_s", lambda: store.now_s)

    with pytest.raises(StoreUnavailable, match="does not answer"):
        await until_usable(store.check, "here")

    assert usable.USABLE_WITHIN_S <= store.now_s <= usable.USABLE_WITHIN_S + 2


async def test_a_query_of_a_command_does_not_wait(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(StoreUnavailable):
            async with open_store(url, tmp_path, waits=False):
                pass


@pytest.mark.slow
@pytest.mark.xdist_group("topologies")
async def test_a_start_during_a_failover_comes_through(
    sentinel_set: SentinelSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = sentinel_set.master()
    old.kill()

    with caplog.at_level(logging.INFO):
        async with open_store(sentinel_set.url, tmp_path) as store:
            assert await store.conn.command("SET", "key", "1")

    # A Sentinel may still name the old one, which could not have taken the write.
    assert not old.is_running
    assert "store.waiting where=" in caplog.text


# A start waits while the server loads its data set, and reports the progress.

KEYS = 400


@pytest.fixture
def slow_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data folder that a server needs seconds to load."""
    folder = tmp_path / ENGINE_FOLDER
    with EmbeddedEngine(folder) as engine:
        client = cast("Any", redis.Redis).from_url(engine.url, socket_timeout=5)
        client.mset({f"key{index}": os.urandom(2000) for index in range(KEYS)})
        # Rewritten as a snapshot: the server delays the keys of one.
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            client.ping()
        client.close()
    plain = engine_module.server_command

    def slow(of: Path, socket: str) -> list[str]:
        # Five milliseconds for a key, and a look at its clients after each.
        slowly = ["--key-load-delay", "5000"]
        return [*plain(of, socket), *slowly, "--loading-process-events-interval-bytes",
                "1024"]  # fmt: skip

    monkeypatch.setattr(engine_module, "server_command", slow)
    return folder


@pytest.mark.slow
def test_an_embedded_server_that_loads_may_take_longer_than_a_silent_one(
    slow_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(engine_module, "_START_S", 0.5)
    with caplog.at_level(logging.INFO), EmbeddedEngine(slow_folder) as engine:
        client = cast("Any", redis.Redis).from_url(engine.url, socket_timeout=5)
        assert client.dbsize() == KEYS
        client.close()

    assert "store.loading" in caplog.text
    assert "percent=?" not in caplog.text


@pytest.mark.slow
async def test_a_remote_server_that_loads_is_waited_for(
    slow_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = asyncio.create_task(
        asyncio.to_thread(EmbeddedEngine(slow_folder).__enter__)
    )
    path = engine_module.socket_path(slow_folder)

    async def is_there() -> bool:
        return is_loading(await asyncio.to_thread(engine_module.server_info, str(path)))

    await eventually(is_there)
    with caplog.at_level(logging.INFO):
        async with open_store(f"unix://{path}", slow_folder.parent) as store:
            assert await store.conn.command("EXISTS", "key0", "key399") == 2
    (await server).__exit__()

    assert f"store.loading where={path}" in caplog.text


def test_a_wait_says_now_and_then_how_far_it_is_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(usable, "now_s", lambda: clock[0])
    wait = Loading("here")
    with caplog.at_level(logging.INFO):
        for _ in range(13):
            wait.goes_on({"loading_loaded_perc": "12.5", "loading_eta_seconds": "70"})
            clock[0] += 1

        assert caplog.text.count("where=here percent=12.5") == 3
        clock[0] = usable.LOADED_WITHIN_S + 1
        with pytest.raises(StoreUnavailable, match="after 60 minutes"):
            wait.goes_on({})
