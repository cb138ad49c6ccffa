"""The sealed list of a tenant's freezes: deleting one from the store lifts none.

Absence cannot be sealed, so all freezes of a tenant in one shard stand in one sealed
text with a number that rises with each change (its epoch). A process keeps the list
that it verified last and goes by it. The scripts that let calls start compare its seal
in the step that writes: where the store has another one, nothing is written, and the
list is read and verified again. A list that does not verify, is older than one that
this process knew, or is gone, freezes the whole tenant until people have frozen or
unfrozen something anew.

Beside the list each freeze also stands in the hash that versions before it read. What
stands there alone was set by such a version, or by whoever can write to the store: it
holds as well, but nobody is told words of it. Pauses of agents, which keep calls from
being asked and lift nothing, stand there alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast
from weakref import WeakKeyDictionary

from pydantic import Field, ValidationError

from twokey.gateway.approvals.events import BY_GATEWAY
from twokey.gateway.protocol.records import Record
from twokey.gateway.store.connection import Connection
from twokey.gateway.store.freezes import Freeze, FreezeScope, ScopeKind
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.sealing import MARK, Sealed, Sealing
from twokey.gateway.trust.seals import SEAL_BYTES

_SEAL = slice(len(MARK), len(MARK) + SEAL_BYTES)
_PAUSED = "paused "
_PAUSE_REASON = re.compile(r"[0-9]{1,6} of its calls were rejected in a row", re.ASCII)
_MOVED = "-"
"""Compared with a seal, it never equals one."""


class FreezeList(Record):
    """What is sealed of a tenant's freezes in one shard.

    Attributes:
        epoch: rises with each change.
        freezes: by name.
        changes: by name, the hash of the newest change of a tenant that is split.
    """

    epoch: int = 0
    freezes: dict[str, Freeze] = Field(default_factory=dict)
    changes: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class KnownList:
    """A list as this process verified it last.

    Attributes:
        found: what it says; empty where it is not believed.
        seal: its seal in hexadecimal digits; empty where there is none.
        is_believed: False freezes everything.
        is_of_key_in_use: False for one that an older secret sealed.
    """

    found: FreezeList = field(default_factory=FreezeList)
    seal: str = ""
    is_believed: bool = True
    is_of_key_in_use: bool = True


_NOT_BELIEVED = Freeze(
    scope=FreezeScope(kind=ScopeKind.TENANT),
    by=BY_GATEWAY,
    reason=(
        "the list of freezes in the store is missing, changed or older than before; "
        "the operator of Twokey can lift this (see 'twokey security')"
    ),
)


class FreezeLists:
    """The lists of all tenants, as far as this process has looked at them.

    Args:
        conn: to the store.
        sealing: of the lists.
    """

    def __init__(self, conn: Connection, sealing: Sealing) -> None:
        self._conn = conn
        self._sealing = sealing
        self._known: dict[str, KnownList] = {}
        _OF[conn] = self

    def known(self, keys: Keys, tenant: str) -> KnownList:
        """Return the list that was verified last."""
        return self._known.get(sealed_key(keys, tenant), KnownList())

    def compared(self, keys: Keys, tenant: str, names: Iterable[str]) -> list[str]:
        """Return what a script compares, in which none of these may be frozen.

        The seal of the list comes first. Nothing is frozen by it, or the script finds
        that something moved, and who asked reads again what is frozen.
        """
        wanted, known = list(names), self.known(keys, tenant)
        if not wanted:
            return []
        is_frozen = not known.is_believed or any(
            one in known.found.freezes for one in wanted
        )
        return [_MOVED if is_frozen else known.seal, *wanted]

    async def refresh(self, keys: Keys, tenant: str) -> KnownList:
        """Read the list and verify it."""
        stored = await self._conn.command("GET", sealed_key(keys, tenant))
        return await self.learn(keys, tenant, cast("bytes", stored or b""))

    async def learn(self, keys: Keys, tenant: str, stored: bytes) -> KnownList:
        """Verify a list that was read; report one that is not believed."""
        key = sealed_key(keys, tenant)
        known = self._verified(key, stored)
        self._known[key] = known
        if not known.is_believed:
            is_older = self._sealing.opened(Sealed.FREEZES, (key,), stored) is not None
            await self._sealing.refuse(
                keys,
                Sealed.FREEZES,
                stored,
                tenant=tenant,
                is_older=is_older or not stored,
            )
        return known

    def _verified(self, key: str, stored: bytes) -> KnownList:
        seal = stored[_SEAL].hex()
        body = self._sealing.opened(Sealed.FREEZES, (key,), stored) if stored else b""
        if body is None:
            return KnownList(seal=seal, is_believed=False)
        found = FreezeList.model_validate_json(body) if body else FreezeList()
        is_believed = not self._sealing.is_older(key, found.epoch)
        return KnownList(
            found if is_believed else FreezeList(),
            seal,
            is_believed,
            self._sealing.keys.is_of_key_in_use(
                stored[_SEAL], Sealed.FREEZES, (key,), body
            ),
        )

    def sealed(
        self, keys: Keys, tenant: str, found: FreezeList, *, now_ms: int
    ) -> bytes:
        """Return the next list as it is stored, with a greater epoch."""
        key = sealed_key(keys, tenant)
        # By the time, so that one that is made after a rollback is above those before.
        epoch = max(found.epoch + 1, self._sealing.newest(key) + 1, now_ms)
        body = found.with_(epoch=epoch).model_dump_json(exclude_defaults=True)
        return self._sealing.sealed(Sealed.FREEZES, (key,), body.encode())

    async def in_force(
        self,
        keys: Keys,
        tenant: str,
        names: Sequence[str] | None,
        beside: Mapping[str, bytes],
    ) -> dict[str, Freeze]:
        """Return what is frozen or paused, by name.

        Args:
            keys: of the shard.
            tenant: whose.
            names: which are asked for; None for all.
            beside: what stands in the hash of them.
        """
        known = self.known(keys, tenant)
        listed = known.found.freezes
        found: dict[str, Freeze] = {}
        for name in (*listed, *beside) if names is None else names:
            if name in found or not (name in listed or name in beside):
                continue
            stored = beside.get(name, b"")
            is_whole = name in listed and _same(listed[name], stored)
            if name.startswith(_PAUSED) and name not in listed:
                found[name] = _pause(name, stored)
                continue
            found[name] = listed[name] if name in listed else of_nobody(name, stored)
            # Of a list that is not believed, the list is what was found; that it froze
            # everything stands in no hash.
            is_ours = listed.get(name) == _NOT_BELIEVED
            if not is_whole and known.is_believed and not is_ours:
                await self.refuse(keys, tenant, name, stored)
        if not known.is_believed:
            found[_NOT_BELIEVED.name] = _NOT_BELIEVED
        return found

    async def refuse(self, keys: Keys, tenant: str, name: str, stored: bytes) -> None:
        """Report what stands beside the list and is not as the list has it."""
        await self._sealing.refuse(
            keys, Sealed.FREEZES, stored, tenant=tenant, name=name
        )


_OF: WeakKeyDictionary[Connection, FreezeLists] = WeakKeyDictionary()


def freeze_lists(conn: Connection) -> FreezeLists:
    """Return the lists of the store that a connection belongs to."""
    return _OF[conn]


def compared(
    conn: Connection, keys: Keys, tenant: str, names: Iterable[str]
) -> list[str]:
    """Return what a script compares, see `FreezeLists.compared`."""
    return freeze_lists(conn).compared(keys, tenant, names)


def sealed_key(keys: Keys, tenant: str) -> str:
    """String: the sealed list of a tenant's freezes in a shard; scripts derive it."""
    return f"{keys.frozen(tenant)}_sealed"


def hashed(row: bytes) -> str:
    """Return the hash by which a list knows a change."""
    return hashlib.sha256(row).hexdigest()[:32]


def believed_list(known: KnownList, beside: Mapping[str, bytes]) -> FreezeList:
    """Return the list to go on from: also with freezes that stand beside it alone.

    They were set by an older version, or are what is left where it is not believed.
    Then everything stays frozen until people unfreeze everything: freezing one thing
    more must not end it.
    """
    unlisted = {
        name: of_nobody(name, stored)
        for name, stored in beside.items()
        if name not in known.found.freezes and not name.startswith(_PAUSED)
    }
    if not known.is_believed:
        unlisted[_NOT_BELIEVED.name] = _NOT_BELIEVED
    return known.found.with_(freezes={**unlisted, **known.found.freezes})


def _same(freeze: Freeze, stored: bytes) -> bool:
    try:
        return Freeze.model_validate_json(stored) == freeze
    except ValidationError:
        return False


def _pause(name: str, stored: bytes) -> Freeze:
    agent = name.removeprefix(_PAUSED)
    found = of_nobody(f"{ScopeKind.AGENT} {agent}", b"")
    try:
        kept = Freeze.model_validate_json(stored)
    except ValidationError:
        kept = found
    # The words are ours, or none are told.
    is_ours = kept.by == BY_GATEWAY and _PAUSE_REASON.fullmatch(kept.reason)
    reason = kept.reason if is_ours else "its calls were rejected in a row"
    return found.with_(
        is_pause=True, by=BY_GATEWAY, reason=reason, at_ms=kept.at_ms if is_ours else 0
    )


def of_nobody(name: str, stored: bytes) -> Freeze:
    """Return a freeze of which only the name is believed."""
    kind, _, of = name.partition(" ")
    at_ms = 0
    with suppress(ValidationError):
        at_ms = Freeze.model_validate_json(stored).at_ms
    try:
        scope = FreezeScope(kind=ScopeKind(kind), name=of)
    except ValueError:
        scope = FreezeScope(kind=ScopeKind.TENANT)
    return Freeze(scope=scope, by="somebody", reason="", at_ms=at_ms)


def as_json(freezes: Mapping[str, Freeze]) -> str:
    """Return freezes as scripts write them beside the list: bodies by name."""
    return json.dumps({name: one.model_dump_json() for name, one in freezes.items()})
