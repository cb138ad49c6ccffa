"""The servers of a store in one event loop: a single one, a Sentinel set, or a cluster.

A store's URL is converted to redis-py's connection options.

Each command takes a connection from a pool, so commands that wait at the server do not
block others. Commands are written and read one level below redis-py's clients. Only
that level reveals whether a command was sent before its connection broke, and `WAIT`
must follow its writes on the same connection.
"""

# redis-py types its asyncio classes only partially.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnnecessaryCast=false

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from hiredis import pack_command
from redis.asyncio import ConnectionPool, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    DataError,
    InvalidResponse,
    MasterDownError,
    MaxConnectionsError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from keyturn.gateway.errors import SettingsError

Options = dict[str, Any]
"""Keyword arguments of a redis-py connection."""

SENTINEL = ("redis+sentinel", "rediss+sentinel")
"""URL schemes for a list of Sentinels; the second uses TLS."""

CLUSTER = ("redis+cluster", "rediss+cluster")
"""URL schemes for a list of cluster nodes; the second uses TLS."""

CONNECT_S = 5.0
"""Time limit for opening a connection."""

ASK_S = 2.0
"""Time limit for asking a Sentinel or a cluster node for the master."""

_UNREADABLE = (
    "KEYTURN_REDIS_URL cannot be read. Examples: redis://user:password@host:6379/0, "
    "redis+sentinel://host:26379,host:26379/name, redis+cluster://host:6379,host:6379. "
    "In a password, write / as %2F, ? as %3F, # as %23 and @ as %40."
)
_SENTINEL_PORT = 26379
_PORT = 6379
_OF_A_MASTER = frozenset({"username", "password", "db", "client_name"})

Argument = str | bytes | int
Command = Sequence[Argument]
Reply = object

MOST_CONNECTIONS = 48
"""Limit of connections to one server: for waiting commands, and for all others."""

_CLOSED = "The connection was closed."
_MAX_REDIRECTS = 5

# Old servers have no error class for a failure inside a script. The last text ends a
# blocking command when its server becomes a replica.
_REPLICA = ("-READONLY ", "-MASTERDOWN ", "UNBLOCKED force unblock")

_SECOND = frozenset({"XGROUP", "XINFO"})
_SCRIPTS = frozenset({"EVAL", "EVALSHA"})
_STREAMS = frozenset({"XREAD", "XREADGROUP"})


@dataclass(frozen=True)
class StoreAddress:
    """Addresses and connection options of a store.

    Attributes:
        options: options of connections to the store's servers.
        places: host and port of each Sentinel or node in the URL.
        master: the master's name among the Sentinels.
        sentinel_options: options of connections to Sentinels.
    """

    options: Options
    places: tuple[tuple[str, int], ...] = ()
    master: str = ""
    sentinel_options: Options = field(default_factory=dict[str, Any])


def store_address(url: str) -> StoreAddress:
    """Parse the URL of a server, of Sentinels or of a cluster.

    A URL of Sentinels is ``redis+sentinel://user:password@host:port,host:port/name``.
    User and password are the master's. Credentials for the Sentinels are the options
    ``sentinel_username`` and ``sentinel_password``.

    Raises:
        SettingsError: when it is malformed. The original error is hidden: with a slash
            in the password, it would quote a part of it as the port.
    """
    try:
        if urlsplit(url).scheme in (*SENTINEL, *CLUSTER):
            return _of_several(url)
        return StoreAddress(_options(url))
    except (TypeError, ValueError):
        raise SettingsError(_UNREADABLE) from None


def _options(url: str) -> Options:
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        # redis-py would fall back to database 0.
        raise ValueError("its database is no number: redis://host:6379/0")
    found = cast("Options", parse_url(url))
    # RESP2: the shapes of RESP3 replies vary between versions of redis-py.
    found |= {"protocol": 2, "driver_info": None, "socket_connect_timeout": CONNECT_S}
    # Calls have deadlines instead. With a timeout, redis-py uses `wait_for`, which
    # loses cancellations before Python 3.12.
    found["socket_timeout"] = None
    # Fail here on options unknown to redis-py, and not at the first call.
    made = {name: value for name, value in found.items() if name != "connection_class"}
    found.setdefault("connection_class", Connection)(**made)
    return found


def client_options(options: Options, timeout_s: float | None = ASK_S) -> Options:
    """Convert the options of a connection to those of a redis-py client."""
    kind = options["connection_class"]
    found = {key: one for key, one in options.items() if key != "connection_class"}
    found["socket_timeout"] = timeout_s
    found["socket_connect_timeout"] = timeout_s or CONNECT_S
    return found | {"ssl": True} if kind is SSLConnection else found


def _of_several(url: str) -> StoreAddress:
    parts = urlsplit(url)
    is_sentinels = parts.scheme in SENTINEL
    user, at, hosts = parts.netloc.rpartition("@")
    query = dict(parse_qsl(parts.query))
    login = {
        one: query.pop(f"sentinel_{one}", None) if is_sentinels else None
        for one in ("username", "password")
    }
    name = unquote(parts.path.strip("/")) if is_sentinels else ""
    places = _places(hosts, _SENTINEL_PORT if is_sentinels else _PORT)
    if not places or (is_sentinels and not name):
        raise ValueError("it names no server, or no master")
    scheme = parts.scheme.partition("+")[0]
    options = _options(f"{scheme}://{user}{at}?{urlencode(query)}")
    # Sentinels have neither databases nor the master's users.
    others = {key: one for key, one in options.items() if key not in _OF_A_MASTER}
    return StoreAddress(options, places, name, others | login)


def _places(hosts: str, port: int) -> tuple[tuple[str, int], ...]:
    listed = hosts.split(",")
    found = (re.fullmatch(r"(.*?)(?::(\d+))?", place) for place in listed if place)
    return tuple((one[1].strip("[]"), int(one[2] or port)) for one in found if one)


class MaybeDoneError(RedisConnectionError):
    """Commands were sent without a reply: they may or may not have been executed."""


class UntrustedCertificateError(RedisConnectionError):
    """A server's certificate is not trusted; waiting does not help."""


class NotMasterError(RedisConnectionError, ReadOnlyError):
    """The server is a replica, and rejected the command."""


class Server:
    """A single server.

    After a failover, its name may lead to another server while old connections stay
    open. So if the server is not a working master, or does not reply in time, all
    connections are dropped, and the next call resolves the name again.

    Args:
        make_pool: returns an empty pool of connections to the server.
    """

    def __init__(self, make_pool: Callable[[], ConnectionPool]) -> None:
        self._make_pool = make_pool
        self._pool = make_pool()
        self._limits = [asyncio.Semaphore(MOST_CONNECTIONS) for _ in range(2)]
        self._closing = set[asyncio.Task[None]]()
        self.is_closed = False

    async def ask(self, commands: Sequence[Command], deadline: float) -> list[Reply]:
        """Send commands as one batch and return their replies, errors as exceptions.

        Args:
            commands: at least one.
            deadline: time limit by the loop's clock, including waits.

        Raises:
            ConnectionError: of redis-py; the connection failed or broke.
            TimeoutError: of redis-py; there was no reply in time.
        """
        is_sent = False
        try:
            # Waiting commands leave some connections to the others.
            limit = self._limits[any(map(_blocks, commands))]
            async with asyncio.timeout_at(deadline), limit:
                pool, connection = await self._opened()
                try:
                    packed = [*map(_packed, commands)]
                    is_sent = True
                    replies = await _exchange(connection, packed, len(commands))
                finally:
                    await pool.release(connection)
        except TimeoutError:
            if is_sent:
                # The server may hang, and be replaced.
                self.drop()
                raise MaybeDoneError("No reply in time.") from None
            raise RedisTimeoutError("No connection in time.") from None
        except (BusyLoadingError, ReadOnlyError) as error:
            self._leave_if_replaced(error)
            raise
        for refusal in _errors(replies):
            self._leave_if_replaced(refusal)
        return replies

    async def masters(self, deadline: float) -> dict[str, Server]:
        """Return this server."""
        del deadline
        return {"": self}

    async def close(self) -> None:
        """Close every connection; waiting calls get an error."""
        self.is_closed = True
        self.drop()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def drop(self) -> None:
        """Close the open connections; the next call opens new ones."""
        pool, self._pool = self._pool, self._make_pool()
        task = asyncio.create_task(_disconnected(pool))
        # The loop has only a weak reference to a task.
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _opened(self) -> tuple[ConnectionPool, AbstractConnection]:
        if self.is_closed:
            raise RedisConnectionError(_CLOSED)
        pool = self._pool
        try:
            connection = await pool.get_connection()  # type: ignore[no-untyped-call]
        except RedisConnectionError as error:
            if isinstance(error.__context__, ssl.SSLCertVerificationError):
                raise UntrustedCertificateError(str(error)) from error
            if isinstance(error.__cause__, RedisError):
                # On a Unix socket, redis-py wraps the server's error.
                raise error.__cause__ from None
            raise
        if self.is_closed or pool is not self._pool:
            # The pool was dropped in between; redis-py would open it again.
            await connection.disconnect(nowait=True)
            await pool.release(connection)
            raise RedisConnectionError(_CLOSED)
        return pool, connection

    def _leave_if_replaced(self, error: RedisError) -> None:
        """Drop the connections if an error suggests that the server was replaced."""
        text = str(error)
        is_replica = isinstance(error, ReadOnlyError | MasterDownError)
        is_replica = is_replica or any(word in text for word in _REPLICA)
        # A master without replicas may have been cut off from its successor.
        if is_replica or isinstance(error, BusyLoadingError) or "NOREPLICAS " in text:
            self.drop()
        if is_replica:
            raise NotMasterError("This server is no master.")


async def _exchange(
    connection: AbstractConnection, packed: list[bytes], count: int
) -> list[Reply]:
    """Write commands and read their replies; close the connection on failure."""
    replies: list[Reply] = []
    try:
        await connection.send_packed_command(packed, check_health=False)
        while len(replies) < count:
            try:
                # `inf`: the call's deadline applies instead of redis-py's timeout.
                replies.append(await connection.read_response(timeout=math.inf))
            except ResponseError as error:
                replies.append(error)
    except (BusyLoadingError, AuthenticationError, MaxConnectionsError):
        raise  # a reply, which redis-py treats as a broken connection
    except (RedisConnectionError, RedisTimeoutError, InvalidResponse) as error:
        # With Sentinels, redis-py turns this reply into a broken connection.
        if isinstance(error.__context__, ReadOnlyError):
            raise error.__context__ from None
        raise MaybeDoneError(str(error)) from error
    finally:
        if len(replies) < count:
            await connection.disconnect(nowait=True)
    return replies


def _packed(words: Command) -> bytes:
    """Return a command's bytes; the name of a command may be two words."""
    # redis-py's own packing of the same bytes takes eight times as long. The types of
    # `pack_command` allow one word only.
    pack = cast("Callable[[tuple[Argument, ...]], bytes]", pack_command)
    try:
        return pack((*str(words[0]).split(), *words[1:]))
    except TypeError as error:
        raise DataError(str(error)) from error


def _blocks(words: Command) -> bool:
    """Return whether this command may wait at the server."""
    return words[0] == "WAIT" or (words[0] in _STREAMS and "BLOCK" in words)


def _errors(replies: Iterable[Reply]) -> list[RedisError]:
    """Return the errors among replies, including those inside a transaction."""
    found: list[RedisError] = []
    for reply in replies:
        inner = cast("list[Reply]", reply) if isinstance(reply, list) else [reply]
        found += [one for one in inner if isinstance(one, RedisError)]
    return found


async def _disconnected(pool: ConnectionPool) -> None:
    # Hanging connections are abandoned: their sockets are closed in any case.
    with contextlib.suppress(RedisError, OSError):
        await pool.disconnect()


class SentinelMaster(Server):
    """The current master according to the Sentinels.

    redis-py asks them for each new connection.
    """

    def __init__(self, address: StoreAddress) -> None:
        self._name = address.master
        self._sentinel = Sentinel(  # type: ignore[no-untyped-call]
            address.places,
            sentinel_kwargs={
                **client_options(address.sentinel_options),
                "retry": Retry(NoBackoff(), 0),
            },
            redis_connect_func=_ensure_master,
            **client_options(address.options, None),
        )
        super().__init__(self._made)

    async def close(self) -> None:
        """Close every connection."""
        await super().close()
        with contextlib.suppress(RedisError, OSError):
            await self._sentinel.aclose()

    def _made(self) -> ConnectionPool:
        found = self._sentinel.master_for(self._name).connection_pool
        return cast("ConnectionPool", found)

    async def _opened(self) -> tuple[ConnectionPool, AbstractConnection]:
        before = self._place
        try:
            pool, connection = await super()._opened()
        except MasterNotFoundError:
            # redis-py's text quotes every Sentinel with all of its options.
            problem = f"No Sentinel knows a master {self._name!r} that works."
            raise RedisConnectionError(problem) from None
        if before in {None, self._place}:
            return pool, connection
        # Older connections still lead to the replaced master. The new master may lack
        # its data, so it must not confirm reads from there.
        if pool is self._pool:
            self.drop()
        await pool.release(connection)
        return await super()._opened()

    @property
    def _place(self) -> tuple[str, int] | None:
        return cast("SentinelConnectionPool", self._pool).master_address


async def _ensure_master(connection: AbstractConnection) -> None:
    """Open a connection, but only if the server is a master."""
    await connection.on_connect()
    await connection.send_command("ROLE", check_health=False)
    role = await connection.read_response()
    if not isinstance(role, list) or cast("list[Reply]", role)[0] != b"master":
        raise RedisConnectionError(f"The server is no master: {role!r}"[:200])


class Cluster:
    """All masters of a cluster; each command goes to the master of its key's slot.

    redis-py reads the slots of the nodes at first, and after each call without a reply:
    the master may hang, and be replaced.
    """

    def __init__(self, address: StoreAddress) -> None:
        self._options, self._places = address.options, list(address.places)
        seeds = [ClusterNode(host, port) for host, port in address.places]
        self._cluster = RedisCluster(
            startup_nodes=seeds,
            require_full_coverage=False,
            **client_options(address.options),
        )
        self._nodes = self._cluster.nodes_manager
        self._servers: dict[str, Server] = {}
        self.is_closed = False

    async def ask(self, commands: Sequence[Command], deadline: float) -> list[Reply]:
        """Send commands to the master of the first key's slot, see `Server.ask`.

        During a move of the slot they still run only once. A redirected batch is one
        command or one MULTI/EXEC, and a redirection means that none of it ran.
        """
        slot = slot_of(commands)
        if not self._nodes.slots_cache:
            await self._refresh(deadline)
        node = self._owner(slot)
        before: Sequence[Command] = ()
        for _ in range(_MAX_REDIRECTS):
            replies = await self._ask_node(node, [*before, *commands], deadline)
            error = next((one for one in replies if isinstance(one, RedisError)), None)
            if isinstance(error, AskError):
                # The node has no address of itself: use the one it was asked at.
                error.host = error.host or node.host
            if isinstance(error, MovedError):
                await self._nodes.move_slot(error)
                node, before = self._owner(slot), ()
            elif isinstance(error, AskError) and not _waits(commands):
                # The slot is moving, and this key is already at its next master.
                node, before = ClusterNode(error.host, error.port), [("ASKING",)]
            elif isinstance(error, AskError | TryAgainError | ClusterDownError):
                # A slot's new master confirms only its own data, not earlier writes at
                # the old one.
                await self._refresh(deadline)
                raise RedisConnectionError(str(error))
            else:
                return replies[len(before) :]
        raise RedisConnectionError("The nodes of the cluster disagree about a slot.")

    async def masters(self, deadline: float) -> dict[str, Server]:
        """Return all masters by address."""
        await self._refresh(deadline)
        found = {slots[0] for slots in self._nodes.slots_cache.values() if slots}
        return {node.name: self._server(node) for node in sorted(found, key=str)}

    async def close(self) -> None:
        """Close every connection."""
        self.is_closed = True
        for server in self._servers.values():
            await server.close()
        for each in ("nodes_cache", "startup_nodes"):
            with contextlib.suppress(RedisError, OSError):
                await self._nodes.aclose(each)

    def _owner(self, slot: int) -> ClusterNode:
        found = self._nodes.slots_cache.get(slot)
        if not found:
            raise RedisConnectionError(f"No node of the cluster has slot {slot}.")
        return found[0]

    def _server(self, node: ClusterNode) -> Server:
        if node.name not in self._servers:
            there = self._options | {"host": node.host, "port": node.port}
            self._servers[node.name] = Server(partial(ConnectionPool, **there))
        return self._servers[node.name]

    async def _ask_node(
        self, node: ClusterNode, commands: Sequence[Command], deadline: float
    ) -> list[Reply]:
        if self.is_closed:
            raise RedisConnectionError(_CLOSED)
        try:
            return await self._server(node).ask(commands, deadline)
        except (RedisConnectionError, RedisTimeoutError):
            # Before the next attempt: the slot may have another node by then. After
            # the deadline of this call, for later ones.
            latest = max(deadline, asyncio.get_running_loop().time() + ASK_S)
            with contextlib.suppress(RedisError):
                await self._refresh(latest, failed=node.name)
            raise

    async def _refresh(self, deadline: float, *, failed: str | None = None) -> None:
        """Read the slots of the nodes; drop replaced masters."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._nodes.initialize(self._places, failed)
        except TimeoutError:
            raise RedisTimeoutError(
                "No node of the cluster returned its slots in time."
            ) from None
        except RedisClusterException:
            # redis-py's text describes only one of the nodes.
            raise RedisConnectionError("No node of the cluster answers.") from None
        masters = {slots[0].name for slots in self._nodes.slots_cache.values() if slots}
        # A replaced master gets no more commands, and may never reply.
        for name in self._servers.keys() - masters:
            await self._servers.pop(name).close()


def slot_of(commands: Iterable[Command]) -> int:
    """Return the slot of the first key in commands; any slot if there is none."""
    key = next((key for words in commands if (key := _key(words)) is not None), "")
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def _waits(commands: Iterable[Command]) -> bool:
    return any(words[0] == "WAIT" for words in commands)


def _key(words: Command) -> Argument | None:
    """Return a command's first key, or its first argument if it has none."""
    name = words[0]
    if name in _SCRIPTS:
        return words[3] if int(words[2]) else None
    if name in _STREAMS:
        return words[words.index("STREAMS") + 1]
    at = 2 if name in _SECOND else 1
    return words[at] if len(words) > at else None


def raise_first(replies: Iterable[Reply]) -> None:
    """Raise the first reply that is an error."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
