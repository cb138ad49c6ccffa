"""Send webhooks of a tenant in the background of a gateway.

Theory of operation. One task for each shard reads the outbox as a reader of its own, so
no step that people or agents wait for has more to do, and events wait while every
gateway is away. It queues a message for each target, in the store, and then
acknowledges the events. One task for each target takes from its queue under a lease,
posts, and records what came of it, so that a receiver that is slow or away keeps no
other one waiting. Whatever dies, and wherever, the message is in the outbox or in the
queue: it is sent at least once, each time with the same id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import secrets
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NoReturn

from twokey.gateway.approvals.events import Event
from twokey.gateway.approvals.security import SecurityEvent, SecurityKind
from twokey.gateway.config import Settings
from twokey.gateway.errors import CorruptRecord, NewerRecord, StoreUnavailable
from twokey.gateway.failures import log_failure
from twokey.gateway.protocol.webhooks import News
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.outbox import Outbox
from twokey.gateway.store.readers import drop_idle_readers
from twokey.gateway.store.store import Store
from twokey.gateway.store.webhooks import (
    Delivery,
    Outcome,
    Taken,
    WebhookQueue,
)
from twokey.gateway.trust.webhook_secrets import webhook_secrets
from twokey.gateway.trust.webhook_signatures import Message, headers
from twokey.gateway.webhook_settings import WebhookTarget
from twokey.gateway.webhooks.addresses import Resolve, system_resolve
from twokey.gateway.webhooks.attempts import after
from twokey.gateway.webhooks.decisions import messages
from twokey.gateway.webhooks.posting import Answer, Poster

logger = logging.getLogger(__name__)

READERS = "webhooks"
"""How the names of these readers begin."""

GONE_MS = 60 * 60 * 1000
"""How long nobody reads as a reader that is dropped by a gateway without targets: it
would keep the outbox from being trimmed."""

AT_ONCE = 4
"""How many messages one process sends to one target at the same time."""

_EVENTS = 200
_BLOCK_MS = 2_000
_ABANDONED_MS = 30_000
_POLL_S = 5.0
_PAUSE_S = 1.0
_DROP_S = 600.0


class WebhookSender:
    """Tells the targets of one tenant about decisions.

    Args:
        settings: the targets, and how to reach them.
        store: where events and messages are.
        resolve: returns the addresses of a host.
    """

    def __init__(
        self, settings: Settings, store: Store, resolve: Resolve = system_resolve
    ) -> None:
        self._settings = settings.webhooks
        self._secrets = settings.secret_keys()
        self._tenant = settings.tenant
        self._store = store
        self._resolve = resolve
        self._queues = {
            name: WebhookQueue(store, tenant=self._tenant, target=name)
            for name in self._settings.targets
        }
        self._wakes = {name: asyncio.Event() for name in self._queues}
        self._consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

    async def run(self) -> None:
        """Send until the task is cancelled."""
        if not self._settings.targets:
            await self._forever(self._drop_reader)
        poster = Poster(self._settings, self._resolve)
        try:
            async with asyncio.TaskGroup() as tasks:
                for keys in self._store.parts_of(self._tenant):
                    tasks.create_task(self._forever(_Reading(self, keys).step))
                for name, target in self._settings.targets.items():
                    sending = _Sending(self, name, target, poster)
                    tasks.create_task(self._forever(sending.step))
        finally:
            await poster.close()

    async def queue(self, shard: str, events: Sequence[Event]) -> None:
        """Queue what the targets are to be told of events, each message once.

        Raises:
            StoreUnavailable: when a message is not known to be queued.
        """
        known: dict[News, bool] = {}
        for name, target in self._settings.targets.items():
            found = messages(events, target, tenant=self._tenant, shard=shard, to=name)
            for message in found:
                if message.news not in known:
                    known[message.news] = await self._is_of_a_record(message.news)
                if not known[message.news]:
                    logger.error("webhook.unknown target=%s id=%s", name, message.id)
                    continue
                if await self._queues[name].put(message) == "full":
                    logger.error("webhook.dropped target=%s id=%s", name, message.id)
                    await self.report(name, "full")
                self._wakes[name].set()

    async def _is_of_a_record(self, news: News) -> bool:
        """Return whether a record is of the thread that an event names.

        Events have no seal: who can write to the store could have anything signed that
        stands in one. What nobody can read was put aside, and its thread goes on.
        """
        try:
            loaded = await self._store.approvals.load(news.approval)
        except (CorruptRecord, NewerRecord):
            return True
        if loaded is None:
            # Never there, erased, or its time is over: nobody waits for it.
            return False
        tenant, run = loaded.approval.tenant, loaded.approval.run_ref
        return (tenant, run.agent, run.thread) == (
            self._tenant,
            news.agent,
            news.thread,
        )

    async def take(self, name: str) -> tuple[Taken, ...]:
        """Return messages to send now; waits for them for a while."""
        # A message that is taken has its one attempt, and its end is written, in time.
        lease_ms = int((2 * self._settings.timeout_s + 5) * 1000)
        batch = await self._queues[name].take(AT_ONCE, lease_ms=lease_ms)
        if batch.taken:
            return batch.taken
        pause_s = _POLL_S if batch.next_ms is None else batch.next_ms / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(min(pause_s, _POLL_S) + 0.001):
                await self._wakes[name].wait()
        self._wakes[name].clear()
        return ()

    async def attempt(
        self, name: str, target: WebhookTarget, taken: Taken, poster: Poster
    ) -> None:
        """Send a message once, and record what came of it."""
        queue, delivery = self._queues[name], taken.delivery
        now_ms = await queue.now_ms()
        if not delivery.ends_ms:
            kept_ms = int(self._settings.retry_for.total_seconds() * 1000)
            delivery = delivery.with_(ends_ms=now_ms + kept_ms)
        answer = await send(
            self._secrets, self._tenant, name, target, delivery, poster, now_ms
        )
        outcome, tried, delay_ms = after(
            delivery,
            answer,
            now_ms=await queue.now_ms(),
            spread=random.random(),  # noqa: S311 - spreads load only
        )
        is_ours = await queue.end(taken, outcome, tried, delay_ms=delay_ms)
        if outcome is Outcome.SENT:
            logger.info("webhook.sent target=%s id=%s", name, delivery.id)
            return
        logger.warning(
            "webhook.failed target=%s id=%s attempts=%d outcome=%s why=%r",
            name, delivery.id, tried.attempts, outcome, tried.error,
        )  # fmt: skip
        if outcome is Outcome.DEAD and is_ours:
            await self.report(name, "given up")

    async def report(self, name: str, why: str) -> None:
        """Report that a target does not get what it should; never fails."""
        found = SecurityEvent(
            kind=SecurityKind.STALLED,
            tenant=self._tenant,
            about="webhook",
            name=name,
            evidence=why,
        )
        await self._store.security.report(
            self._store.keys_of_tenant(self._tenant), found
        )

    def outbox(self, keys: Keys) -> Outbox:
        """Return the events of a shard, for the reader of this tenant."""
        return self._store.outbox(keys, reader=self._reader)

    @property
    def _reader(self) -> str:
        return f"{READERS}:{json.dumps([self._tenant])}"

    @property
    def consumer(self) -> str:
        """Return the name of this process among those that read."""
        return self._consumer

    async def _drop_reader(self) -> None:
        """Drop the reader of before, as which no gateway reads any more."""
        for keys in self._store.parts_of(self._tenant):
            await drop_idle_readers(
                self._store.conn, keys, prefix=self._reader, idle_ms=GONE_MS
            )
        await asyncio.sleep(_DROP_S)

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> NoReturn:
        while True:
            try:
                await step()
                continue
            except StoreUnavailable as error:
                logger.warning("webhooks.unavailable error=%s", error)
            except Exception as error:  # noqa: BLE001 - later messages must be sent
                log_failure(logger, error, "webhooks.failed")
            await asyncio.sleep(_PAUSE_S)


class _Reading:
    """Reads the events of one shard."""

    def __init__(self, sender: WebhookSender, keys: Keys) -> None:
        self._sender = sender
        self._shard = keys.shard
        self._outbox = sender.outbox(keys)
        self._is_prepared = False

    async def step(self) -> None:
        if not self._is_prepared:
            await self._outbox.prepare()
            self._is_prepared = True
        try:
            # Apart from new events: together they would give other messages than
            # those that the process which is gone may have queued.
            for take in (self._abandoned, self._new):
                events = await take()
                await self._sender.queue(self._shard, events)
                await self._outbox.done(*(one.seq for one in events))
        except StoreUnavailable:
            # The reader may have been dropped.
            self._is_prepared = False
            raise

    async def _abandoned(self) -> list[Event]:
        return await self._outbox.unfinished(
            self._sender.consumer, idle_ms=_ABANDONED_MS, limit=_EVENTS
        )

    async def _new(self) -> list[Event]:
        return await self._outbox.take(
            self._sender.consumer, block_ms=_BLOCK_MS, limit=_EVENTS
        )


class _Sending:
    """Sends the messages of one target."""

    def __init__(
        self, sender: WebhookSender, name: str, target: WebhookTarget, poster: Poster
    ) -> None:
        self._sender = sender
        self._name = name
        self._target = target
        self._poster = poster

    async def step(self) -> None:
        taken = await self._sender.take(self._name)
        done = await asyncio.gather(
            *(
                self._sender.attempt(self._name, self._target, one, self._poster)
                for one in taken
            ),
            return_exceptions=True,
        )
        for one in done:
            if isinstance(one, BaseException):
                raise one


async def send(
    secrets_: Sequence[bytes],
    tenant: str,
    name: str,
    target: WebhookTarget,
    delivery: Delivery,
    poster: Poster,
    now_ms: int,
) -> Answer:
    """Sign a message with all secrets of a target, and post it once."""
    body = delivery.body
    message = Message(delivery.id, now_ms // 1000, body)
    keys = webhook_secrets(secrets_, tenant, name, target.secrets)
    return await poster.post(target.url, body, headers(message, keys))


@asynccontextmanager
async def sending_webhooks(
    settings: Settings, store: Store, resolve: Resolve = system_resolve
) -> AsyncGenerator[None]:
    """Send webhooks while the block runs, where the settings have targets.

    Raises:
        SettingsError: when the file of certificates cannot be used.
    """
    if settings.webhooks.targets:
        await Poster(settings.webhooks, resolve).close()
    task = asyncio.create_task(WebhookSender(settings, store, resolve).run())
    try:
        yield
    finally:
        task.cancel()
        # Not `await task`: the caller's own cancellation would look like its.
        await asyncio.wait([task])
