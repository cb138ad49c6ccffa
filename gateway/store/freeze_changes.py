"""Freezes of a tenant that is split: each change with its time, in every shard of it.

A freeze stops claims in the script that grants them, so it has to be in each shard.
What is kept beside it, by name, is the newest change: by its time everybody finds out
which of two is the later one, and any process may repeat it where it is missing, any
number of times, in any order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from twokey.gateway.protocol.records import Record
from twokey.gateway.store.audit_seals import sealed_text
from twokey.gateway.store.connection import Connection, fields, milliseconds, text
from twokey.gateway.store.freezes import Freeze
from twokey.gateway.store.keys import KEEP_MS, Keys
from twokey.gateway.store.script import Script

FREEZE_PART = Script("freeze_part")


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
    """

    changes: Mapping[str, FreezeChange]
    frozen: Mapping[str, Freeze]
    now_ms: int


class FreezeChangeStore:
    """Changes of freezes in the shards of all tenants that are split."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def read(self, keys: Keys, tenant: str) -> PartFreezes:
        """Return what a shard has; raises `StoreUnavailable`."""
        rows, frozen, time = await self._conn.transaction(
            ["HGETALL", keys.freeze_changes(tenant)],
            ["HGETALL", keys.frozen(tenant)],
            ["TIME"],
        )
        changes = {
            name: FreezeChange.model_validate_json(text(row).partition(" ")[2])
            for name, row in fields(rows).items()
        }
        found = {
            name: Freeze.model_validate_json(body)
            for name, body in fields(frozen).items()
        }
        return PartFreezes(changes, found, milliseconds(time))

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
            events=json.dumps(
                [
                    (at_ms, sealed_text(self._conn, keys, event))
                    for at_ms, event in (change.events if is_told else ())
                ]
            ),
            keep_ms=KEEP_MS,
        )
        return text(reply[0])
