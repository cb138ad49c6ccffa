"""Set, lift and list freezes of a tenant that is not split, with their sealed list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from twokey.gateway.approvals.events import Event
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store.audit_seals import event_texts
from twokey.gateway.store.connection import (
    Connection,
    Reply,
    fields,
    milliseconds,
    text,
)
from twokey.gateway.store.freeze_list import (
    FreezeList,
    FreezeLists,
    KnownList,
    as_json,
    believed_list,
    sealed_key,
)
from twokey.gateway.store.freezes import Freeze, FreezeScope, ScopeKind, paused
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.script import Script

FREEZE = Script("freeze")

_ATTEMPTS = 16
_BUSY = "Others froze or unfroze something at the same time; see what is frozen."


class FreezeStore:
    """Freezes of all tenants."""

    def __init__(self, conn: Connection, lists: FreezeLists) -> None:
        self._conn = conn
        self._lists = lists

    async def set(self, keys: Keys, tenant: str, freeze: Freeze, event: Event) -> bool:
        """Set a freeze; False when it stands already, and then nothing changes.

        Raises:
            StoreUnavailable: when it is not known to be set.
        """
        for _ in range(_ATTEMPTS):
            known, beside, now_ms = await self._read(keys, tenant)
            found = believed_list(known, beside)
            # The first freeze keeps its author and reason, which people are told.
            if freeze.name in known.found.freezes and freeze.name in beside:
                return False
            is_new = freeze.name not in found.freezes
            kept = freeze if is_new else found.freezes[freeze.name]
            after = found.with_(freezes={**found.freezes, freeze.name: kept})
            if await self._write(
                keys, tenant, known, after, now_ms, {freeze.name: kept}, (), event
            ):
                return is_new
        raise StoreUnavailable(_BUSY)

    async def lift(
        self, keys: Keys, tenant: str, scope: FreezeScope, event: Event
    ) -> bool:
        """Lift a freeze and the pause of an agent; False when there is none.

        Raises:
            StoreUnavailable: when it is not known to be lifted.
        """
        names = [str(scope)]
        if scope.kind is ScopeKind.AGENT:
            names.append(paused(scope.name))
        for _ in range(_ATTEMPTS):
            known, beside, now_ms = await self._read(keys, tenant)
            found = believed_list(known, beside)
            standing = {*found.freezes, *beside} & {*names}
            if not standing:
                return False
            left = {
                name: one for name, one in found.freezes.items() if name not in names
            }
            after = found.with_(freezes=left)
            if await self._write(keys, tenant, known, after, now_ms, {}, names, event):
                return True
        raise StoreUnavailable(_BUSY)

    async def reseal(self, keys: Keys, tenant: str) -> None:
        """Seal the list with the secret in use, where it was sealed with one before.

        Raises:
            StoreUnavailable: when it is not known to be sealed.
        """
        for _ in range(_ATTEMPTS):
            known, _, now_ms = await self._read(keys, tenant)
            if not known.seal or not known.is_believed or known.is_of_key_in_use:
                return
            if await self._write(keys, tenant, known, known.found, now_ms, {}, ()):
                return
        raise StoreUnavailable(_BUSY)

    async def all(self, keys: Keys, tenant: str) -> tuple[Freeze, ...]:
        """Return everything that is frozen or paused of a tenant, oldest first."""
        _, beside, _ = await self._read(keys, tenant)
        found = await self._lists.in_force(keys, tenant, None, beside)
        return tuple(sorted(found.values(), key=lambda freeze: freeze.at_ms))

    async def _read(
        self, keys: Keys, tenant: str
    ) -> tuple[KnownList, dict[str, bytes], int]:
        stored, beside, time = await self._conn.transaction(
            ["GET", sealed_key(keys, tenant)],
            ["HGETALL", keys.frozen(tenant)],
            ["TIME"],
        )
        known = await self._lists.learn(keys, tenant, _bytes(stored))
        return known, fields(beside), milliseconds(time)

    async def _write(
        self,
        keys: Keys,
        tenant: str,
        known: KnownList,
        after: FreezeList,
        now_ms: int,
        added: Mapping[str, Freeze],
        removed: list[str] | tuple[str, ...],
        *events: Event,
    ) -> bool:
        stored = self._lists.sealed(keys, tenant, after, now_ms=now_ms)
        reply = await FREEZE(
            self._conn,
            frozen=keys.frozen(tenant),
            outbox=keys.outbox,
            audit=keys.audit,
            before=known.seal,
            after=stored,
            added=as_json(added),
            removed=json.dumps(removed),
            events=event_texts(self._conn, keys, events),
        )
        if text(reply[0]) != "done":
            return False
        await self._lists.learn(keys, tenant, stored)
        return True


def _bytes(reply: Reply) -> bytes:
    return cast("bytes", reply or b"")
