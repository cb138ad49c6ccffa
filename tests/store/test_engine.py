"""The embedded Valkey keeps its acknowledged writes and never outlives its parent."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.embedded import engine as engine_module
from keyturn.gateway.store.embedded.engine import (
    MAX_SOCKET_PATH,
    EmbeddedEngine,
    ServerProcess,
    socket_path,
)
from keyturn.gateway.store.embedded.folder_lock import FolderLock

OWNER = """\
import sys, threading
from pathlib import Path
from typing import Any, cast
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
with EmbeddedEngine(Path(sys.argv[1])) as engine:
    print(engine.pid, engine.is_adopted, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def wait_until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended; only its parent has not looked yet.
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def client_of(engine: EmbeddedEngine) -> Any:
    """Return redis-py's client; its own types are partial."""
    return cast("Any", redis.Redis).from_url(engine.url, socket_timeout=5)


def answers(engine: EmbeddedEngine) -> bool:
    """Return True if the server answers now; it may be about to start."""
    try:
        return bool(client_of(engine).ping())
    except redis.RedisError:
        return False


def has_another_server(engine: EmbeddedEngine, pid: int) -> bool:
    """Return True once a server other than this one answers."""
    return engine.pid != pid and answers(engine)


def is_listening(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))
            caller.sendall(b"PING\r\n")
            return caller.recv(16) == b"+PONG\r\n"
    except OSError:
        return False


@contextmanager
def other_process(folder: Path) -> Generator[tuple[subprocess.Popen[str], int, bool]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        pid, is_adopted = process.stdout.readline().split()
        yield process, int(pid) if pid != "None" else 0, is_adopted == "True"
    finally:
        process.kill()
        process.communicate()


def test_it_listens_on_a_private_socket_and_no_port(folder: Path) -> None:
    with EmbeddedEngine(folder) as engine:
        settings = client_of(engine).config_get("*")
        path = Path(engine.url.removeprefix("unix://"))

        assert path.is_socket()
        assert path.stat().st_mode & 0o077 == 0
        assert folder.stat().st_mode & 0o077 == 0
    assert settings["port"] == "0"
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["save"] == ""


def test_a_second_start_adopts_the_running_server(folder: Path) -> None:
    with EmbeddedEngine(folder) as first:
        client_of(first).set("key", "shared")
        with EmbeddedEngine(folder) as second:
            assert second.is_adopted
            assert client_of(second).get("key") == b"shared"

        assert client_of(first).ping()


@pytest.mark.slow
def test_two_processes_that_start_at_once_share_one_server(folder: Path) -> None:
    with (
        other_process(folder) as (_, _, one),
        other_process(folder) as (_, _, two),
        EmbeddedEngine(folder) as third,
    ):
        assert [one, two, third.is_adopted].count(False) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs a parent-death signal")
def test_no_server_is_left_when_its_parent_is_killed(folder: Path) -> None:
    with other_process(folder) as (process, pid, _):
        assert is_alive(pid)

        process.send_signal(signal.SIGKILL)
        process.wait()

        wait_until(lambda: not is_alive(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a parent-death signal")
def test_a_start_after_a_killed_parent_has_its_own_server(folder: Path) -> None:
    """A server that is about to end is not shared: its next user would find it gone."""
    with other_process(folder) as (process, pid, _):
        process.send_signal(signal.SIGKILL)
        process.wait()

        with EmbeddedEngine(folder) as engine:
            assert not engine.is_adopted
            assert engine.pid not in (None, pid)
            assert answers(engine)


def test_an_orphan_is_shared_and_stopped_by_its_last_user(folder: Path) -> None:
    """The fallback where the kernel has no parent-death signal (macOS)."""
    with EmbeddedEngine(folder) as engine:
        client_of(engine).set("key", "kept")
        words = engine_module.server_command(folder, str(socket_path(folder)))
    server = words[words.index(str(os.getpid())) + 1 :]
    lock = FolderLock(folder / "server.lock")
    assert lock.take()
    lock.write(str(socket_path(folder)))
    orphan = subprocess.Popen(
        server, pass_fds=(lock.descriptor,), stdout=subprocess.DEVNULL
    )
    lock.close()
    wait_until(lambda: is_listening(socket_path(folder)))

    with EmbeddedEngine(folder) as engine:
        assert engine.is_adopted
        assert client_of(engine).get("key") == b"kept"

    assert orphan.wait(10) == 0


def test_a_killed_server_is_restarted_with_its_data(folder: Path) -> None:
    acknowledged = 0
    with EmbeddedEngine(folder) as engine:
        url = engine.url
        for _ in range(2):
            client = client_of(engine)
            for _ in range(50):
                client.rpush("log", acknowledged)
                acknowledged += 1
            assert engine.pid is not None
            pid = engine.pid
            os.kill(pid, signal.SIGKILL)
            wait_until(partial(has_another_server, engine, pid))
        kept = client_of(engine).lrange("log", 0, -1)
        assert engine.url == url
        assert engine.failure is None

    assert [int(one) for one in kept] == list(range(acknowledged))


@pytest.mark.slow
def test_a_process_that_shares_a_server_starts_the_next_one(folder: Path) -> None:
    with other_process(folder) as (process, pid, _), EmbeddedEngine(folder) as engine:
        assert engine.is_adopted
        client_of(engine).set("key", "kept")

        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: not is_alive(pid) and answers(engine))

        assert client_of(engine).get("key") == b"kept"


def test_who_leaves_first_leaves_the_server_to_the_others(folder: Path) -> None:
    with EmbeddedEngine(folder) as engine, other_process(folder):
        engine.__exit__(None, None, None)
        assert is_listening(socket_path(folder))
        with EmbeddedEngine(folder) as again:
            assert again.is_adopted

    with EmbeddedEngine(folder):
        pass
    assert not is_listening(socket_path(folder))


@pytest.mark.slow
def test_a_server_that_dies_again_and_again_is_told_and_tried_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_module, "_LONGEST_PAUSE_S", 0.05)
    with EmbeddedEngine(folder) as engine:
        for _ in range(engine_module.MAX_DEATHS):
            assert engine.failure is None
            pid = engine.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_until(partial(has_another_server, engine, pid))
        wait_until(lambda: engine.failure is not None)

        assert "ended 5 times in a row" in str(engine.failure)
        assert client_of(engine).ping()
    assert "engine.restarted" in caplog.text


def test_restarts_never_give_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk may last for hours, and the server is needed when it is over."""
    tries = 0

    def full(*_: object) -> ServerProcess:
        nonlocal tries
        tries += 1
        raise StoreUnavailable("No space left on device.")

    monkeypatch.setattr(engine_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(engine_module, "_LONGEST_PAUSE_S", 0.01)
    with EmbeddedEngine(folder) as engine:
        assert engine.pid is not None
        with monkeypatch.context() as on_a_full_disk:
            on_a_full_disk.setattr(engine_module, "ServerProcess", full)
            os.kill(engine.pid, signal.SIGKILL)
            wait_until(lambda: tries > 2 * engine_module.MAX_DEATHS)

        wait_until(lambda: answers(engine))


def test_a_silent_server_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_ADOPT_S", 0.3)
    folder.mkdir()
    held = FolderLock(folder / "server.lock")
    assert held.take()

    with pytest.raises(StoreUnavailable, match="in use by a server that does not"):
        EmbeddedEngine(folder).__enter__()

    held.close()
    with EmbeddedEngine(folder) as engine:
        assert not engine.is_adopted


def test_a_server_that_cannot_load_its_data_says_why(folder: Path) -> None:
    with EmbeddedEngine(folder) as engine:
        client_of(engine).set("key", "x" * 100)
    base = next((folder / "appendonlydir").glob("*.incr.aof"))
    base.write_bytes(b"junk" + base.read_bytes()[4:])

    with pytest.raises(StoreUnavailable, match=r"did not start: .*AOF"):
        EmbeddedEngine(folder).__enter__()


@pytest.mark.parametrize(
    ("step", "error"), [("take", errno.ENOLCK), ("write", errno.ENOSPC)]
)
def test_a_disk_without_locks_or_room_is_said_to_be_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: int
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(FolderLock, step, fails)

    with pytest.raises(StoreUnavailable, match=os.strerror(error)):
        EmbeddedEngine(folder).__enter__()


def test_errors_name_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        return None

    monkeypatch.setattr(engine_module, "find_spec", missing)

    with pytest.raises(StoreUnavailable, match="keyturn\\[embedded\\]"):
        EmbeddedEngine(folder).__enter__()


def test_a_long_folder_name_moves_the_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)

    with EmbeddedEngine(deep) as engine, EmbeddedEngine(deep) as second:
        path = Path(engine.url.removeprefix("unix://"))
        assert len(os.fsencode(path)) <= MAX_SOCKET_PATH
        assert path.parent.stat().st_mode & 0o077 == 0
        assert second.is_adopted
        assert client_of(second).ping()


def test_a_short_place_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "t"
    (temporary / f"keyturn-{os.getuid()}").mkdir(parents=True, mode=0o777)
    (temporary / f"keyturn-{os.getuid()}").chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    with pytest.raises(StoreUnavailable, match="is not a private folder"):
        socket_path(tmp_path / ("d" * 120))


def test_a_folder_may_have_spaces_and_percent_signs(tmp_path: Path) -> None:
    with EmbeddedEngine(tmp_path / "a b%20c") as engine:
        assert client_of(engine).ping()


def test_it_outlives_the_thread_that_started_it(folder: Path) -> None:
    """The kernel's parent-death signal means the thread, not the process."""
    engine = EmbeddedEngine(folder)
    starter = threading.Thread(target=engine.__enter__)
    starter.start()
    starter.join()
    try:
        for _ in range(50):
            assert client_of(engine).ping()
    finally:
        engine.__exit__(None, None, None)


def test_ctrl_c_does_not_reach_the_server(folder: Path) -> None:
    with EmbeddedEngine(folder) as engine:
        assert engine.pid is not None
        assert os.getpgid(engine.pid) != os.getpgid(0)


def test_a_server_gets_no_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-not-for-others")
    with EmbeddedEngine(folder) as engine:
        environment = Path(f"/proc/{engine.pid}/environ")
        if environment.exists():
            assert b"xoxb" not in environment.read_bytes()
