"""Store delegations: the delegate of each reviewer's roles, and the end."""

from __future__ import annotations

import logging

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.audit_seals import sealed_text
from keyturn.gateway.store.connection import (
    Connection,
    Reply,
    fields,
    milliseconds,
    number,
    text,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.script import Script
from keyturn.gateway.store.sealing import Sealed, Sealing

logger = logging.getLogger(__name__)

DELEGATE = Script("delegate")


MOST_DELEGATIONS = 1000
"""Limit of delegating people in a tenant: each decision reads all of them."""


class Delegation(Record):
    """One reviewer's queue delegated to another, by their Slack user ids."""

    user: str
    to: str
    until_ms: int


class DelegationStore:
    """Delegations of all tenants; each person has at most one delegate."""

    def __init__(self, conn: Connection, sealing: Sealing) -> None:
        self._conn = conn
        self._sealing = sealing

    async def set(
        self, keys: Keys, user: str, to: str, *, for_ms: int, event: Event
    ) -> int | None:
        """Delegate a queue, replacing an earlier delegation; return the end.

        None if there are `MOST_DELEGATIONS` others; then nothing changes.
        """
        # Computed here from the store's clock: only this process can seal the end.
        now_ms = await self._conn.now_ms(keys.delegations)
        until_ms = now_ms + for_ms
        seal = self._seal_of(keys.delegations, user, to, now_ms, until_ms)
        row = f"{seal} {now_ms} {to} {until_ms}"
        reply = await self._change(keys, user, row, until_ms, event)
        return number(reply[1]) if text(reply[0]) == "done" else None

    async def lift(self, keys: Keys, user: str, event: Event) -> bool:
        """End a delegation; False if there was none."""
        key = keys.delegations
        now_ms = await self._conn.now_ms(key)
        reply = await self._change(keys, user, "", 0, event)
        # Rows sealed before this moment now count as older.
        self._sealing.is_older(_number_of(key, user), now_ms + 1)
        return text(reply[0]) == "done"

    async def all(self, keys: Keys) -> tuple[Delegation, ...]:
        """Return the delegations in force by the store's clock.

        A corrupt row delegates nothing, and blocks no decision.
        """
        rows, time = await self._conn.transaction(
            ["HGETALL", keys.delegations], ["TIME"]
        )
        now_ms = milliseconds(time)
        found: list[Delegation] = []
        key = keys.delegations
        for user, body in fields(rows).items():
            since_ms, one = self._read(key, user, body)
            is_older = one is not None and self._sealing.is_older(
                _number_of(key, user), since_ms
            )
            if one is not None and not is_older:
                found.append(one)
                continue
            logger.error("delegation.corrupt tenant=%s", keys.tenant)
            await self._sealing.refuse(
                keys, Sealed.DELEGATION, body, is_older=is_older, name=user
            )
        # Ended rows stay in the hash until its next change.
        return tuple(one for one in found if now_ms < one.until_ms)

    async def _change(
        self, keys: Keys, user: str, row: str, until_ms: int, event: Event
    ) -> list[Reply]:
        return await DELEGATE(
            self._conn,
            delegations=keys.delegations,
            outbox=keys.outbox,
            audit=keys.audit,
            user=user,
            row=row,
            until_ms=until_ms,
            event=sealed_text(self._conn, keys, event.model_dump_json()),
            most=MOST_DELEGATIONS,
        )

    def _read(self, key: str, user: str, body: bytes) -> tuple[int, Delegation | None]:
        """Return the start and a row; None for a row with an invalid seal."""
        try:
            seal, since_ms, to, until_ms = body.decode().split(" ")
            content = f"{since_ms} {to} {until_ms}".encode()
            place, given = (key, user), bytes.fromhex(seal)
            if not self._sealing.is_valid(Sealed.DELEGATION, place, content, given):
                return 0, None
            row = Delegation(user=user, to=to, until_ms=int(until_ms))
            return int(since_ms), row
        except ValueError:
            return 0, None

    def _seal_of(
        self, key: str, user: str, to: str, since_ms: int, until_ms: int
    ) -> str:
        content = f"{since_ms} {to} {until_ms}".encode()
        return self._sealing.seal(Sealed.DELEGATION, (key, user), content).hex()


def _number_of(key: str, user: str) -> str:
    """Return the name under which a process remembers the newest row."""
    return f"{key} {user}"
