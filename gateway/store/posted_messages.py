"""Store of what was posted about approvals, so that it can be redacted later.

An approval and the place of its card are forgotten when their time is over, and that is
when their messages have to be redacted. So these have a record of their own, which
lives longer: where they are, and how the approval ended. A sorted set says when each is
looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from pydantic import ValidationError

from twokey.gateway.protocol.records import Record
from twokey.gateway.store.connection import (
    Connection,
    Reply,
    fields,
    milliseconds,
    text,
)
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.script import Script

NOTE = Script("note_message")

LOOK = timedelta(days=29)
"""How often messages are looked at, at least: an approval that has ended is kept for a
day longer, so one of these looks finds how it ended."""

KEPT = timedelta(days=90)
"""How long messages are known after they were looked at last."""

MOST = 500
"""How many messages about one approval are known."""

_ENDED = "="

logger = logging.getLogger(__name__)


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
    """Messages of all shards."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def note(
        self,
        keys: Keys,
        tenant: str,
        approval: str,
        place: tuple[str, str],
        *,
        kept: timedelta,
    ) -> None:
        """Note a message that was posted.

        Args:
            keys: of the shard.
            tenant: whose approval it is.
            approval: what the message is about.
            place: its channel and ts.
            kept: how long messages stay as they are after their approval has ended.
        """
        reply = await NOTE(
            self._conn,
            messages=keys.messages(approval),
            due=keys.messages_due(tenant),
            place=" ".join(place),
            member=keys.listed(approval),
            after_ms=_ms(min(kept, LOOK)),
            most=MOST,
            keep_ms=_ms(KEPT),
        )
        if text(reply[0]) == "full":
            logger.error("message.not_noted id=%s", approval)

    async def due(self, keys: Keys, tenant: str, limit: int) -> list[str]:
        """Return approvals whose messages are to be looked at now."""
        key = keys.messages_due(tenant)
        now_ms = await self._conn.now_ms(key)
        reply = await self._conn.command(
            "ZRANGEBYSCORE", key, "-inf", now_ms, "LIMIT", 0, limit
        )
        return [keys.unlisted(member) for member in cast("list[bytes]", reply or [])]

    async def read(self, keys: Keys, approval: str) -> PostedMessages:
        """Return the messages about an approval; none where none is known any more."""
        found, time = await self._conn.transaction(
            ["HGETALL", keys.messages(approval)], ["TIME"]
        )
        rows = fields(found)
        ended = _ended(rows)
        places = [
            (channel, ts)
            for channel, _, ts in (name.partition(" ") for name in rows)
            if ts
        ]
        return PostedMessages(tuple(places), ended, milliseconds(time))

    async def redacted(self, keys: Keys, approval: str, place: tuple[str, str]) -> None:
        """Note that nothing is left to redact of a message."""
        await self._conn.command("HDEL", keys.messages(approval), " ".join(place))

    async def look_at(
        self,
        keys: Keys,
        tenant: str,
        approval: str,
        at_ms: int,
        *,
        ended: Ended | None = None,
    ) -> None:
        """Look at the messages of an approval at a moment, and keep how it ended."""
        name = keys.messages(approval)
        wrote: list[list[str | int | bytes]] = []
        if ended is not None:
            wrote.append(["HSET", name, _ENDED, ended.model_dump_json()])
        await self._conn.transaction(
            *wrote,
            ["PEXPIRE", name, _ms(KEPT)],
            ["ZADD", keys.messages_due(tenant), at_ms, keys.listed(approval)],
        )

    async def erase(self, keys: Keys, tenant: str, approval: str) -> None:
        """Let the messages about an approval that was erased be redacted now."""
        posted = await self.read(keys, approval)
        if posted.places:
            erased = Ended(at_ms=posted.now_ms, is_erased=True)
            await self.look_at(keys, tenant, approval, posted.now_ms, ended=erased)

    async def forget(self, keys: Keys, tenant: str, approval: str) -> None:
        """Look at the messages of an approval no more."""
        await self._conn.transaction(
            ["DEL", keys.messages(approval)],
            ["ZREM", keys.messages_due(tenant), keys.listed(approval)],
        )


def _ended(rows: Mapping[str, Reply]) -> Ended | None:
    body = text(rows.get(_ENDED))
    try:
        return Ended.model_validate_json(body) if body else None
    except ValidationError:
        return None


def _ms(time: timedelta) -> int:
    return int(time.total_seconds() * 1000)
