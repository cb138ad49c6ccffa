"""Read the URL of a store as what redis-py begins its connections with."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from redis.asyncio.connection import Connection, SSLConnection, parse_url

from keyturn.gateway.errors import SettingsError

Options = dict[str, Any]
"""Keyword arguments of a connection of redis-py."""

SENTINEL = ("redis+sentinel", "rediss+sentinel")
"""What a URL that lists Sentinels begins with; the second is by TLS."""

CLUSTER = ("redis+cluster", "rediss+cluster")
"""What a URL that lists nodes of a cluster begins with; the second is by TLS."""

CONNECT_S = 5.0
"""How long a server may take to open a connection."""

ASK_S = 2.0
"""How long a Sentinel, or a node of a cluster, may take to tell where the master is."""

_UNREADABLE = (
    "KEYTURN_REDIS_URL cannot be read: the port or the database is no number, an "
    "option is not known, or the hosts or the name of a master are missing. Examples: "
    "redis://user:password@host:6379/0, redis+sentinel://host:26379,host:26379/name, "
    "redis+cluster://host:6379,host:6379. In a password, write / as %2F, ? as %3F, # "
    "as %23 and @ as %40."
)
_SENTINEL_PORT = 26379
_PORT = 6379

# The kernel notices a peer that is gone without a word (a cut cable, a NAT that forgot
# us) after some seconds, well before a call's time is over. Keepalive does not look
# while something was sent and not acknowledged.
_KEEP_ALIVE = {
    name: value
    for name, value in (
        (getattr(socket, "TCP_KEEPINTVL", 0), 1),
        (getattr(socket, "TCP_KEEPCNT", 0), 3),
        (getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", 0)), 3),
        (getattr(socket, "TCP_USER_TIMEOUT", 0), 5000),
    )
    if name and sys.platform != "win32"
}


@dataclass(frozen=True)
class StoreAddress:
    """Where a store is.

    Attributes:
        options: of each connection to a server of the store.
        places: host and port of each Sentinel or node that the URL lists.
        master: the name that the Sentinels know the master by.
        sentinel_options: of each connection to a Sentinel.
    """

    options: Options
    places: tuple[tuple[str, int], ...] = ()
    master: str = ""
    sentinel_options: Options = field(default_factory=dict[str, Any])


def store_address(url: str) -> StoreAddress:
    """Read the URL of a server, of Sentinels or of a cluster.

    A URL of Sentinels is ``redis+sentinel://user:password@host:port,host:port/name``.
    User and password are the master's. Sentinels that want some take them from the
    options ``sentinel_username`` and ``sentinel_password``.

    Raises:
        SettingsError: when it is none, without the text of the problem, which would
            show a part of a password that holds a slash as the port.
    """
    with _unreadable_refused():
        scheme = urlsplit(url).scheme
        if scheme in SENTINEL:
            return _sentinels(url)
        if scheme in CLUSTER:
            return _cluster(url)
        return StoreAddress(_options(url))


def _options(url: str) -> Options:
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        # redis-py would take database 0 for it.
        raise ValueError("its database is no number: redis://host:6379/0")
    found = cast("Options", parse_url(url))
    if parts.scheme != "unix":
        found["socket_keepalive_options"] = _KEEP_ALIVE
    # RESP2, because the shapes of RESP3 differ between the versions of redis-py.
    found |= {"protocol": 2, "driver_info": None, "socket_connect_timeout": CONNECT_S}
    # Calls have deadlines instead. With a time-out, redis-py writes by `wait_for`, and
    # that loses cancellations before Python 3.12.
    found["socket_timeout"] = None
    # An option that redis-py does not know is refused here, and not at the first call.
    made = {name: value for name, value in found.items() if name != "connection_class"}
    found.setdefault("connection_class", Connection)(**made)
    return found


def client_options(options: Options, timeout_s: float | None = ASK_S) -> Options:
    """Return the options of a connection as those of a client of redis-py."""
    kind = options["connection_class"]
    found = {key: one for key, one in options.items() if key != "connection_class"}
    found["socket_timeout"] = timeout_s
    found["socket_connect_timeout"] = timeout_s or CONNECT_S
    return found | {"ssl": True} if kind is SSLConnection else found


def _sentinels(url: str) -> StoreAddress:
    parts = urlsplit(url)
    name = unquote(parts.path.strip("/"))
    if not name:
        raise ValueError("it names no master: redis+sentinel://host:port,host/name")
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
    return StoreAddress(
        _options(f"{scheme}://{user}{'@' * bool(user)}?{ours}"),
        _places(parts.netloc, _SENTINEL_PORT),
        name,
        _options(f"{scheme}://{login}@?{tls}"),
    )


def _cluster(url: str) -> StoreAddress:
    parts = urlsplit(url)
    scheme = parts.scheme.partition("+")[0]
    user = parts.netloc.rpartition("@")[0]
    places = _places(parts.netloc, _PORT)
    if not places:
        raise ValueError("it names no server: redis+cluster://host:port,host:port")
    options = _options(f"{scheme}://{user}{'@' * bool(user)}?{parts.query}")
    return StoreAddress(options, places)


def _places(netloc: str, port: int) -> tuple[tuple[str, int], ...]:
    listed = netloc.rpartition("@")[2].split(",")
    found = (re.fullmatch(r"(.*?)(?::(\d+))?", place) for place in listed if place)
    return tuple((one[1].strip("[]"), int(one[2] or port)) for one in found if one)


@contextmanager
def _unreadable_refused() -> Generator[None]:
    try:
        yield
    except (TypeError, ValueError):
        raise SettingsError(_UNREADABLE) from None
