"""Freezes of a tenant that is split: each change with its time, in every shard of it.

A freeze stops claims in the script that grants them, so it has to be in each shard.
What is kept beside it, by name, is the newest change: by its time everybody finds out
which of two is the later one, and any process may repeat it where it is missing, any
number of times, in any order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.protocol.records import Record
from twokey.gateway.store.audit_seals import sealed_text
from twokey.gateway.store.connection import Connection, fields, milliseconds, text
from twokey.gateway.store.freeze_list import (
    FreezeList,
    FreezeLists,
    KnownList,
    believed_list,
    hashed,
    sealed_key,
)
from twokey.gateway.store.freezes import Freeze
from twokey.gateway.store.keys import KEEP_MS, Keys
from twokey.gateway.store.script import Script

FREEZE_PART = Script("freeze_part")

_ATTEMPTS = 16


class FreezeChange(Record):
    """A freeze that was set, or lifted.

    Attributes:
        name: of the freeze.
        at_ms: when: of two changes the later one counts, of two at once the freeze.
        freeze: what was set; None where it was lifted.
        pause: name of the pause that ends with it, or empty.
        events: what the tenant's own shard tells of it, and of changes before that it
            may not have told of yet, each with the time of its change.
    """

    name: str
    at_ms: int
    freeze: Freeze | None = None
    pause: str = ""
    events: tuple[tuple[int, str], ...] = ()

    @property
    def row(self) -> str:
        """Return the change as the store keeps it."""
        return f"{self.at_ms} {self.model_dump_json()}"

    @property
    def order(self) -> tuple[int, bool, str]:
        """Return by what the newest of several is found, as the script does."""
        return self.at_ms, self.freeze is not None, self.row


@dataclass(frozen=True)
class PartFreezes:
    """What one shard has, at one moment.

    Attributes:
        changes: the newest change of each name.
        frozen: what is frozen or paused, by name.
        now_ms: the clock of the shard.
        known: its sealed list.
        listed: the list to go on from.
    """

    changes: Mapping[str, FreezeChange]
    frozen: Mapping[str, Freeze]
    now_ms: int
    known: KnownList = field(default_factory=KnownList)
    listed: FreezeList = field(default_factory=FreezeList)


class FreezeChangeStore:
    """Changes of freezes in the shards of all tenants that are split."""

    def __init__(self, conn: Connection, lists: FreezeLists) -> None:
        self._conn = conn
        self._lists = lists

    async def read(self, keys: Keys, tenant: str) -> PartFreezes:
        """Return what a shard has; raises `StoreUnavailable`."""
        stored, rows, frozen, time = await self._conn.transaction(
            ["GET", sealed_key(keys, tenant)],
            ["HGETALL", keys.freeze_changes(tenant)],
            ["HGETALL", keys.frozen(tenant)],
            ["TIME"],
        )
        known = await self._lists.learn(keys, tenant, cast("bytes", stored or b""))
        changes: dict[str, FreezeChange] = {}
        for name, row in fields(rows).items():
            one = await self._believed(keys, tenant, known, name, row)
            if one is not None:
                changes[name] = one
        beside = fields(frozen)
        found = await self._lists.in_force(keys, tenant, None, beside)
        return PartFreezes(
            changes, found, milliseconds(time), known, believed_list(known, beside)
        )

    async def _believed(
        self, keys: Keys, tenant: str, known: KnownList, name: str, row: bytes
    ) -> FreezeChange | None:
        """Return a change; None where it may not be ours and would lift a freeze."""
        is_listed = known.found.changes.get(name) == hashed(row)
        try:
            one = FreezeChange.model_validate_json(text(row).partition(" ")[2])
        except ValueError:
            one = None
        # An older version does not list what it freezes.
        if one is not None and one.name == name and (is_listed or one.freeze):
            return one
        await self._lists.refuse(keys, tenant, name, row)
        key = keys.freeze_changes(tenant)
        # Taken out: by its time it could keep later changes from being made.
        await self._conn.command("HDEL", key, name)
        return None

    async def apply(
        self, keys: Keys, tenant: str, change: FreezeChange, *, is_told: bool
    ) -> str:
        """Make a change in a shard; return ``done``, ``same`` or ``older``.

        Args:
            keys: of the shard.
            tenant: whose freeze it is.
            change: the change.
            is_told: whether this shard tells of it.

        Raises:
            StoreUnavailable: when it is not known to be made.
        """
        for _ in range(_ATTEMPTS):
            word = await self._apply(keys, tenant, change, is_told=is_told)
            if word != "moved":
                return word
        raise StoreUnavailable("Others freeze and unfreeze at the same time.")

    async def _apply(
        self, keys: Keys, tenant: str, change: FreezeChange, *, is_told: bool
    ) -> str:
        part = await self.read(keys, tenant)
        freezes = {**part.listed.freezes}
        if change.freeze is None:
            freezes.pop(change.name, None)
        else:
            freezes[change.name] = change.freeze
        # What the store keeps of a change no longer, nobody has to believe.
        changes = {
            name: one
            for name, one in part.listed.changes.items()
            if name in part.changes
        }
        changes[change.name] = hashed(change.row.encode())
        after = part.listed.with_(freezes=freezes, changes=changes)
        stored = self._lists.sealed(keys, tenant, after, now_ms=part.now_ms)
        reply = await FREEZE_PART(
            self._conn,
            frozen=keys.frozen(tenant),
            changes=keys.freeze_changes(tenant),
            outbox=keys.outbox,
            audit=keys.audit,
            name=change.name,
            at_ms=change.at_ms,
            body=change.freeze.model_dump_json() if change.freeze else "",
            change=change.model_dump_json(),
            paused=change.pause,
            before=part.known.seal,
            after=stored,
            events=json.dumps(
                [
                    (at_ms, sealed_text(self._conn, keys, event))
                    for at_ms, event in (change.events if is_told else ())
                ]
            ),
            keep_ms=KEEP_MS,
        )
        if text(reply[0]) == "done":
            await self._lists.learn(keys, tenant, stored)
        return text(reply[0])
