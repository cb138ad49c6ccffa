"""Where a server is, and what it is told first on each connection."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Protocol, cast

from redis.asyncio import ConnectionPool

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
