"""Store the sealed API keys of a tenant; keys with an invalid seal are reported."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, cast

from keyturn.gateway.approvals.events import (
    Event,
    EventName,
    SecurityEvent,
    SecurityKind,
)
from keyturn.gateway.errors import NotAllowed, NotVerified
from keyturn.gateway.store.connection.connection import (
    Argument,
    fields,
    milliseconds,
    number,
)
from keyturn.gateway.store.sealing.conditional_write import write_if
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.api_keys import ApiKey, sealed, unsealed
from keyturn.gateway.trust.seals import SealKeys

MOST_KEYS = 10_000
"""Limit of keys for each tenant, including revoked ones."""

KEPT = timedelta(days=30)
"""How long an ended key stays in the list."""


_LONGEST_ID = 32


@dataclass(frozen=True)
class FoundKey:
    """A stored key, and the store's time when it was read."""

    key: ApiKey
    now: datetime


class ApiKeyStore:
    """The API keys of one tenant.

    Args:
        store: the store.
        seals: the gateway's sealing keys for API keys.
        tenant: owner of the keys.
    """

    def __init__(self, store: Store, seals: SealKeys, *, tenant: str) -> None:
        self._conn = store.conn
        self._sealing = store.sealing
        self._index = store.audit_index
        self._keys = store.keys_of_tenant(tenant)
        self._name = self._keys.api_keys
        self._seals = seals

    async def now(self) -> datetime:
        """Return the store's time."""
        return _time(await self._conn.now_ms(self._name))

    async def find(self, key_id: str) -> FoundKey | None:
        """Return a key, even if revoked; None if it is missing or its seal is invalid.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        stored, now = await self._stored(key_id)
        if stored is None:
            return None
        key = await self._read(key_id, stored)
        if key is None or await self._was_revoked(key, stored):
            return None
        return FoundKey(key, now)

    async def all(self) -> tuple[tuple[ApiKey, ...], tuple[str, ...]]:
        """Return all keys, oldest first, and the ids of those with an invalid seal.

        Keys that ended long ago are dropped.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        found, refused = list[ApiKey](), list[str]()
        now = await self.now()
        rows = fields(await self._conn.command("HGETALL", self._name))
        for key_id, stored in rows.items():
            key = await self._read(key_id, stored)
            if key is None:
                refused.append(key_id)
            elif min(key.expires_at, key.revoked_at or key.expires_at) + KEPT < now:
                await self._write(key_id, stored, b"", None)
            else:
                found.append(key)
        found.sort(key=lambda key: (key.created_at, key.id))
        return tuple(found), tuple(refused)

    async def add(self, key: ApiKey, by: str) -> None:
        """Store a new key.

        Raises:
            NotAllowed: when there are too many keys.
            StoreUnavailable: when the result is unknown.
        """
        if number(await self._conn.command("HLEN", self._name)) >= MOST_KEYS:
            raise NotAllowed(
                f"There are {MOST_KEYS} API keys already; revoke unused ones."
            )
        event = self._event(EventName.API_KEY_CREATED, key, by)
        await self._write(key.id, b"", sealed(self._seals, key), event)

    async def revoke(self, key_id: str, by: str) -> ApiKey | Literal["removed"] | None:
        """Revoke a key; None if there is no active key with this id.

        A key with an invalid seal is removed; it has no content to return.

        Raises:
            StoreUnavailable: when the result is unknown.
        """
        while True:
            stored, now = await self._stored(key_id)
            if stored is None:
                return None
            key = await self._read(key_id, stored)
            if key is None:
                await self._write(key_id, stored, b"", None)
                return "removed"
            if key.revoked_at is not None:
                return None
            ended = key.with_(revoked_at=now)
            event = self._event(EventName.API_KEY_REVOKED, key, by)
            body = sealed(self._seals, ended)
            if await self._write(key_id, stored, body, event):
                return ended

    async def _stored(self, key_id: str) -> tuple[bytes | None, datetime]:
        """Return a stored key, or None, and the store's time."""
        stored, time = await self._conn.transaction(
            ["HGET", self._name, key_id], ["TIME"]
        )
        return cast("bytes | None", stored), _time(milliseconds(time))

    async def report(
        self, kind: SecurityKind, key_id: str, stored: bytes = b""
    ) -> None:
        """Report a problem with a key; never fails.

        Args:
            kind: the problem.
            key_id: the key's id, which is unverified input.
            stored: the stored value.
        """
        found = SecurityEvent(
            kind=kind,
            tenant=self._keys.tenant,
            about="api_key",
            name=key_id[:_LONGEST_ID],
            key_id=self._seals.id,
            evidence=hashlib.sha256(stored).hexdigest() if stored else "",
        )
        await self._sealing.security.report(self._keys, found)

    async def _was_revoked(self, key: ApiKey, stored: bytes) -> bool:
        """Return whether the audit log contains the end of a seemingly active key."""
        if key.revoked_at or not self._index.is_revoked(self._keys.tenant, key.id):
            return False
        # Someone restored an older sealed copy.
        await self.report(SecurityKind.REPLAYED, key.id, stored)
        return True

    async def _read(self, key_id: str, stored: bytes) -> ApiKey | None:
        try:
            return unsealed(self._seals, self._keys.tenant, key_id, stored)
        except NotVerified:
            await self._sealing.ensure_known(self._keys)
            await self.report(SecurityKind.SEAL_WRONG, key_id, stored)
            return None

    async def _write(
        self, key_id: str, seen: bytes, body: bytes, event: Event | None
    ) -> bool:
        """Replace a stored key, or delete it; False if it has changed."""
        key = self._name
        change: list[Argument] = ["HDEL", key, key_id]
        if body:
            change = ["HSET", key, key_id, body]
        checks = [(["HGET", key, key_id], seen)]
        events = [event] if event else []
        return await write_if(self._conn, self._keys, checks, change, audit=events)

    def _event(self, name: EventName, key: ApiKey, by: str) -> Event:
        return Event(
            name=name,
            tenant=self._keys.tenant,
            actor=by,
            data={
                "key": key.id,
                "name": key.name,
                "agents": ",".join(sorted(key.agents)),
                "tools": ",".join(sorted(key.tools)),
                "scopes": ",".join(sorted(key.scopes)),
                "expires_at": key.expires_at.isoformat(),
            },
        )


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
