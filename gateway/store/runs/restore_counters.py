"""Keep the store's restore counters, to detect a lost or restored store."""

from __future__ import annotations

from dataclasses import dataclass

from keyturn.gateway.store.connection.connection import fields, number, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.sealing import Repository

_AT = ":at"
_STORE = "store"


@dataclass(frozen=True)
class RestoreCounter:
    """The counter of one checkpoint database, and the time of its last write."""

    number: int = 0
    at_ms: int = 0


@dataclass(frozen=True)
class RestoreCounters:
    """The restore counters of a tenant.

    Attributes:
        store: id of this data set, shared by its copies; empty at first.
        of: counters of all known checkpoint databases, by id.
        now_ms: the store's clock.
    """

    store: str
    of: dict[str, RestoreCounter]
    now_ms: int


class RestoreCounterStore(Repository):
    """The store's side of the restore counters; checkpoint databases have theirs."""

    async def read(self, keys: Keys) -> RestoreCounters:
        """Return all counters and the store's clock."""
        found, now_ms = await self._conn.hash_now(keys.restore_counters)
        store = text(found.pop(_STORE, b""))
        of = {
            name: RestoreCounter(number(kept), number(found.get(name + _AT)))
            for name, kept in found.items()
            if not name.endswith(_AT)
        }
        return RestoreCounters(store, of, now_ms)

    async def named(self, keys: Keys, store: str) -> str:
        """Set the data set's id unless it has one; return its id."""
        key = keys.restore_counters
        await self._conn.keep(["HSETNX", key, _STORE, store])
        return text(await self._conn.command("HGET", key, _STORE))

    async def add(self, keys: Keys, checkpoints: str) -> int:
        """Increment a counter and return it."""
        key = keys.restore_counters
        now = await self._conn.now_ms(key)
        replies = await self._conn.keep(
            ["HINCRBY", key, checkpoints, 1], ["HSET", key, checkpoints + _AT, now]
        )
        return number(replies[0])

    async def put(self, keys: Keys, checkpoints: str, value: int) -> None:
        """Set a counter."""
        await self._conn.keep(["HSET", keys.restore_counters, checkpoints, value])

    async def changes(self, keys: Keys) -> int:
        """Return the number of audit entries ever written; rises with any change."""
        # XINFO of a missing stream is an error, indistinguishable from others.
        length = await self._conn.command("EXISTS", keys.audit)
        if not length:
            return 0
        info = fields(await self._conn.command("XINFO", "STREAM", keys.audit))
        # entries-added is not reduced by trimming, unlike the length.
        return number(info.get("entries-added") or info.get("length"))
