"""Send webhooks of a tenant in the background of a gateway.

Each target is a separate reader of the outbox, so a slow or unreachable receiver delays
no other. One gateway at a time reads for a target, under a lease. It acknowledges
events after their message was accepted or given up. After a crash the events are still
in the outbox, and the next holder of the lease sends their messages again, with the
same id.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

from keyturn.gateway.approvals.events import Event, EventName, state_after
from keyturn.gateway.approvals.security import SecurityEvent, SecurityKind
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import StoreUnavailable, ThreadUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.webhooks import DECIDED, News, body_of
from keyturn.gateway.store.fences import Lease
from keyturn.gateway.store.readers import drop_idle_readers
from keyturn.gateway.store.store import Store
from keyturn.gateway.store.webhooks import note_attempt
from keyturn.gateway.trust.webhook_signatures import Message, headers, webhook_secrets
from keyturn.gateway.webhook_settings import WebhookTarget
from keyturn.gateway.webhooks.posting import (
    GONE,
    Answer,
    Poster,
    Resolve,
    system_resolve,
)

logger = logging.getLogger(__name__)

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
        self._settings, self._store, self._poster = settings, store, poster
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
        except* ThreadUnavailable:
            await asyncio.sleep(_PAUSE_S)
        except* StoreUnavailable as errors:
            logger.warning("webhooks.unavailable error=%s", errors.exceptions[0])
            await asyncio.sleep(_PAUSE_S)

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
        attempts = 0
        try:
            # After the lease is lost, the events are left to the next holder.
            while lease.left_s:
                answer, is_over, left_s = Answer(), False, LONGEST_S
                try:
                    answer, is_over = await self._attempt(message)
                    left_s = (self._ends_ms(message) - self._now_ms()) / 1000
                except StoreUnavailable as error:
                    logger.warning("webhooks.unavailable error=%s", error)
                if is_over:
                    return
                attempts += 1
                spread = random.random()  # noqa: S311 - spreads load only
                await asyncio.sleep(pause_after(attempts, answer, left_s, spread))
        finally:
            self._room.release()

    async def _attempt(self, message: Delivery) -> tuple[Answer, bool]:
        """Send a message once; return the answer, and whether retries are over."""
        settings, name = self._settings, self._name
        is_last = self._now_ms() >= self._ends_ms(message)
        async with self._at_once:
            now_ms = self._now_ms()
            answer = await send(settings, name, message, self._poster, now_ms)
        await note_attempt(self._store, settings.tenant, name, answer.error)
        is_over = not answer.error or answer.status == GONE or is_last
        if not answer.error:
            logger.info("webhook.sent target=%s id=%s", name, message.id)
        else:
            logger.warning(
                "webhook.failed target=%s id=%s is_over=%s why=%r",
                name, message.id, is_over, answer.error,
            )  # fmt: skip
        if is_over:
            if answer.error:
                await self._report()
            await self.outbox.done(*message.seqs)
        return answer, is_over

    async def _report(self) -> None:
        """Report that a message was given up; never fails."""
        found = SecurityEvent(
            kind=SecurityKind.STALLED,
            tenant=self._settings.tenant,
            about="webhook",
            name=self._name,
            evidence="given up",
        )
        await self._store.security.report(self._keys, found)

    def _ends_ms(self, message: Delivery) -> float:
        retried = self._settings.webhooks.retry_for.total_seconds()
        return message.at_ms + retried * 1000

    def _now_ms(self) -> float:
        return self._store.conn.clock.now_s() * 1000


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


async def _forever(step: Callable[[], Awaitable[None]]) -> NoReturn:
    while True:
        try:
            await step()
            continue
        except StoreUnavailable as error:
            logger.warning("webhooks.unavailable error=%s", error)
        except any_failure() as error:  # later messages must still be sent
            log_failure(logger, error, "webhooks.failed")
        await asyncio.sleep(_PAUSE_S)


@asynccontextmanager
async def sending_webhooks(
    settings: Settings, store: Store, resolve: Resolve = system_resolve
) -> AsyncGenerator[None]:
    """Send webhooks while the block runs, where the settings have targets.

    Raises:
        SettingsError: when the file of certificates cannot be used.
    """
    poster = Poster(settings.webhooks, resolve)
    targets = [
        _Target(settings, store, poster, name) for name in settings.webhooks.targets
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
        await asyncio.sleep(_DROP_S)

    steps = [drop_readers, *(one.tell for one in targets)]
    tasks = [asyncio.create_task(_forever(step)) for step in steps]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        # Not `await task`: its cancellation could not be told from the caller's.
        await asyncio.wait(tasks)
        await poster.close()
