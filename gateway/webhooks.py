"""Send webhooks of a tenant in the background of a gateway.

Each target is a separate reader of the outbox, so a slow or unreachable receiver delays
no other. One gateway at a time reads for a target, under a lease. It acknowledges
events after their message was accepted or given up. After a crash the events are still
in the outbox, and the next holder of the lease sends their messages again, with the
same id.

Receivers are untrusted. Redirects are not followed, no proxy of the environment is
used, and nothing is looked up twice. The whole attempt has one deadline. Of the answer,
only the status and the requested pause are read.

An operator chooses the host name in a URL, but the owner of the name controls its
addresses and can change them at any time (server-side request forgery). So the
addresses are checked each time, and the connection uses exactly the checked ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import logging
import random
import socket
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from typing_extensions import override

from keyturn.gateway.approvals.events import (
    Event,
    EventName,
    SecurityEvent,
    SecurityKind,
    state_after,
)
from keyturn.gateway.client.outgoing import pause_s, reason, trusted
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import KeyturnError, StoreUnavailable, ThreadUnavailable
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.transient_retry import repeat
from keyturn.gateway.service_settings import WebhookSettings, WebhookTarget
from keyturn.gateway.store.events.outbox import drop_idle_readers
from keyturn.gateway.store.http.webhooks import note_attempt
from keyturn.gateway.store.scripts.fences import Lease
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.webhook_signatures import (
    DECIDED,
    Message,
    News,
    body_of,
    headers,
    webhook_secrets,
)

logger = logging.getLogger(__name__)

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Networks = list[ipaddress.IPv4Network | ipaddress.IPv6Network]


def _networks(*texts: str) -> _Networks:
    return [ipaddress.ip_network(text) for text in texts]


_UNICAST = _networks("0.0.0.0/0", "2000::/3")
"""The other IPv6 addresses are reserved, private, or contain an IPv4 address."""

# Some versions of Python treat some of these as global, although each can reach a
# non-global address: IPv4 addresses embedded in IPv6, relays, services of a cloud host.
_NEVER = [
    *_networks("0.0.0.0/8", "192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32"),
    *_networks("2001::/23", "2002::/16", "3fff::/20"),
]
_PRIVATE = [
    *_networks("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    *_networks("100.64.0.0/10", "::1/128", "fc00::/7"),
]

# Where clouds offer credentials of a machine, at addresses that look private: Alibaba,
# Amazon (all of its services), Google and Oracle.
_SERVICES = [
    *_networks("100.100.100.200/32", "fd00:ec2::/32", "fd20:ce::254/128"),
    *_networks("fd00:c1::a9fe:a9fe/128"),
]


class AddressRefused(KeyturnError, OSError):
    """A host has an address that webhooks must not use."""


def is_allowed(text: str, *, may_be_private: bool = False) -> bool:
    """Return whether a webhook may be sent to an address.

    Args:
        text: the address; one with a zone is refused.
        may_be_private: it may be this machine or in a private network. Link-local
            addresses, where clouds offer credentials, are always refused.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if getattr(address, "scope_id", None) is not None:
        return False
    if may_be_private and _in(address, _PRIVATE):
        return not _in(address, _SERVICES)
    is_special = address.is_multicast or address.is_reserved or address.is_link_local
    is_public = address.is_global and _in(address, _UNICAST)
    return is_public and not is_special and not _in(address, _NEVER)


def _in(address: _Address, networks: _Networks) -> bool:
    return any(address in network for network in networks)


class CheckedResolver(AbstractResolver):
    """Resolves a host for one connection, and refuses forbidden addresses.

    Args:
        private_hosts: names of hosts that may have a private address.
        resolver: returns addresses.
    """

    def __init__(
        self, private_hosts: Collection[str], resolver: AbstractResolver
    ) -> None:
        self._private_hosts = frozenset(private_hosts)
        self._resolver = resolver

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host.

        Raises:
            AddressRefused: when one of them is forbidden: a name that mixes public and
                internal addresses is as suspicious as an internal one.
            OSError: when the host is unknown.
        """
        may_be_private = host.lower().rstrip(".") in self._private_hosts
        found = await self._resolver.resolve(host, port, family)
        if not found:
            raise OSError(f"{host!r} has no address")
        for one in found:
            if not is_allowed(one["host"], may_be_private=may_be_private):
                raise AddressRefused(
                    f"{host!r} has the address {one['host']!r}, which is private or of "
                    "a special kind; 'webhooks.private_hosts' names hosts for which "
                    "that is meant."
                )
        return found

    @override
    async def close(self) -> None:
        """Close the inner resolver."""
        await self._resolver.close()


class _Lookups(AbstractResolver):
    """Looks names up in separate threads.

    Without an answer of the name server, a lookup blocks its thread for a minute.
    Tools, the audit log and Slack need the threads of the event loop.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "keyturn-webhooks")

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host; raises `OSError` for an unknown one."""
        asked = (host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, socket.getaddrinfo, *asked
        )
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, _, protocol, _, address in found
        ]

    @override
    async def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False)


GONE = 410
"""The receiver does not want such messages any more (Standard Webhooks)."""

_LONGEST_PAUSE_S = 3600.0
_LONGEST_ERROR = 200


@dataclass(frozen=True)
class Answer:
    """The answer of a receiver.

    Attributes:
        status: HTTP status; 0 without an answer.
        error: why the message was not received; "" if it was.
        pause_s: the pause that the receiver asks for.
    """

    status: int = 0
    error: str = ""
    pause_s: float = 0.0


class Poster:
    """Sends messages; the caller closes it.

    Args:
        settings: private hosts and time-out.
        resolver: returns the addresses of a host; None: this machine's.
    """

    def __init__(
        self, settings: WebhookSettings, resolver: AbstractResolver | None = None
    ) -> None:
        self._timeout_s = settings.timeout_s
        self._resolver = CheckedResolver(settings.private_hosts, resolver or _Lookups())
        connector = aiohttp.TCPConnector(
            resolver=self._resolver,
            use_dns_cache=False,
            # So that each message uses an address that was checked for it.
            force_close=True,
            ssl=trusted(),
            limit=0,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        await self._resolver.close()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a message and return the answer; never fails."""
        given = {
            **headers,
            "Content-Type": "application/json",
            "User-Agent": "Keyturn-Webhooks/1",
            "Accept-Encoding": "identity",
        }
        try:
            # The body is not read: leaving the block closes the connection.
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.post(
                    url, data=body, headers=given, allow_redirects=False
                ) as response,
            ):
                status = response.status
                if status // 100 == HTTPStatus.OK // 100:
                    return Answer(status)
                asked_s = pause_s(response.headers.get("Retry-After", "")) or 0.0
                return Answer(
                    status, f"status {status}", min(asked_s, _LONGEST_PAUSE_S)
                )
        except TimeoutError:
            return Answer(error=f"no answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(error=_why(error))


def _why(error: Exception) -> str:
    """Return why there was no answer, in a few fixed words."""
    # A refused address is the cause of a connection error.
    cause = getattr(error, "os_error", None)
    if isinstance(cause, AddressRefused):
        return str(cause)[:_LONGEST_ERROR].rstrip(".")
    return reason(error)


FIRST_S = 2.0
"""The pause after the first attempt; each further pause is twice as long."""

LONGEST_S = 60 * 60.0
"""The longest pause."""

GONE_MS = 60 * 60 * 1000
"""When an unused reader is dropped: its target is no longer in the settings, and it
would keep the outbox from being trimmed."""

AT_ONCE = 4
"""Most concurrent messages to one target."""

MOST_WAITING = 1_000
"""Most messages for one target in memory; later events stay in the outbox."""

_CONSUMER = "sender"
_EVENTS = 200
_BLOCK_MS = 2_000
_PAUSE_S = 1.0
_DROP_S = 600.0

_NEWS = frozenset(
    {
        ItemState.AUTHORIZED,
        ItemState.REJECTED,
        ItemState.ANSWERED,
        ItemState.EXPIRED,
        ItemState.WITHDRAWN,
        ItemState.LAPSED,
    }
)
"""States that give a waiting thread an answer. The program causes the others itself:
it runs calls, and moves on."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message for one receiver.

    Attributes:
        id: the same in every attempt.
        kind: type of the message.
        news: the thread and its approval.
        at_ms: time of the first event.
        seqs: the events behind the message.
    """

    id: str
    kind: str
    news: News
    at_ms: int
    seqs: tuple[str, ...] = ()


def is_news(event: Event) -> bool:
    """Return whether a thread may continue because of an event."""
    if event.name in {EventName.RECORD_QUARANTINED, EventName.ITEM_RECONCILED}:
        return bool(event.approval)
    # A call that was authorized at its opening has no waiting thread.
    if event.is_auto_approved or not event.item:
        return False
    return state_after(event.name, event.reason) in _NEWS


def messages(
    events: Iterable[Event], target: WebhookTarget, *, tenant: str, to: str
) -> list[Delivery]:
    """Return the messages for a target: one for each approval.

    Args:
        events: in their order; a message id is derived from its first event.
        target: the receiver.
        tenant: tenant of the threads.
        to: the target's name.
    """
    about: dict[News, list[Event]] = {}
    for event in events:
        run = event.run_ref
        if event.tenant == tenant and is_news(event) and target.is_of(run.agent):
            news = News(agent=run.agent, thread=run.thread, approval=event.approval)
            about.setdefault(news, []).append(event)
    found = list[Delivery]()
    for news, told in about.items():
        named = json.dumps([tenant, to, told[0].seq, news.approval])
        id_ = f"msg_{hashlib.sha256(named.encode()).hexdigest()[:32]}"
        seqs = tuple(one.seq for one in told)
        found.append(Delivery(id_, DECIDED, news, told[0].at_ms, seqs))
    return found


def pause_after(attempts: int, answer: Answer, left_s: float, spread: float) -> float:
    """Return the pause before the next attempt, in seconds.

    Args:
        attempts: number of attempts so far.
        answer: the last answer.
        left_s: time until the end of retries, when it is tried once more.
        spread: random, from 0 to 1: pauses are 50 to 100 % of their length, so that
            messages that failed together are not all retried together.
    """
    grown_s = min(FIRST_S * (1 << min(attempts - 1, 20)), LONGEST_S) * (
        0.5 + spread / 2
    )
    return max(0.001, min(max(grown_s, answer.pause_s), left_s))


class _Target:
    """Sends the messages of one target of a tenant."""

    def __init__(
        self, settings: Settings, store: Store, poster: Poster, name: str
    ) -> None:
        self._settings, self._store, self.poster = settings, store, poster
        self._name = name
        self._target = settings.webhooks.targets[name]
        self._keys = store.keys_of_tenant(settings.tenant)
        reader = f"{_readers(settings.tenant)}{json.dumps(name)}"
        self.outbox = store.outbox(self._keys, reader=reader)
        self._room = asyncio.Semaphore(MOST_WAITING)
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def tell(self) -> None:
        """Read events and send messages while this process has the lease."""
        place = (self._keys, "", f"webhook {self._name}")
        # A task cancelled before its start releases nothing.
        self._room = asyncio.Semaphore(MOST_WAITING)
        try:
            async with (
                self._store.threads.lease(*place) as lease,
                asyncio.TaskGroup() as tasks,
            ):
                await self.outbox.prepare()
                after = "0-0"
                while after:
                    # The holder of the lease owns all unacknowledged events.
                    events, after = await self.outbox.left(_CONSUMER, start=after)
                    await self._of(events, lease, tasks)
                while True:
                    events = await self.outbox.take(
                        _CONSUMER, block_ms=_BLOCK_MS, limit=_EVENTS
                    )
                    await self._of(events, lease, tasks)
        except* (ThreadUnavailable, StoreUnavailable) as errors:
            if not isinstance(errors.exceptions[0], ThreadUnavailable):
                logger.warning("webhooks.unavailable error=%s", errors.exceptions[0])

    async def _of(
        self, events: Sequence[Event], lease: Lease, tasks: asyncio.TaskGroup
    ) -> None:
        """Send messages about events in the background; acknowledge other events."""
        lease.check()
        tenant = self._settings.tenant
        found = messages(events, self._target, tenant=tenant, to=self._name)
        told = {seq for one in found for seq in one.seqs}
        await self.outbox.done(*(one.seq for one in events if one.seq not in told))
        for message in found:
            await self._room.acquire()
            tasks.create_task(self._deliver(message, lease))

    async def _deliver(self, message: Delivery, lease: Lease) -> None:
        """Send a message until it is accepted or its time is over."""
        retried = self._settings.webhooks.retry_for.total_seconds()
        ends_s = message.at_ms / 1000 + retried
        attempts = 0
        try:
            # After the lease is lost, the events are left to the next holder.
            while lease.left_s:
                answer, left_s = Answer(), ends_s - self._store.conn.clock.now_s()
                try:
                    answer = await self._attempt(message)
                    is_last = left_s <= 0 or answer.status == GONE
                    if is_last or not answer.error:
                        await self._end(message, answer)
                        return
                except StoreUnavailable as error:
                    logger.warning("webhooks.unavailable error=%s", error)
                attempts += 1
                spread = random.random()  # noqa: S311 - spreads load only
                await asyncio.sleep(pause_after(attempts, answer, left_s, spread))
        finally:
            self._room.release()

    async def _attempt(self, message: Delivery) -> Answer:
        """Send a message once, and note the answer."""
        settings, name = self._settings, self._name
        async with self._at_once:
            now_ms = self._store.conn.clock.now_s() * 1000
            answer = await send(settings, name, message, self.poster, now_ms)
        await note_attempt(self._store, settings.tenant, name, answer.error)
        if answer.error:
            logger.warning(
                "webhook.failed target=%s id=%s why=%r", name, message.id, answer.error
            )
        else:
            logger.info("webhook.sent target=%s id=%s", name, message.id)
        return answer

    async def _end(self, message: Delivery, answer: Answer) -> None:
        """Acknowledge the events of a message; report it if it was given up."""
        if answer.error:
            found = SecurityEvent(
                kind=SecurityKind.STALLED,
                tenant=self._settings.tenant,
                about="webhook",
                name=self._name,
                evidence="given up",
            )
            await self._store.security.report(self._keys, found)
        await self.outbox.done(*message.seqs)


async def send(
    settings: Settings, name: str, message: Delivery, poster: Poster, now_ms: float
) -> Answer:
    """Sign a message with all secrets of a target, and post it once."""
    target = settings.webhooks.targets[name]
    body = body_of(message.kind, message.news, message.at_ms)
    keys = webhook_secrets(
        settings.secret_keys(), settings.tenant, name, target.secrets
    )
    signed = headers(Message(message.id, int(now_ms / 1000), body), keys)
    return await poster.post(target.url, body, signed)


def _readers(tenant: str) -> str:
    """Return the common prefix of all webhook readers of a tenant."""
    return f"webhooks:{json.dumps(tenant)}:"


@asynccontextmanager
async def sending_webhooks(
    settings: Settings, store: Store, resolver: AbstractResolver | None = None
) -> AsyncGenerator[None]:
    """Send webhooks while the block runs, where the settings have targets."""
    targets = [
        _Target(settings, store, Poster(settings.webhooks, resolver), name)
        for name in settings.webhooks.targets
    ]

    async def drop_readers() -> None:
        """Drop readers whose target is no longer in any gateway's settings."""
        await drop_idle_readers(
            store.conn,
            store.keys_of_tenant(settings.tenant),
            prefix=_readers(settings.tenant),
            idle_ms=GONE_MS,
            # The reader of an unreachable target may be idle for hours.
            kept={one.outbox.reader for one in targets},
        )

    stop, steps = asyncio.Event(), [(drop_readers, _DROP_S)]
    steps += [(one.tell, _PAUSE_S) for one in targets]
    tasks = [
        asyncio.create_task(repeat(step, stop, every_s=pause_s))
        for step, pause_s in steps
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        # Not `await task`: its cancellation could not be told from the caller's.
        await asyncio.wait(tasks)
        for one in targets:
            await one.poster.close()
