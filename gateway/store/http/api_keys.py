"""Store the sealed API keys of a tenant; keys with an invalid seal are reported."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Literal, cast

from pydantic import ValidationError

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.store.connection.connection import (
    Argument,
    fields,
    milliseconds,
    number,
)
from keyturn.gateway.store.sealing.sealing import Sealed, write_if
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.api_keys import ApiKey, NewKey, new_api_key
from keyturn.gateway.trust.seals import SealKeys

MOST_KEYS = 10_000
"""Limit of keys for each tenant, including revoked ones."""

KEPT = timedelta(days=30)
"""How long an ended key stays in the list."""


_LONGEST_ID = 32


class ApiKeyStore:
    """The API keys of one tenant.

    Args:
        store: the store.
        tenant: owner of the keys.
    """

    def __init__(self, store: Store, *, tenant: str) -> None:
        self._conn = store.conn
        self._sealing = store.sealing
        self._index = store.audit_index
        self._keys = store.keys_of_tenant(tenant)
        self._name = self._keys.api_keys
        # Only keys of the store, so it remains small.
        self._revoked = set[str]()

    @property
    def seals(self) -> SealKeys:
        """Return the keys that hash the secrets of API keys."""
        return self._sealing.keys

    async def now(self) -> datetime:
        """Return the store's time."""
        return _time(await self._conn.now_ms(self._name))

    async def find(self, key_id: str) -> tuple[ApiKey, datetime] | None:
        """Return a key and the store's time; None if it is missing, revoked or forged.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        stored, now = await self._stored(key_id)
        if stored is None:
            return None
        key = await self._read(key_id, stored)
        if key is None or await self._is_revoked(key, stored):
            return None
        return key, now

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

    async def create(self, by: str, lives: timedelta, **fields: object) -> NewKey:
        """Make a key and store it; ``fields`` are those of `ApiKey`.

        Raises:
            NotAllowed: when there are too many keys.
            StoreUnavailable: when the result is unknown.
        """
        if number(await self._conn.command("HLEN", self._name)) >= MOST_KEYS:
            raise NotAllowed(
                f"There are {MOST_KEYS} API keys already; revoke unused ones."
            )
        now, tenant = await self.now(), self._keys.tenant
        times = {"created_at": now, "expires_at": now + lives}
        new = new_api_key(self.seals, tenant=tenant, created_by=by, **times, **fields)
        event = self._event(EventName.API_KEY_CREATED, new.kept, by)
        await self._write(new.kept.id, b"", self._sealed(new.kept), event)
        return new

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
            if await self._write(key_id, stored, self._sealed(ended), event):
                return ended

    async def _stored(self, key_id: str) -> tuple[bytes | None, datetime]:
        """Return a stored key, or None, and the store's time."""
        stored, time = await self._conn.transaction(
            ["HGET", self._name, key_id], ["TIME"]
        )
        return cast("bytes | None", stored), _time(milliseconds(time))

    async def _refuse(self, key_id: str, stored: bytes, *, is_older: bool) -> None:
        """Report a rejected record under its unverified id."""
        kind, name = Sealed.API_KEY, key_id[:_LONGEST_ID]
        await self._sealing.refuse(
            self._keys, kind, stored, is_older=is_older, name=name
        )

    async def _is_revoked(self, key: ApiKey, stored: bytes) -> bool:
        """Return whether a key was revoked, even if the record is an older copy."""
        if key.revoked_at is not None:
            self._revoked.add(key.id)
            return True
        tenant = self._keys.tenant
        is_older = key.id in self._revoked or self._index.is_revoked(tenant, key.id)
        if is_older:
            await self._refuse(key.id, stored, is_older=True)
        return is_older

    def _sealed(self, key: ApiKey) -> bytes:
        body = key.model_dump_json(exclude_defaults=True).encode()
        return self._sealing.sealed(Sealed.API_KEY, (key.tenant, key.id), body)

    async def _read(self, key_id: str, stored: bytes) -> ApiKey | None:
        place = (self._keys.tenant, key_id)
        content = self._sealing.opened(Sealed.API_KEY, place, stored)
        # An unknown version may have written it.
        with suppress(ValidationError):
            if content is not None:
                return ApiKey.model_validate_json(content)
        await self._refuse(key_id, stored, is_older=False)
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
