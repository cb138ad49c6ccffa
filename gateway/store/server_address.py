"""Where a server is, and what it is told first on each connection."""

from __future__ import annotations

import re
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from redis.asyncio import ConnectionPool

from twokey.gateway.errors import SettingsError
from twokey.gateway.store.multiplexed import Command


@dataclass(frozen=True)
class ServerAddress:
    """One server, by TCP (``host`` and ``port``) or by a Unix socket (``path``).

    Attributes:
        tls: how to encrypt; None without TLS.
        handshake: commands to begin each connection with.
    """

    host: str = ""
    port: int = 0
    path: str = ""
    tls: ssl.SSLContext | None = None
    handshake: tuple[Command, ...] = ()


Place = tuple[str, int]
"""Host and port."""

SCHEMES = ("redis", "rediss", "unix")
"""What the address of one server begins with."""

SENTINEL = ("redis+sentinel", "rediss+sentinel")
"""What a URL that lists Sentinels begins with; the second is by TLS."""

CLUSTER = ("redis+cluster", "rediss+cluster")
"""What a URL that lists nodes of a cluster begins with; the second is by TLS."""

_UNREADABLE = (
    "TWOKEY_REDIS_URL cannot be read: the port or the database is no number, an option "
    "is not known, or the hosts or the name of a master are missing. It looks like "
    "redis://user:password@host:6379/0, redis+sentinel://host:26379,host:26379/name or "
    "redis+cluster://host:6379,host:6379; in a password, write / as %2F, ? as %3F, # "
    "as %23 and @ as %40."
)

_SENTINEL_PORT = 26379
_PORT = 6379


@dataclass(frozen=True)
class SentinelAddress:
    """A master by its name, and the Sentinels that know where it is.

    Attributes:
        master: what to begin a connection to it with; its place is asked.
    """

    name: str
    master: ServerAddress
    sentinels: tuple[ServerAddress, ...]


class _Settings(Protocol):
    """What redis-py read from a URL. Some of it only exists for some schemes."""

    db: int
    username: str | None
    password: str | None
    client_name: str | None


class _Pool(Protocol):
    def make_connection(self) -> _Settings: ...


class _TlsSettings(Protocol):
    def get(self) -> ssl.SSLContext: ...


def server_address(url: str) -> ServerAddress:
    """Read a ``redis://``, ``rediss://`` or ``unix://`` URL with redis-py's options.

    Raises:
        ValueError: when it is none.
        TypeError: when redis-py knows no such option.
    """
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        # redis-py would take database 0 for it.
        raise ValueError("its database is no number: redis://host:6379/0")
    # A connection that is never opened: redis-py decides what its options mean.
    pool = cast("_Pool", ConnectionPool.from_url(url, protocol=2))  # pyright: ignore[reportUnknownMemberType] - redis-py types **kwargs partially
    read = pool.make_connection()
    tls = cast("_TlsSettings | None", getattr(read, "ssl_context", None))
    return ServerAddress(
        host=getattr(read, "host", ""),
        port=int(getattr(read, "port", 0)),
        path=getattr(read, "path", ""),
        tls=tls.get() if tls else None,
        handshake=_handshake(read),
    )


def sentinel_address(url: str) -> SentinelAddress:
    """Read ``redis+sentinel://user:password@host:port,host:port/name?db=0``.

    User and password are the master's. Sentinels that want some take them from the
    options ``sentinel_username`` and ``sentinel_password``.

    Raises:
        ValueError: when it is none, or names no master.
        TypeError: when redis-py knows no such option.
    """
    parts = urlsplit(url)
    name = unquote(parts.path.strip("/"))
    if not name:
        raise ValueError(
            "it names no master: redis+sentinel://host:port,host:port/name"
        )
    options = parse_qsl(parts.query)
    theirs = {key: value for key, value in options if key.startswith("sentinel_")}
    ours = urlencode([pair for pair in options if pair[0] not in theirs])
    login = ":".join(
        quote(theirs.get(f"sentinel_{one}", ""), safe="")
        for one in ("username", "password")
    )
    scheme = parts.scheme.partition("+")[0]
    user = parts.netloc.rpartition("@")[0]
    # No database and no name: a Sentinel knows neither.
    tls = urlencode([pair for pair in options if pair[0].startswith("ssl_")])
    return SentinelAddress(
        name,
        server_address(f"{scheme}://{user}{'@' * bool(user)}?{ours}"),
        tuple(
            server_address(f"{scheme}://{login}@{place}?{tls}")
            for place in _places(parts.netloc, _SENTINEL_PORT)
        ),
    )


def cluster_addresses(url: str) -> list[ServerAddress]:
    """Read ``redis+cluster://user:password@host:port,host:port``.

    Raises:
        ValueError: when it is none.
        TypeError: when redis-py knows no such option.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.partition("+")[0]
    user = parts.netloc.rpartition("@")[0]
    if not _places(parts.netloc, _PORT):
        raise ValueError("it names no server: redis+cluster://host:port,host:port")
    return [
        server_address(f"{scheme}://{user}{'@' * bool(user)}{place}?{parts.query}")
        for place in _places(parts.netloc, _PORT)
    ]


@contextmanager
def unreadable_refused() -> Generator[None]:
    """Turn the error of a URL that cannot be read into what to write.

    Raises:
        SettingsError: without the error's own text, which would show a part of a
            password that holds a slash as the port.
    """
    try:
        yield
    except (TypeError, ValueError):
        raise SettingsError(_UNREADABLE) from None


def _places(netloc: str, port: int) -> list[str]:
    listed = netloc.rpartition("@")[2].split(",")
    return [
        place if re.search(r":\d+$", place) else f"{place}:{port}"
        for place in listed
        if place
    ]


def _handshake(read: _Settings) -> tuple[Command, ...]:
    commands: list[Command] = []
    if read.password or read.username:
        password = read.password or ""
        commands.append(
            ("AUTH", read.username, password) if read.username else ("AUTH", password)
        )
    if read.client_name:
        commands.append(("CLIENT", "SETNAME", read.client_name))
    if read.db:
        commands.append(("SELECT", read.db))
    return tuple(commands)
