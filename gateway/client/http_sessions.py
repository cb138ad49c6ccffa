"""HTTP sessions of one process, one for each event loop."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import weakref
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import cache
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

import aiohttp
import certifi
from typing_extensions import override

MOST_CONNECTIONS = 1000
"""How many connections one event loop has at once."""

KEPT_S = 30.0
"""How long an idle connection is kept: less than usual proxies keep one, and longer
than a long poll lasts, so that what is asked after it needs no new connection."""

_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class _Opened(NamedTuple):
    session: aiohttp.ClientSession
    ends: AsyncGenerator[None]


_Loops = WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened]


class Sessions:
    """Sessions with one server; a connection belongs to the loop that opened it.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._by_loop: _Loops = WeakKeyDictionary()
        self._lock = threading.Lock()
        # Also where the process ends: a program need not close what its agents use.
        weakref.finalize(self, _leave, self._by_loop)

    def __len__(self) -> int:
        """Return for how many event loops there is one."""
        return len(self._by_loop)

    def here(self) -> aiohttp.ClientSession:
        """Return the session of this event loop."""
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            with self._lock:
                _forget_closed(self._by_loop)
                found = self._by_loop[loop] = _opened(self._made())
        return found.session

    async def close(self) -> None:
        """Close the connections of this event loop."""
        found = self._by_loop.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.ends.aclose()

    def _made(self) -> aiohttp.ClientSession:
        parts = urlsplit(self._url)
        is_secure = parts.scheme == "https"
        connector = _Connector(
            limit=MOST_CONNECTIONS,
            keepalive_timeout=KEPT_S,
            ssl=trusted() if is_secure else True,
        )
        # Without headers of all requests, which a proxy would be sent as well.
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=_proxy(parts.hostname or "") if is_secure else None,
        )


class _Connector(aiohttp.TCPConnector):
    """Does not complain about connections that are open when it is collected.

    A loop that is not ended well closes nothing: its sockets are closed with their
    transports.
    """

    @override
    def __del__(self, _warnings: object = None) -> None:
        """Say nothing."""


@cache
def trusted() -> ssl.SSLContext:
    """Return whom a client trusts: the system's certificates, and Mozilla's.

    ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` name others in place of both.
    """
    context = ssl.create_default_context()
    if not any(map(os.environ.get, _CERTIFICATES)):
        context.load_verify_locations(certifi.where())
    return context


def _proxy(host: str) -> str | None:
    """Return the proxy by which the environment wants a host to be reached."""
    if proxy_bypass(host):
        return None
    found = getproxies()
    return found.get("https") or found.get("all")


def _opened(session: aiohttp.ClientSession) -> _Opened:
    """Return a session that is closed with the event loop in which this is called.

    An agent asks from a loop that others begin and end, such as that of `asyncio.run`.
    Who ends a loop well closes the generators that were begun in it.
    """
    ends = _closing(session)
    # Up to its `yield`; nothing before that waits.
    with suppress(StopIteration):
        anext(ends).send(None)
    return _Opened(session, ends)


async def _closing(session: aiohttp.ClientSession) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await session.close()


def _forget_closed(sessions: _Loops) -> None:
    for loop, (session, _) in list(sessions.items()):
        if loop.is_closed():
            session.detach()
            del sessions[loop]


def _leave(sessions: _Loops) -> None:
    for session, _ in list(sessions.values()):
        # Or it would complain that nobody has closed it.
        session.detach()
