"""Store delegations: the delegate of each reviewer's roles, and the end."""

from __future__ import annotations

import logging

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.connection import (
    Argument,
    Command,
    Reply,
    fields,
    milliseconds,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.sealing import Repository, Sealed, write_if

logger = logging.getLogger(__name__)

MOST_DELEGATIONS = 1000
"""Limit of delegating people in a tenant: each decision reads all of them."""


class Delegation(Record):
    """One reviewer's queue delegated to another, by their Slack user ids."""

    user: str
    to: str
    since_ms: int
    until_ms: int


class DelegationStore(Repository):
    """Delegations of all tenants; each person has at most one delegate."""

    async def all(self, keys: Keys) -> tuple[Delegation, ...]:
        """Return the delegations in force by the store's clock."""
        rows, time = await self._conn.transaction(self.reading(keys), ["TIME"])
        return await self.in_force(keys, rows, milliseconds(time))

    def reading(self, keys: Keys) -> Command:
        """Return the command whose reply `in_force` takes."""
        return "HGETALL", keys.delegations

    async def in_force(
        self, keys: Keys, stored: Reply, now_ms: int
    ) -> tuple[Delegation, ...]:
        """Return the result of `all` for the stored hash.

        A corrupt row delegates nothing, and blocks no decision.
        """
        found: list[Delegation] = []
        for user, body in fields(stored).items():
            one = self._opened(keys, user, body)
            is_older = one is not None and self._sealing.is_older(
                _number_of(keys, user), one.since_ms
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

    async def change(
        self, keys: Keys, user: str, event: Event, *, to: str = "", for_ms: int = 0
    ) -> int | None:
        """Delegate a person's queue, or end its delegation; return the end.

        None if nothing changes: there are `MOST_DELEGATIONS` others, or there was no
        delegation to end.
        """
        key = keys.delegations
        while True:
            rows, now_ms = await self._conn.hash_now(key)
            known = {one: self._opened(keys, one, body) for one, body in rows.items()}
            over = [one for one, row in known.items() if row and row.until_ms <= now_ms]
            left = {*rows} - {*over}
            is_full = len(left - {user}) >= MOST_DELEGATIONS
            if is_full if to else user not in left:
                return None
            until_ms = now_ms + for_ms
            writes: list[list[Argument]] = [["HDEL", key, *over, user]]
            if to:
                row = Delegation(user=user, to=to, since_ms=now_ms, until_ms=until_ms)
                body = row.model_dump_json().encode()
                sealed = self._sealing.sealed(Sealed.DELEGATION, (key, user), body)
                writes.append(["HSET", key, user, sealed])
                # Redis 7.0 has no lifetimes of fields, so the hash has the longest one:
                # GT alone would give none to a new hash.
                writes.append(["PEXPIREAT", key, until_ms, "NX"])
                writes.append(["PEXPIREAT", key, until_ms, "GT"])
            checks = [(["HGET", key, one], rows.get(one, b"")) for one in (*over, user)]
            told = [event]
            if await write_if(
                self._conn, keys, checks, *writes, outbox=told, audit=told
            ):
                # Rows sealed before this moment now count as older.
                self._sealing.is_older(_number_of(keys, user), now_ms + (not to))
                return until_ms

    def _opened(self, keys: Keys, user: str, stored: bytes) -> Delegation | None:
        """Return a row; None if its seal is invalid."""
        place = (keys.delegations, user)
        body = self._sealing.opened(Sealed.DELEGATION, place, stored)
        return Delegation.model_validate_json(body) if body else None


def _number_of(keys: Keys, user: str) -> str:
    """Return the name under which a process remembers the newest row."""
    return f"{keys.delegations} {user}"
