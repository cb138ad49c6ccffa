"""Queue of the messages for one program elsewhere: sent at least once, or given up.

Messages are sealed: who can write to the store must not be able to have anything
signed. A process that takes a message has it for a while; when it dies, another one
sends the message again, with the same id.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import cast

from pydantic import ValidationError

from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.webhooks import News, body_of
from twokey.gateway.store.connection import Reply, fields, number, text
from twokey.gateway.store.keys import KEEP_MS
from twokey.gateway.store.script import Script
from twokey.gateway.store.sealing import Sealed
from twokey.gateway.store.store import Store

PUT = Script("webhook_put")
TAKE = Script("webhook_take")
END = Script("webhook_end")

MOST_WAITING = 10_000
"""How many messages may wait for one receiver."""

MOST_DEAD = 1_000
DEAD_KEPT = timedelta(days=7)
"""How many messages that were given up are kept, and for how long."""

_PAGE = 100
_TIME = 14
"""Digits of a time in milliseconds, at most; of one until the year 5000."""


class Outcome(StrEnum):
    """What becomes of a message after an attempt to send it."""

    SENT = "sent"
    LATER = "later"
    DEAD = "dead"


class Delivery(Record, extra="ignore"):
    """One message for one receiver.

    Attributes:
        id: the same in every attempt.
        kind: what it tells.
        news: of which thread.
        at_ms: when that happened.
        ends_ms: until when it is sent again; 0: not decided yet.
        attempts: how often it was sent.
        error: why the last attempt failed.
    """

    id: str
    kind: str
    news: News
    at_ms: int
    ends_ms: int = 0
    attempts: int = 0
    error: str = ""

    @property
    def body(self) -> bytes:
        """Return what is sent, the same bytes each time."""
        return body_of(self.kind, self.news, self.at_ms)


@dataclass(frozen=True)
class Taken:
    """A message that this process has for a while, as the store has it."""

    delivery: Delivery
    stored: bytes


@dataclass(frozen=True)
class Batch:
    """Messages that were taken, and when: milliseconds of the store.

    ``next_ms`` is how long until the next one is due; None: there is none.
    """

    taken: tuple[Taken, ...]
    now_ms: int
    next_ms: int | None


@dataclass(frozen=True)
class Standing:
    """How a receiver did lately: milliseconds of the store, None for never.

    Attributes:
        waiting: how many messages are to be sent.
        dead: how many were given up and are kept.
        ok_ms: when one arrived last.
        failing_ms: since when none arrives.
        error: why.
    """

    waiting: int
    dead: int
    ok_ms: int | None
    failing_ms: int | None
    error: str


class WebhookQueue:
    """The messages for one receiver of a tenant."""

    def __init__(self, store: Store, *, tenant: str, target: str) -> None:
        self.target = target
        self._conn = store.conn
        self._sealing = store.sealing
        self._members = store.members
        self._tenant = tenant
        self._keys = keys = store.keys_of_tenant(tenant)
        self._all, self._due, self._dead, self._state = (
            keys.webhook(tenant, target, part)
            for part in ("all", "due", "dead", "state")
        )

    async def put(self, delivery: Delivery, *, seen: bytes = b"") -> str:
        """Queue a message; ``known`` when it waits already, ``full`` when many do.

        Args:
            delivery: the message.
            seen: what is stored of one that was given up and is to be sent again.

        Raises:
            StoreUnavailable: when it is not known to be queued.
        """
        reply = await PUT(
            self._conn,
            messages=self._all,
            due=self._due,
            dead=self._dead,
            id=delivery.id,
            body=self._sealed(delivery),
            most=MOST_WAITING,
            seen=seen,
            keep_ms=KEEP_MS,
        )
        return text(reply[0])

    async def take(self, most: int, *, lease_ms: int) -> Batch:
        """Take messages whose time has come; nobody else has them until the lease ends.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        reply = await TAKE(
            self._conn,
            messages=self._all,
            due=self._due,
            most=most,
            lease_ms=lease_ms,
        )
        found = await self._read(reply[3:])
        next_ms = number(reply[2])
        return Batch(tuple(found), number(reply[1]), None if next_ms < 0 else next_ms)

    async def end(
        self, taken: Taken, outcome: Outcome, after: Delivery, *, delay_ms: int = 0
    ) -> bool:
        """Record what an attempt came to; False when another process has done so.

        Raises:
            StoreUnavailable: when it is not known to be recorded.
        """
        body = b"" if outcome is Outcome.SENT else self._sealed(after)
        return await self._end(
            after.id, taken.stored, outcome, body, delay_ms=delay_ms, error=after.error
        )

    async def dead(self) -> AsyncGenerator[Taken]:
        """Yield the messages that were given up, the newest first.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        reply = await self._conn.command("ZREVRANGE", self._dead, 0, MOST_DEAD)
        names = [await self._id(one) for one in cast("list[Reply]", reply)]
        ids = [one for one in names if one]
        for at in range(0, len(ids), _PAGE):
            page = ids[at : at + _PAGE]
            bodies = cast(
                "list[Reply]", await self._conn.command("HMGET", self._all, *page)
            )
            rows = [
                one
                for id_, body in zip(page, bodies, strict=True)
                if body is not None
                for one in (id_, body)
            ]
            for one in await self._read(rows):
                yield one

    async def standing(self) -> Standing:
        """Return how the receiver did lately.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        waiting, dead, state = await self._conn.transaction(
            ["ZCARD", self._due], ["ZCARD", self._dead], ["HGETALL", self._state]
        )
        found = {name: text(value) for name, value in fields(state).items()}
        return Standing(
            waiting=number(waiting),
            dead=number(dead),
            ok_ms=_moment(found.get("ok")),
            failing_ms=_moment(found.get("failing")),
            error=found.get("error", ""),
        )

    async def now_ms(self) -> int:
        """Return the time of the store."""
        return await self._conn.now_ms(self._due)

    async def _read(self, rows: Sequence[Reply]) -> list[Taken]:
        found: list[Taken] = []
        for name, stored in zip(rows[::2], rows[1::2], strict=True):
            id_ = await self._id(name)
            if not id_:
                continue
            raw = stored if isinstance(stored, bytes) else text(stored).encode()
            body = self._sealing.opened(Sealed.WEBHOOK, [self._all, id_], raw)
            delivery = None if body is None else _delivery(body)
            if delivery is not None and delivery.id == id_:
                found.append(Taken(delivery, raw))
                continue
            await self._sealing.refuse(
                self._keys, Sealed.WEBHOOK, raw, tenant=self._tenant, name=self.target
            )
            await self._end(id_, raw, "refused", b"")
        return found

    async def _id(self, name: Reply) -> str:
        """Return the id of a message; "" for junk, which is taken out."""
        try:
            return text(name)
        except ValueError:
            junk = cast("bytes", name)
            await self._members.report(self._keys, self._due, junk, tenant=self._tenant)
            await self._conn.transaction(
                ["HDEL", self._all, junk],
                ["ZREM", self._due, junk],
                ["ZREM", self._dead, junk],
            )
        return ""

    async def _end(
        self,
        id_: str,
        seen: bytes,
        outcome: str,
        after: bytes,
        *,
        delay_ms: int = 0,
        error: str = "",
    ) -> bool:
        reply = await END(
            self._conn,
            messages=self._all,
            due=self._due,
            dead=self._dead,
            state=self._state,
            id=id_,
            seen=seen,
            outcome=outcome,
            after=after,
            delay_ms=delay_ms,
            error=error,
            most_dead=MOST_DEAD,
            dead_ms=int(DEAD_KEPT.total_seconds() * 1000),
            keep_ms=KEEP_MS,
        )
        return text(reply[0]) == "kept"

    def _sealed(self, delivery: Delivery) -> bytes:
        body = delivery.model_dump_json(exclude_defaults=True).encode()
        return self._sealing.sealed(Sealed.WEBHOOK, [self._all, delivery.id], body)


def _delivery(body: bytes) -> Delivery | None:
    try:
        return Delivery.model_validate_json(body)
    except ValidationError:
        # Sealed by us, so of a version that writes it in another way.
        return None


def _moment(value: str | None) -> int | None:
    # Anybody may have written there: a number of many digits is no time.
    is_time = value and value.isascii() and value.isdigit() and len(value) <= _TIME
    return int(value) if value and is_time else None
