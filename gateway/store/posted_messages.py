"""Store where messages of the bot are in Slack, to redact, change and replace them.

An approval and the place of its card are forgotten when their time is over, and that is
when their messages have to be redacted. So these have a record of their own, which
lives longer: where they are, and how the approval ended. A sorted set says when each is
looked at.

What is noted is sealed: who can write to the store must not be able to have other
messages of the bot replaced, or its own words put there. Each look at the messages of
an approval seals them anew where the secret was replaced since, and there is one at
least every `LOOK`. A moved channel under a secret that was replaced counts as unknown,
and is noted again when somebody uses a card there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from pydantic import ValidationError

from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection import Connection, fields, milliseconds, text
from keyturn.gateway.store.keys import RESPONSE_URL_MS, Keys
from keyturn.gateway.store.listed_members import listed_approvals
from keyturn.gateway.store.script import Script
from keyturn.gateway.store.sealing import Sealed, Sealing

logger = logging.getLogger(__name__)

NOTE = Script("note_message")

LOOK = timedelta(days=29)
"""How often messages are looked at, at least: an approval that has ended is kept for a
day longer, so one of these looks finds how it ended."""

KEPT = timedelta(days=90)
"""How long messages are known after they were looked at last."""

MOST = 500
"""How many messages about one approval are known."""

_ENDED = "="

TAKE_URL = Script("take_url")

USES = 4
"""One of the five is left for a private reply to the click."""


class Ended(Record, extra="ignore"):
    """How an approval ended.

    Attributes:
        at_ms: when.
        outcome: in a few words of ours.
        redacted_rev: of the approval whose messages were redacted; 0: of none.
        is_erased: it was erased, so its messages are redacted at once.
    """

    at_ms: int
    outcome: str = ""
    redacted_rev: int = 0
    is_erased: bool = False


@dataclass(frozen=True)
class PostedMessages:
    """Messages about an approval: channel and ts of each, and how it ended."""

    places: tuple[tuple[str, str], ...]
    ended: Ended | None
    now_ms: int


class PostedMessageStore:
    """Messages of all tenants."""

    def __init__(self, sealing: Sealing) -> None:
        self._conn = sealing.conn
        self._sealing = sealing

    async def note(
        self, keys: Keys, approval: str, place: tuple[str, str], *, kept: timedelta
    ) -> None:
        """Note a message that was posted.

        Args:
            keys: of the tenant.
            approval: what the message is about.
            place: its channel and ts.
            kept: how long messages stay as they are after their approval has ended.
        """
        name, at = keys.messages(approval), " ".join(place)
        reply = await NOTE(
            self._conn,
            messages=name,
            due=keys.messages_due,
            place=at,
            seal=self._sealing.seal(Sealed.MESSAGE, (name, at), b""),
            member=keys.listed(approval),
            after_ms=_ms(min(kept, LOOK)),
            most=MOST,
            keep_ms=_ms(KEPT),
        )
        if text(reply[0]) == "full":
            logger.error("message.not_noted id=%s", approval)

    async def due(self, keys: Keys, limit: int) -> list[str]:
        """Return approvals whose messages are to be looked at now."""
        key = keys.messages_due
        now_ms = await self._conn.now_ms(key)
        reply = await self._conn.command(
            "ZRANGEBYSCORE", key, "-inf", now_ms, "LIMIT", 0, limit
        )
        return await listed_approvals(self._conn, keys, key, reply)

    async def read(self, keys: Keys, approval: str) -> PostedMessages:
        """Return the messages about an approval; none where none is known any more.

        What was not noted for this approval is reported, and forgotten.
        """
        name = keys.messages(approval)
        found, time = await self._conn.transaction(["HGETALL", name], ["TIME"])
        places: list[tuple[str, str]] = []
        ended: Ended | None = None
        for at, stored in fields(found).items():
            channel, _, ts = at.partition(" ")
            if at == _ENDED and (ended := self._ended(name, stored)):
                continue
            if not self._sealing.is_valid(Sealed.MESSAGE, (name, at), b"", stored):
                await self._refuse(keys, approval, at, stored)
                continue
            places.append((channel, ts))
            if stored != (seal := self._sealing.seal(Sealed.MESSAGE, (name, at), b"")):
                await self._conn.command("HSET", name, at, seal)
        return PostedMessages(tuple(places), ended, milliseconds(time))

    async def redacted(self, keys: Keys, approval: str, place: tuple[str, str]) -> None:
        """Note that nothing is left to redact of a message."""
        await self._conn.command("HDEL", keys.messages(approval), " ".join(place))

    async def look_at(
        self, keys: Keys, approval: str, at_ms: int, *, ended: Ended | None = None
    ) -> None:
        """Look at the messages of an approval at a moment, and keep how it ended."""
        name = keys.messages(approval)
        wrote: list[list[str | int | bytes]] = []
        if ended is not None:
            body = ended.model_dump_json().encode()
            sealed = self._sealing.sealed(Sealed.MESSAGE, (name, _ENDED), body)
            wrote.append(["HSET", name, _ENDED, sealed])
        await self._conn.transaction(
            *wrote,
            ["PEXPIRE", name, _ms(KEPT)],
            ["ZADD", keys.messages_due, at_ms, keys.listed(approval)],
        )

    async def erase(self, keys: Keys, approval: str) -> None:
        """Let the messages about an approval that was erased be redacted now."""
        posted = await self.read(keys, approval)
        if posted.places:
            erased = Ended(at_ms=posted.now_ms, is_erased=True)
            await self.look_at(keys, approval, posted.now_ms, ended=erased)

    async def forget(self, keys: Keys, approval: str) -> None:
        """Look at the messages of an approval no more."""
        await self._conn.transaction(
            ["DEL", keys.messages(approval)],
            ["ZREM", keys.messages_due, keys.listed(approval)],
        )

    def _ended(self, name: str, stored: bytes) -> Ended | None:
        body = self._sealing.opened(Sealed.MESSAGE, (name, _ENDED), stored)
        try:
            return Ended.model_validate_json(body) if body else None
        except ValidationError:
            return None

    async def _refuse(
        self, keys: Keys, approval: str, field: str, stored: bytes
    ) -> None:
        evidence = f"{field}=".encode("utf-8", "surrogateescape") + stored
        await self._sealing.refuse(keys, Sealed.MESSAGE, evidence, approval=approval)
        await self._conn.command("HDEL", keys.messages(approval), field)


def _ms(time: timedelta) -> int:
    return int(time.total_seconds() * 1000)


class MovedChannelStore:
    """The ids that channels have now, by the ones that they had before."""

    def __init__(self, sealing: Sealing) -> None:
        self._conn = sealing.conn
        self._sealing = sealing

    async def note(self, keys: Keys, was: str, now: str) -> None:
        """Note that a channel has another id now.

        Args:
            keys: of the tenant.
            was: the id that Slack knows no more.
            now: the id that it has instead.
        """
        name = keys.moved_channels
        sealed = self._sealing.sealed(Sealed.MESSAGE, (name, was), now.encode())
        # For as long as the store: how long messages are kept is a setting.
        await self._conn.command("HSET", name, was, sealed)

    async def known(self, keys: Keys) -> dict[str, str]:
        """Return the id that each channel has now, by the one that it had before."""
        name = keys.moved_channels
        found = fields(await self._conn.command("HGETALL", name))
        moved = {
            was: self._sealing.opened(Sealed.MESSAGE, (name, was), stored)
            for was, stored in found.items()
        }
        return {was: now.decode() for was, now in moved.items() if now}


class ResponseUrlStore:
    """The newest response URL of each message on which somebody clicked.

    A post to it replaces the message outside the limit of updates. Slack sends one with
    each click. It is good for five posts within thirty minutes, and whoever knows it
    can post as the app: so it is in no record and in no log, and is forgotten before
    Slack takes it no more.
    Source: https://docs.slack.dev/interactivity/handling-user-interaction
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def keep(self, keys: Keys, channel: str, ts: str, url: str) -> None:
        """Keep the URL of a click on a message."""
        key, kept = keys.response_url(channel, ts), f"{USES} {url}"
        await self._conn.command("SET", key, kept, "PX", RESPONSE_URL_MS)

    async def take(self, keys: Keys, channel: str, ts: str) -> str:
        """Return the URL of a message for one post; "" when there is none."""
        word, *url = await TAKE_URL(self._conn, url=keys.response_url(channel, ts))
        return text(url[0]) if text(word) == "taken" else ""

    async def forget(self, keys: Keys, channel: str, ts: str) -> None:
        """Forget the URL of a message: Slack did not take it."""
        await self._conn.command("DEL", keys.response_url(channel, ts))
