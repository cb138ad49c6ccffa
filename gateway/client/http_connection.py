"""HTTP connection to a gateway: sending requests, and the meaning of errors.

Every request may be repeated: a write takes effect once, by the names in its body.
After a broken connection it is unknown whether the gateway has acted. Broken
connections and requested pauses are retried here, within the time for one request.
Longer failures are an outage, which the caller retries.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import weakref
from collections.abc import Coroutine, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import aiohttp
from pydantic import TypeAdapter, ValidationError
from typing_extensions import override
from yarl import URL

from keyturn.gateway import tracing
from keyturn.gateway.arguments import is_a, require
from keyturn.gateway.background import spawn
from keyturn.gateway.client.outgoing import outgoing, pause_s, reason, trusted
from keyturn.gateway.clock import ReferenceClock, offset_sentence
from keyturn.gateway.errors import (
    BadJson,
    KeyRefused,
    NotAllowed,
    SettingsError,
    StoreUnavailable,
    Unanswered,
)
from keyturn.gateway.protocol import http_api, run_context, strict_json
from keyturn.gateway.protocol.http_api import Operation, Scope
from keyturn.gateway.protocol.http_problems import Problem, error_of
from keyturn.gateway.setting_forms import is_safe_url

MOST_CONNECTIONS = 1000
"""Most connections to one gateway."""

KEPT_S = 30.0
"""How long an idle connection is kept, in seconds.

This is shorter than usual proxies keep one. It is longer than a long poll, so that the
next request needs no new connection.
"""


class _Connector(aiohttp.TCPConnector):
    """Does not warn about open connections when it is collected, such as at exit."""

    @override
    def __del__(self, _warnings: object = None) -> None:
        """Skip the warning."""


logger = logging.getLogger(__name__)

_HALF_SECOND = 0.5
"""The ``Date`` header has whole seconds."""


class GatewayClock:
    """Difference between the clocks of this machine and a gateway.

    Args:
        url: URL of the gateway.
        clock: the gateway's clock; by default unknown.
    """

    def __init__(self, url: str, clock: ReferenceClock | None = None) -> None:
        self._url = url
        self._clock = clock or ReferenceClock()
        self._told_s = 0

    def asking(self) -> float:
        """Return a time for `answered`, taken before a request."""
        return self._clock.asking()

    def answered(self, date: str, asked_s: float) -> None:
        """Record the date of an answer; log when the clocks begin or cease to differ.

        Args:
            date: the ``Date`` header; an invalid one is ignored.
            asked_s: the earlier result of `asking`.
        """
        try:
            date_s = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):
            return
        self._clock.answered(date_s + _HALF_SECOND, asked_s, _HALF_SECOND)
        ahead_s = self.ahead_s
        if abs(ahead_s - self._told_s) <= 1 and bool(ahead_s) == bool(self._told_s):
            return
        self._told_s = ahead_s
        if ahead_s:
            logger.error("gateway.clock_differs ahead_s=%+d url=%s", ahead_s, self._url)
        else:
            logger.info("gateway.clock_agrees url=%s", self._url)

    @property
    def ahead_s(self) -> int:
        """Return the seconds by which this clock is ahead of the gateway's."""
        return round(self._clock.offset_s)

    @property
    def problem(self) -> str:
        """Return the difference as a sentence; "" if the clocks agree."""
        of_gateway = f"that of the gateway {self._url!r}"
        return (
            offset_sentence("this machine", self.ahead_s, of_gateway)
            if self.ahead_s
            else ""
        )


TIMEOUT_S = 10.0
"""Time-out for an answer, in addition to the wait of a long poll."""

LONGEST_PAUSE_S = 5.0
"""The longest requested pause that is waited for within one request."""

TRIES = 4
"""Most attempts of one request."""

_KEY = re.compile(r"tk_[!-~]+", re.ASCII)
_OK = 200
_ASKS_FOR_PAUSE = {429, 503}
_NOT_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ConnectionTimeoutError,
)
"""Errors before the gateway was reached, so it did nothing."""

_NOT_NOW = (*_NOT_SENT, aiohttp.ServerTimeoutError)
"""Errors after a long wait, or without a listener: the caller retries later.

After others, such as a kept connection that the gateway closed, it is unknown whether
the gateway has acted; the next attempt is the same request.
"""

Q = TypeVar("Q")
A = TypeVar("A")


class HttpConnection:
    """Sends requests to a gateway at a URL.

    Args:
        url: URL of the gateway, ``https://…``; plain ``http`` only for this machine.
        api_key: the key printed by `keyturn api-keys create`.

    Attributes:
        url: URL of the gateway.
        clock: difference between the clocks of this machine and the gateway.

    Raises:
        SettingsError: when the URL or the key cannot be used.
    """

    def __init__(self, url: str, api_key: str) -> None:
        _check_url(url)
        if not _KEY.fullmatch(api_key):
            # Without the key: it may be valid except for a line break.
            what = "is no API key of Keyturn" if api_key else "is missing"
            raise SettingsError(
                f"The API key for the gateway {url!r} {what}: pass api_key=, or set "
                "KEYTURN_API_KEY, to what `keyturn api-keys create` printed (tk_…)."
            )
        self.url = url.rstrip("/")
        self.clock = GatewayClock(self.url)
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._headers = {
            "Authorization": f"Bearer {api_key}",
            "Content-Type": "application/json",
        }

    def __repr__(self) -> str:
        """Show the URL without the key."""
        return f"HttpConnection({self.url!r})"

    async def ask(
        self, operation: Operation[Q, A], question: Q, *, wait_s: float = 0.0
    ) -> A:
        """Send a request and return the answer.

        Args:
            operation: the operation.
            question: its body.
            wait_s: how long the gateway may wait before it answers.

        Raises:
            StoreUnavailable: when there is no answer now.
            Unanswered: the same, but a write may have been stored.
            NotConfirmed: a write was stored, but a failover of the store may lose it.
            KeyRefused: when the key is invalid, or does not permit this.
            NotAllowed: when the gateway refuses.
            LeaseLost: when another process runs the thread now.
        """
        body = _body(operation.question.dump_python(question, mode="json"))
        headers = dict(self._headers)
        is_write = operation.scope is not Scope.READ
        if trace := tracing.current():
            headers[tracing.HEADER] = trace
        if lease := run_context.current_lease():
            headers[http_api.LEASE_HEADER] = lease
        if ahead_s := self.clock.ahead_s:
            # The gateway warns its operators.
            headers[http_api.CLOCK_HEADER] = f"{ahead_s:+d}"
        sent = self._send(operation.path, body, headers, wait_s, is_write=is_write)
        return await self._read_answer(sent, operation.answer)

    async def read(
        self,
        path: str,
        query: Mapping[str, str],
        answer: TypeAdapter[A],
        *,
        wait_s: float = 0.0,
    ) -> A:
        """Send a GET request and return the answer.

        Args:
            path: path of the URL.
            query: parameters; empty ones are omitted.
            answer: reads the body of the response.
            wait_s: how long the gateway may wait before it answers.

        Raises:
            StoreUnavailable: when there is no answer now.
            KeyRefused: when the key is invalid, or does not permit this.
            NotAllowed: when the gateway refuses.
        """
        given = urlencode({name: value for name, value in query.items() if value})
        at = f"{path}?{given}" if given else path
        sent = self._send(at, None, self._headers, wait_s, is_write=False)
        return await self._read_answer(sent, answer)

    async def _read_answer(
        self,
        sent: Coroutine[Any, Any, tuple[aiohttp.ClientResponse, bytes]],
        kind: TypeAdapter[A],
    ) -> A:
        reply, answer = await asyncio.wrap_future(spawn(sent))
        try:
            if reply.status == _OK:
                return kind.validate_json(answer)
            found = Problem.model_validate_json(answer)
        except ValidationError as error:
            # From a proxy in between, or another program at this address.
            raise StoreUnavailable(
                f"{self.url!r} answered {reply.status} with something that is "
                "not of a Keyturn gateway; check the address, and any proxy before it."
            ) from error
        refused = error_of(found)
        if isinstance(refused, KeyRefused):
            raise KeyRefused(
                f"The gateway {self.url!r} refused the API key of this process: "
                f"{found.detail} Set KEYTURN_API_KEY, or api_key=, to a key that may "
                "do this."
            )
        raise refused

    async def aclose(self) -> None:
        """Close its connections."""
        session, self._session = self._session, None
        if session is not None:
            await asyncio.wrap_future(spawn(session.close()))

    def _opened(self) -> aiohttp.ClientSession:
        """Return the session of the background loop.

        An agent runs in loops that others start, block and end, such as that of
        `asyncio.run`.
        """
        loop = asyncio.get_running_loop()
        # After a fork, the loop and its connections are the parent's.
        if self._session is None or self._loop is not loop:
            connector = _Connector(
                limit=MOST_CONNECTIONS, keepalive_timeout=KEPT_S, ssl=trusted()
            )
            self._session, self._loop = outgoing(connector), loop
            # Programs need not close the connections of their agents.
            weakref.finalize(self, self._session.detach)
        return self._session

    async def _send(
        self,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        wait_s: float,
        *,
        is_write: bool,
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        timeout = aiohttp.ClientTimeout(
            connect=TIMEOUT_S, sock_connect=TIMEOUT_S, sock_read=TIMEOUT_S + wait_s
        )
        may_be_kept, left = False, TRIES
        while True:
            left -= 1
            asked_s = self.clock.asking()
            try:
                reply, answer = await self._sent(path, body, headers, timeout)
            except aiohttp.ClientError as error:
                may_be_kept |= is_write and not isinstance(error, _NOT_SENT)
                if left and not isinstance(error, _NOT_NOW):
                    continue
                raise self._no_answer(error, may_be_kept=may_be_kept) from error
            self.clock.answered(reply.headers.get("Date", ""), asked_s)
            # A date in this header is ignored; the caller has its pauses.
            is_asked = reply.status in _ASKS_FOR_PAUSE
            after = reply.headers.get("Retry-After", "") if is_asked else ""
            wanted_s = pause_s(after)
            if not left or wanted_s is None or wanted_s > LONGEST_PAUSE_S:
                return reply, answer
            await asyncio.sleep(wanted_s)

    async def _sent(
        self,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - of each part, not of all
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        async with self._opened().request(
            "GET" if body is None else "POST",
            # Not quoted again: names in a query may contain any character.
            URL(f"{self.url}{path}", encoded=True),
            data=body,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
        ) as reply:
            return reply, await reply.read()

    def _no_answer(self, error: Exception, *, may_be_kept: bool) -> StoreUnavailable:
        why = reason(error)
        who = f"The approval gateway {self.url!r}"
        if may_be_kept:
            return Unanswered(why, "try again when it is back.", who=who)
        return StoreUnavailable(
            f"{who} did not answer ({why}); try again when it is back."
        )


def _body(question: object) -> bytes:
    """Return a request body as JSON.

    Raises:
        NotAllowed: when it is not JSON; a replaced value would change the request.
    """
    try:
        strict_json.accept(question)
    except BadJson as error:
        raise NotAllowed(f"{error} Nothing was sent to the gateway.") from error
    return json.dumps(question, ensure_ascii=False, separators=(",", ":")).encode()


def _check_url(url: str) -> None:
    require(is_a(url, str), "gateway", url, "give a URL as text, 'https://…'")
    try:
        parts = urlsplit(url)
        # Only an address: paths are appended to it, and the key is the login.
        is_more = "@" in parts.netloc or bool(parts.query or parts.fragment)
        is_more = is_more or any(map(str.isspace, url))
        is_usable = is_safe_url(url) and parts.port != 0 and not is_more
    except ValueError:  # such as an invalid port
        is_usable = False
    if not is_usable:
        raise SettingsError(
            f"The gateway {url!r} cannot be used: write https://host, or "
            "http://127.0.0.1:port for one on this machine. Over plain http the "
            "API key could be read on the way."
        )
