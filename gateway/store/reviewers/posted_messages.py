"""Store the places of the bot's messages in Slack, to redact, change and replace them.

Messages have to be redacted when their approval and its card's place expire. So they
have a separate record with a longer lifetime: their places, and the approval's outcome.
A sorted set has the time of each record's next check.

The entries are sealed: write access to the store must not be enough to replace other
messages of the bot, or to change its text. Each check seals them again if the secret
was replaced, and there is a check at least every `LOOK`. A moved channel sealed with an
old secret counts as unknown, and is recorded again when a person uses a card there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.connection import fields, milliseconds, number
from keyturn.gateway.store.connection.listed_members import due_now
from keyturn.gateway.store.keys import Keys, tenant_of_approval
from keyturn.gateway.store.sealing.sealing import Repository, Sealed

logger = logging.getLogger(__name__)

LOOK = timedelta(days=29)
"""Longest interval between checks of messages: a day less than the retention of an
ended approval, so that one check finds its outcome."""

KEPT = timedelta(days=90)
"""How long messages are known after their last check."""

MOST = 500
"""Limit of known messages of one approval."""

_ENDED = "="


class Ended(Record, extra="ignore"):
    """How an approval ended.

    Attributes:
        at_ms: time of the end.
        outcome: the outcome in a few words.
        redacted_rev: the approval's revision when its messages were redacted; 0: never.
        is_erased: True if it was erased, so its messages are redacted at once.
    """

    at_ms: int
    outcome: str = ""
    redacted_rev: int = 0
    is_erased: bool = False


@dataclass(frozen=True)
class PostedMessages:
    """An approval's messages with channel and ts, and its outcome."""

    places: tuple[tuple[str, str], ...]
    ended: Ended | None
    now_ms: int


class PostedMessageStore(Repository):
    """Messages of all tenants."""

    async def note(
        self,
        keys: Keys,
        approval: str,
        place: tuple[str, str],
        *,
        kept: timedelta | None,
    ) -> None:
        """Record a posted message, so that it can be redacted later.

        Args:
            keys: keys of the tenant.
            approval: subject of the message; for another one nothing is recorded.
            place: its channel and ts.
            kept: how long messages stay unredacted after the approval has ended; None:
                for ever.
        """
        if kept is None or tenant_of_approval(approval) is None:
            return
        name, at = keys.messages(approval), " ".join(place)
        count, time = await self._conn.transaction(["HLEN", name], ["TIME"])
        if number(count) >= MOST:
            logger.error("message.not_noted id=%s", approval)
            return
        first_ms = milliseconds(time) + _ms(min(kept, LOOK))
        seal = self._sealing.keys.make(Sealed.MESSAGE, (name, at), b"")
        await self._conn.keep(
            ["HSET", name, at, seal],
            ["PEXPIRE", name, _ms(KEPT)],
            ["ZADD", keys.messages_due, "NX", first_ms, keys.listed(approval)],
        )

    async def due(self, keys: Keys, limit: int) -> list[str]:
        """Return approvals whose messages are due for a check."""
        return await due_now(self._conn, keys.messages_due, limit, keys.unlisted)

    async def read(self, keys: Keys, approval: str) -> PostedMessages:
        """Return an approval's messages; empty if none are known.

        Entries with an invalid seal are reported and deleted.
        """
        name = keys.messages(approval)
        found, now_ms = await self._conn.hash_now(name)
        places: list[tuple[str, str]] = []
        ended: Ended | None = None
        for at, stored in found.items():
            if at == _ENDED:
                body = self._sealing.opened(Sealed.MESSAGE, (name, _ENDED), stored)
                if body is not None:
                    ended = Ended.model_validate_json(body)
                    continue
            place = (Sealed.MESSAGE, (name, at), b"")
            if not self._sealing.keys.is_valid(stored, *place):
                await self._refuse(keys, approval, at, stored)
                continue
            channel, _, ts = at.partition(" ")
            places.append((channel, ts))
            if stored != (seal := self._sealing.keys.make(*place)):
                await self._conn.command("HSET", name, at, seal)
        return PostedMessages(tuple(places), ended, now_ms)

    async def redacted(self, keys: Keys, approval: str, place: tuple[str, str]) -> None:
        """Record that a message needs no more redaction."""
        await self._conn.command("HDEL", keys.messages(approval), " ".join(place))

    async def look_at(
        self, keys: Keys, approval: str, at_ms: int, *, ended: Ended | None = None
    ) -> None:
        """Schedule a check of an approval's messages, and save its outcome."""
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
        """Schedule immediate redaction of an erased approval's messages."""
        posted = await self.read(keys, approval)
        if posted.places:
            erased = Ended(at_ms=posted.now_ms, is_erased=True)
            await self.look_at(keys, approval, posted.now_ms, ended=erased)

    async def forget(self, keys: Keys, approval: str) -> None:
        """Stop checking an approval's messages."""
        await self._conn.transaction(
            ["DEL", keys.messages(approval)],
            ["ZREM", keys.messages_due, keys.listed(approval)],
        )

    async def _refuse(
        self, keys: Keys, approval: str, field: str, stored: bytes
    ) -> None:
        evidence = f"{field}=".encode("utf-8", "surrogateescape") + stored
        await self._sealing.refuse(keys, Sealed.MESSAGE, evidence, approval=approval)
        await self._conn.command("HDEL", keys.messages(approval), field)


def _ms(time: timedelta) -> int:
    return int(time.total_seconds() * 1000)


class MovedChannelStore(Repository):
    """Current ids of channels, by their former ids."""

    async def note(self, keys: Keys, was: str, now: str) -> None:
        """Record that a channel's id has changed.

        Args:
            keys: keys of the tenant.
            was: the former id, which Slack no longer accepts.
            now: the current id.
        """
        name = keys.moved_channels
        sealed = self._sealing.sealed(Sealed.MESSAGE, (name, was), now.encode())
        # Permanent, since the retention of messages is configurable.
        await self._conn.command("HSET", name, was, sealed)

    async def known(self, keys: Keys) -> dict[str, str]:
        """Return the current id of each moved channel, by its former id."""
        name = keys.moved_channels
        found = fields(await self._conn.command("HGETALL", name))
        moved = {
            was: self._sealing.opened(Sealed.MESSAGE, (name, was), stored)
            for was, stored in found.items()
        }
        return {was: now.decode() for was, now in moved.items() if now}
